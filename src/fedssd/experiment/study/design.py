"""The study's design, read from recipes/study/design.toml: arms, choices, grids, compositions, seeds and rounds."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedssd.errors import UserError
from fedssd.experiment.paper import recipe_file

Changes = Mapping[str, Any]  # recipe keys and method.option to their values
PARTS = ("screen", "confirm", "profile", "tune", "report", "compose", "best")
REPORTING = ("confirm", "report", "best")  # the others choose


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
class Composition:
    """Halves that work together, and the values of one key that it is tuned over."""

    name: str
    method: str
    server: str
    key: str
    values: tuple[Any, ...]

    @property
    def is_control(self) -> bool:
        """Whether it does without FedSSD: what of a gain is not FedSSD's."""
        return "fedssd" not in self.method.split("+")


@dataclass(frozen=True)
class Design:
    """The whole study."""

    base: str
    tuning: tuple[int, ...]
    reporting: tuple[int, ...]
    rounds: Mapping[str, int]
    arms: Mapping[str, Arm]
    survives: float
    more_seeds: tuple[int, ...]  # besides the reported ones, of these arms at the base
    more_arms: tuple[str, ...]
    choices: tuple[Choice, ...]
    shortlist: int
    candidates: tuple[Changes, ...]
    grids: Mapping[str, tuple[Any, ...]]  # method.option to its values
    compositions: tuple[Composition, ...]

    def refuse_seeds(self, part: str, seeds: tuple[int, ...]) -> None:
        """What is reported was never chosen on, and what is chosen is chosen on the seeds set aside for it."""
        chosen_on = ", ".join(map(str, self.tuning))
        shared = [seed for seed in seeds if seed in self.tuning]
        if part in REPORTING and shared:
            raise UserError(
                f"part {part!r} reports, and choices are made on seeds {chosen_on}: expected other seeds, such as "
                f"{','.join(map(str, self.reporting))}, got {','.join(map(str, shared))} among them"
            )
        others = [seed for seed in seeds if seed not in self.tuning]
        if part not in REPORTING and others:
            raise UserError(
                f"part {part!r} chooses, which is done on seeds {chosen_on} alone: got {','.join(map(str, others))}"
            )


def label(changes: Changes) -> str:
    """How a departure is called: ``weight_decay=0.0005``."""
    return ",".join(f"{key}={value}" for key, value in changes.items())


def load_design() -> Design:
    """The design that comes with fedssd."""
    content = tomllib.loads(recipe_file("study/design").read_text(encoding="utf-8"))
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
    grids = {key: tuple(values) for key, values in content["grids"].items()}
    design = Design(
        content["base"],
        tuple(content["seeds"]["tuning"]),
        tuple(content["seeds"]["reporting"]),
        content["rounds"],
        arms,
        content["screen"]["survives"],
        tuple(content["confirm"]["more_seeds"]),
        tuple(content["confirm"]["more_arms"]),
        choices,
        content["profile"]["shortlist"],
        tuple(content["profile"]["candidates"]),
        grids,
        tuple(_composition(one) for one in content["composition"]),
    )
    _check(design)
    return design


def _composition(given: Mapping[str, Any]) -> Composition:
    ((key, values),) = given["grid"].items()
    return Composition(given["name"], given["method"], given.get("server", "fedavg"), key, tuple(values))


def _check(design: Design) -> None:
    reported = (*design.reporting, *design.more_seeds)
    if set(design.tuning) & set(reported):
        raise UserError(f"the study would report seeds it chooses on: {design.tuning} and {reported}")
    by_method = {key: len(values) for key, values in design.grids.items()}
    composed = {one.name: len(one.values) for one in design.compositions}
    for sizes in (by_method, composed):
        if len(set(sizes.values())) > 1:
            raise UserError(f"all must have a grid of the same size in the study, got {sizes}")
    named = [*design.more_arms, *(arm for choice in design.choices for arm in choice.arms)]
    unknown = [arm for arm in named if arm not in design.arms]
    if unknown:
        raise UserError(f"the study names arms that it does not have: {', '.join(unknown)}")
