"""The study's design, read from design.toml: arms, choices, grids, compositions, seeds and rounds.

No value is chosen on the seeds that are reported: a part chooses, on the tuning seeds, or reports, on the others.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedssd import UserError
from studies.paper.paper import HERE, METHODS, OURS, THEIRS

Changes = Mapping[str, Any]  # recipe keys and method.option to their values
PARTS = (
    "screen", "confirm", "profile", "tune", "columns", "report", "compose", "best",
    "digits-columns", "digits-choices", "digits",
)  # fmt: skip
REPORTING = ("confirm", "report", "best", "digits-choices", "digits")  # the others choose
BY_LATE_ROUNDS = ("screen", "tune", "columns", "compose", "digits-columns")  # parts that choose between runs of ours
ON_COLUMNS = ("columns", "digits-columns")  # each chooses FedSSD's strength over all columns
BASE = "base"


@dataclass(frozen=True)
class Arm:
    """A method as it stands at the base."""

    name: str
    method: str
    changes: Changes


@dataclass(frozen=True)
class Choice:
    """Something the paper leaves open: what else it could have been, and on which arms that is tried."""

    name: str
    question: str
    arms: tuple[str, ...]
    changes: tuple[Changes, ...]


@dataclass(frozen=True)
class Tuned:
    """A method and the values its own strength is tuned over; of a variant also what else sets it apart."""

    name: str  # the method's, or the variant's own
    method: str
    key: str
    values: tuple[Any, ...]
    fixed: Changes = field(default_factory=dict)
    title: str = ""

    def at(self, value: Any) -> Changes:
        """What it changes at a value of its strength."""
        return {**self.fixed, self.key: value}


@dataclass(frozen=True)
class Composition:
    """Halves that work together, and the values of one key that it is tuned over."""

    name: str
    method: str
    server: str
    key: str
    values: tuple[Any, ...]
    variant: str = ""  # whose strength and options that half has, in place of the method's

    @property
    def is_control(self) -> bool:
        """Whether it does without FedSSD."""
        return OURS not in self.method.split("+")


@dataclass(frozen=True)
class Design:
    """The whole study."""

    base: str
    tuning: tuple[int, ...]
    reporting: tuple[int, ...]
    more_seeds: tuple[int, ...]  # besides the reported ones, where it is asked whether FedSSD leads
    rounds: Mapping[str, int]
    arms: Mapping[str, Arm]
    survives: float  # points that a departure must change an arm by to be confirmed
    more_arms: tuple[str, ...]  # at the base on more seeds
    more_reported: tuple[str, ...]  # on every column on more seeds
    choices: tuple[Choice, ...]
    candidates: tuple[Changes, ...]  # the pipelines that could be the paper's
    also: tuple[Changes, ...]  # of these, what is reported beside the one that is chosen
    grids: tuple[Tuned, ...]  # the paper's methods that have a strength
    variants: tuple[Tuned, ...]  # others that are tuned and reported beside them
    on_columns: Mapping[str, Tuned]  # by part: FedSSD with those of its strengths that are tried on every column
    compositions: tuple[Composition, ...]
    composed: Changes  # what all of them have besides
    digits_m_max: tuple[float, ...]  # FedSSD's on digits, each reported
    digits_seeds: tuple[int, ...]
    digits_tuning: tuple[int, ...]
    digits_choices: tuple[Choice, ...]
    after: tuple[int, ...]  # rounds at which methods are compared

    @property
    def columns(self) -> Tuned:
        """FedSSD as it is tried on every column of the paper's data."""
        return self.on_columns["columns"]

    def seeds_of(self, part: str) -> tuple[int, ...]:
        """On which seeds a part runs."""
        if part.startswith("digits"):
            return self.digits_seeds if part in REPORTING else self.digits_tuning
        return self.reporting if part in REPORTING else self.tuning

    def variant(self, name: str) -> Tuned:
        """The variant of that name."""
        return next(one for one in self.variants if one.name == name)

    def composition(self, name: str) -> Composition:
        """The composition of that name."""
        return next(one for one in self.compositions if one.name == name)

    def without_fedssd(self, name: str) -> Composition:
        """The composition that is the one of that name less FedSSD: what of its gain is not FedSSD's."""
        ours = self.composition(name)
        method = "+".join(half for half in ours.method.split("+") if half != OURS) or THEIRS
        variant = "" if ours.variant and self.variant(ours.variant).method == OURS else ours.variant
        for one in self.compositions:
            if (one.method, one.server, one.key, one.variant) == (method, ours.server, ours.key, variant):
                return one
        raise UserError(f"the study composes {name} and not the same without FedSSD: {method} with {ours.key}")


def label(changes: Changes) -> str:
    """How a departure is called: ``weight_decay=0.0005``."""
    return ",".join(f"{key}={value}" for key, value in changes.items())


