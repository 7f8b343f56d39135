"""The study's design, read from studies/paper/design.toml: arms, choices, grids, compositions, seeds and rounds."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedssd.errors import UserError, perhaps
from fedssd.recipe import PAPER_METHODS
from studies.paper.paper import EVERYTHING

Changes = Mapping[str, Any]  # recipe keys and method.option to their values
PARTS = (
    "screen", "confirm", "profile", "tune", "columns", "report", "compose", "best",
    "digits-columns", "digits-choices", "digits",
)  # fmt: skip
REPORTING = ("confirm", "report", "best", "digits-choices", "digits")  # the others choose
WITH_PIPELINE = ("tune", "columns", "report", "compose", "best")  # the chosen one, or one that is named
ON_COLUMNS = ("columns", "digits-columns")  # each chooses FedSSD's strength over all columns
OURS, THEIRS = "fedssd", "fedavg"
FILE = Path(__file__).parents[1] / "design.toml"


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
class Digits:
    """The columns' splits on digits, and the rounds after which methods are compared."""

    recipe: str
    m_max: tuple[float, ...]  # FedSSD's, each reported
    seeds: tuple[int, ...]
    after: tuple[int, ...]
    tuning: tuple[int, ...]  # the seeds its strength is chosen on
    choices: tuple[Choice, ...]  # what is open, where FedSSD distils


@dataclass(frozen=True)
class Design:
    """The whole study."""

    base: str
    tuning: tuple[int, ...]
    reporting: tuple[int, ...]
    rounds: Mapping[str, int]
    arms: Mapping[str, Arm]
    survives: float
    more_seeds: tuple[int, ...]  # besides the reported ones, where it is asked whether FedSSD leads
    more_arms: tuple[str, ...]  # of which that is asked at the base
    more_reported: tuple[str, ...]  # and of which on every column
    choices: tuple[Choice, ...]
    candidates: tuple[Changes, ...]  # the pipelines that could be the paper's
    also: tuple[Changes, ...]  # of these, what is reported beside the one that is chosen
    grids: tuple[Tuned, ...]  # the paper's methods that have a strength
    variants: tuple[Tuned, ...]  # others that are tuned and reported beside them
    on_columns: Mapping[str, Tuned]  # by part: FedSSD with those of its strengths that are tried on every column
    compositions: tuple[Composition, ...]
    composed: Changes  # what all of them have besides
    digits: Digits

    @property
    def columns(self) -> Tuned:
        """FedSSD as it is tried on every column of the paper's data."""
        return self.on_columns["columns"]

    @property
    def choosing(self) -> tuple[int, ...]:
        """All seeds that choices are made on; digits have their own."""
        return (*self.tuning, *(seed for seed in self.digits.tuning if seed not in self.tuning))

    def chosen_on(self, part: str) -> tuple[int, ...]:
        """The seeds that a part chooses on."""
        return self.digits.tuning if part == "digits-columns" else self.tuning

    def variant(self, name: str) -> Tuned:
        """The variant of that name."""
        return next(one for one in self.variants if one.name == name)

    def composition(self, name: str) -> Composition:
        """The composition of that name."""
        return next(one for one in self.compositions if one.name == name)

    def without_fedssd(self, name: str) -> Composition:
        """The composition that is the one of that name less FedSSD: what of its gain is not FedSSD's."""
        ours = self.composition(name)
        method = "+".join(half for half in ours.method.split("+") if half != OURS) or "fedavg"
        variant = "" if ours.variant and self.variant(ours.variant).method == OURS else ours.variant
        for one in self.compositions:
            if (one.method, one.server, one.key, one.variant) == (method, ours.server, ours.key, variant):
                return one
        raise UserError(f"the study composes {name} and not the same without FedSSD: {method} with {ours.key}")

    @property
    def named(self) -> frozenset[str]:
        """Every recipe key and option that the study itself sets somewhere."""
        every = (*self.choices, *self.digits.choices)
        departures = [*(changes for choice in every for changes in choice.changes), *self.candidates]
        fixed = [*(arm.changes for arm in self.arms.values()), *(one.fixed for one in self.variants), self.composed]
        tuned = [*(one.key for one in (*self.grids, *self.variants)), *(one.key for one in self.compositions)]
        return frozenset({"method", "server", *tuned, *(key for changes in (*departures, *fixed) for key in changes)})

    def refuse_changes(self, changes: Iterable[str]) -> None:
        """What the study itself varies or fixes cannot be changed in all its recipes: rows would say what is not so."""
        for key in changes:
            name = key.removeprefix("options.")
            if name in self.named:
                raise UserError(f"the study itself sets {name} in some of its recipes: it cannot be set in all of them")

    def refuse_part(self, part: str) -> None:
        """A name that is none of a part's."""
        if part not in PARTS:
            known = (*PARTS, EVERYTHING)
            raise UserError(
                f"unknown part {part!r} of the study: expected one of {', '.join(known)}{perhaps(part, known)}"
            )

    def refuse_seeds(self, part: str, seeds: tuple[int, ...]) -> None:
        """What is reported was never chosen on, and what is chosen is chosen on the seeds set aside for it."""
        if len(set(seeds)) < len(seeds):
            raise UserError(
                f"the study runs every seed once: expected different seeds, got {','.join(map(str, seeds))}"
            )
        shared = [seed for seed in seeds if seed in self.choosing]
        if part in REPORTING and shared:
            chosen_on = ", ".join(map(str, self.choosing))
            raise UserError(
                f"part {part!r} reports, and choices are made on seeds {chosen_on}: expected other seeds, such as "
                f"{','.join(map(str, self.reporting))}, got {','.join(map(str, shared))}"
            )
        others = [seed for seed in seeds if seed not in self.chosen_on(part)]
        if part not in REPORTING and others:
            own = ", ".join(map(str, self.chosen_on(part)))
            raise UserError(
                f"part {part!r} chooses, which is done on seeds {own} alone: got {','.join(map(str, others))}"
            )