def load_design() -> Design:
    """Read the design as it is written down."""
    return understood(tomllib.loads((HERE / "design.toml").read_text(encoding="utf-8")))


def understood(content: Mapping[str, Any]) -> Design:
    """Read a design from its file's content; refuse one that would break the study's own rules."""
    seeds, digits, on_digits = content["seeds"], content["digits"], content["digits-columns"]
    design = Design(
        base=content["base"],
        tuning=tuple(seeds["tuning"]),
        reporting=tuple(seeds["reporting"]),
        more_seeds=tuple(seeds["more"]),
        rounds=content["rounds"],
        arms={name: Arm(name, one["method"], _without(one, "method")) for name, one in content["arms"].items()},
        survives=content["screen"]["survives"],
        more_arms=tuple(content["confirm"]["more_arms"]),
        more_reported=tuple(content["report"]["more_arms"]),
        choices=tuple(_choice(one, one["arms"]) for one in content["choice"]),
        candidates=tuple(content["profile"]["candidates"]),
        also=tuple(content["report"]["also"]),
        grids=tuple(Tuned(_owner(key), _owner(key), key, tuple(own)) for key, own in content["grids"].items()),
        variants=tuple(_variant(name, one) for name, one in content["variants"].items()),
        on_columns={part: _variant(f"{OURS}-{part}", {"method": OURS, **content[part]}) for part in ON_COLUMNS},
        compositions=tuple(_composition(one) for one in content["composition"]),
        composed=content["compose"]["fixed"],
        digits_m_max=tuple(digits["m_max"]),
        digits_seeds=tuple(digits["seeds"]),
        digits_tuning=tuple(on_digits["seeds"]),
        digits_choices=tuple(_choice(one, _arms_on_digits(one)) for one in content["digits-choice"]),
        after=tuple(digits["after"]),
    )
    _check(design)
    return design


def _choice(given: Mapping[str, Any], arms: list[str]) -> Choice:
    return Choice(given["name"], given["question"], tuple(arms), tuple(given["changes"]))


def _arms_on_digits(given: Mapping[str, Any]) -> list[str]:
    """FedAvg and FedSSD, unless all that a choice changes are options of FedSSD's."""
    own = all(_owner(key) == OURS for changes in given["changes"] for key in changes)
    return [OURS] if own else [THEIRS, OURS]


def _owner(key: str) -> str:
    return key.partition(".")[0]


def _without(given: Changes, *names: str) -> Changes:
    return {key: value for key, value in given.items() if key not in names}


def _variant(name: str, given: Mapping[str, Any]) -> Tuned:
    ((key, values),) = given["grid"].items()
    fixed = _without(given, "method", "title", "grid", "seeds")
    return Tuned(name, given["method"], key, tuple(values), fixed, given.get("title", ""))


def _composition(given: Mapping[str, Any]) -> Composition:
    ((key, values),) = given["grid"].items()
    server, variant = given.get("server", "fedavg"), given.get("variant", "")
    return Composition(given["name"], given["method"], server, key, tuple(values), variant)


def _check(design: Design) -> None:
    chosen_on = {*design.tuning, *design.digits_tuning}
    reported = {*design.reporting, *design.more_seeds, *design.digits_seeds}
    if chosen_on & reported:
        raise UserError(f"the study would report seeds it chooses on: {sorted(chosen_on & reported)}")
    for grids in ((*design.grids, *design.variants), design.compositions):
        sizes = {one.name: len(one.values) for one in grids}
        if len(set(sizes.values())) > 1:
            raise UserError(f"all must have a grid of the same size in the study, got {sizes}")
    if not any(one.key == design.columns.key and {*design.columns.values} <= {*one.values} for one in design.grids):
        raise UserError(f"the study tries a strength on all columns that it does not tune: {design.columns.key}")
    if untried := {*design.digits_m_max} - {*design.on_columns["digits-columns"].values}:
        raise UserError(f"the study reports strengths on digits that it does not try there: {sorted(untried)}")
    for one in design.compositions:
        if one.variant and design.variant(one.variant).method not in one.method.split("+"):
            raise UserError(f"the study composes {one.method}, which variant {one.variant} is none of")
        if not one.is_control:
            design.without_fedssd(one.name)
    if unknown := [label(one) for one in design.also if one not in design.candidates]:
        raise UserError(f"the study reports a pipeline that is none of the profile's: {unknown[0]}")
    named = [*design.more_arms, *(arm for choice in design.choices for arm in choice.arms)]
    if unknown := [arm for arm in named if arm not in design.arms]:
        raise UserError(f"the study names arms that it does not have: {', '.join(unknown)}")
    reports = (*METHODS, *(one.name for one in design.variants), design.columns.name)
    if unknown := [name for name in design.more_reported if name not in reports]:
        raise UserError(f"the study names methods that it does not report: {', '.join(unknown)}")