def label(changes: Changes) -> str:
    """How a departure is called: ``weight_decay=0.0005``."""
    return ",".join(f"{key}={value}" for key, value in changes.items())


def load_design() -> Design:
    """The design as it is written down."""
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return understood(content)


def understood(content: Mapping[str, Any]) -> Design:
    """A design from the content of its file; refused where it would break the study's own rules."""
    arms = {
        name: Arm(name, given["method"], {key: value for key, value in given.items() if key != "method"})
        for name, given in content["arms"].items()
    }
    choices = tuple(
        Choice(one["name"], one["question"], tuple(one["arms"]), tuple(one["changes"])) for one in content["choice"]
    )
    grids = tuple(Tuned(_owner(key), _owner(key), key, tuple(values)) for key, values in content["grids"].items())
    variants = {name: _variant(name, given) for name, given in content["variants"].items()}
    design = Design(
        content["base"],
        tuple(content["seeds"]["tuning"]),
        tuple(content["seeds"]["reporting"]),
        content["rounds"],
        arms,
        content["screen"]["survives"],
        tuple(content["seeds"]["more"]),
        tuple(content["confirm"]["more_arms"]),
        tuple(content["report"]["more_arms"]),
        choices,
        tuple(content["profile"]["candidates"]),
        tuple(content["report"]["also"]),
        grids,
        tuple(variants.values()),
        {part: _variant(f"{OURS}-{part}", {"method": OURS, **content[part]}) for part in ON_COLUMNS},
        tuple(_composition(one, variants) for one in content["composition"]),
        content["compose"]["fixed"],
        _digits(content["digits"], content["digits-columns"]["seeds"], content["digits-choice"]),
    )
    _check(design)
    return design


def _digits(given: Mapping[str, Any], tuning: Sequence[int], choices: Sequence[Mapping[str, Any]]) -> Digits:
    m_max, seeds, after = (tuple(given[key]) for key in ("m_max", "seeds", "after"))
    return Digits(given["recipe"], m_max, seeds, after, tuple(tuning), tuple(map(_digits_choice, choices)))


def _digits_choice(given: Mapping[str, Any]) -> Choice:
    """Of FedAvg and FedSSD, unless all that it changes are options of FedSSD's."""
    own = all(_owner(key) == OURS for changes in given["changes"] for key in changes)
    return Choice(given["name"], given["question"], (OURS,) if own else (THEIRS, OURS), tuple(given["changes"]))


def _owner(key: str) -> str:
    return key.partition(".")[0]


def _variant(name: str, given: Mapping[str, Any]) -> Tuned:
    ((key, values),) = given["grid"].items()
    fixed = {option: value for option, value in given.items() if option not in ("method", "title", "grid", "seeds")}
    return Tuned(name, given["method"], key, tuple(values), fixed, given.get("title", ""))


def _composition(given: Mapping[str, Any], variants: Mapping[str, Tuned]) -> Composition:
    ((key, values),) = given["grid"].items()
    name = given.get("variant", "")
    if name and name not in variants:
        raise UserError(f"the study composes a variant that it does not have: {name}")
    if name and variants[name].method not in given["method"].split("+"):
        raise UserError(f"the study composes {given['method']}, which variant {name} is none of")
    return Composition(given["name"], given["method"], given.get("server", "fedavg"), key, tuple(values), name)


def _check(design: Design) -> None:
    reported = (*design.reporting, *design.more_seeds, *design.digits.seeds)
    if set(design.choosing) & set(reported):
        raise UserError(f"the study would report seeds it chooses on: {design.choosing} and {reported}")
    by_method = {one.name: len(one.values) for one in (*design.grids, *design.variants)}
    composed = {one.name: len(one.values) for one in design.compositions}
    for sizes in (by_method, composed):
        if len(set(sizes.values())) > 1:
            raise UserError(f"all must have a grid of the same size in the study, got {sizes}")
    grid = next((one for one in design.grids if one.key == design.columns.key), None)
    if grid is None or not set(design.columns.values) <= set(grid.values):
        raise UserError(f"the study tries a strength on all columns that it does not tune: {design.columns.key}")
    if {one.key for one in design.on_columns.values()} != {design.columns.key}:
        raise UserError(f"the study tries another strength on the columns of digits than {design.columns.key}")
    untried = set(design.digits.m_max) - set(design.on_columns["digits-columns"].values)
    if untried:
        raise UserError(f"the study reports strengths on digits that it does not try there: {sorted(untried)}")
    with_it = [one.name for one in design.compositions if not one.is_control]
    if not with_it:
        raise UserError("the study composes nothing with FedSSD")
    for name in with_it:
        design.without_fedssd(name)
    for pipeline in design.also:
        if pipeline not in design.candidates:
            raise UserError(f"the study reports a pipeline that is none of the profile's: {label(pipeline)}")
    named = [*design.more_arms, *(arm for choice in design.choices for arm in choice.arms)]
    unknown = [arm for arm in named if arm not in design.arms]
    if unknown:
        raise UserError(f"the study names arms that it does not have: {', '.join(unknown)}")
    reports = (*PAPER_METHODS, *(one.name for one in design.variants), design.columns.name)
    unknown = [name for name in design.more_reported if name not in reports]
    if unknown:
        raise UserError(f"the study names methods that it does not report: {', '.join(unknown)}")
