"""A study whose results a function tells, so that its rules can be followed by hand; and its fixtures."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from fedssd.recipe import Recipe
from fedssd.recipe.resolve import resolved
from studies.paper.report.study import Page
from studies.paper.study.design import Design, load_design
from studies.paper.study.parts import Study
from studies.paper.study.results import Results
from studies.paper.study.trial import Trial

Says = Callable[[Trial, int], float | None]
T2 = 4.302652729911275  # Student's t for 95 % and two degrees of freedom, from printed tables


class Told(Results):
    """What a function says of a trial and a seed, and how much better than the last round the best one is.

    To that comes a millionth of a point, another for every trial, which no table shows:
    differences that are the same on every seed have no interval.
    """

    def __init__(self, says: Says, best: float = 0.0) -> None:
        super().__init__([])
        self.says, self.best = says, best

    def accuracies(self, trial: Trial, seeds: Sequence[int], which: str = "") -> dict[int, float]:
        found = {seed: self.says(trial, seed) for seed in seeds}
        more = self.best if which == "best" else 0.0
        size = zlib.crc32(f"{trial.cell(0).name} {trial.recipe.method}".encode()) % 1021 * 2.0**-30
        return {seed: value + more + size * (seed % 3 - 1) for seed, value in found.items() if value is not None}


def page(says: Says) -> Page:
    """The study's page on what is told."""
    return Page(Study(), Told(says, best=0.5))


def flat(recipe: Recipe) -> dict[str, Any]:
    """Its resolved values, options by ``method.name``."""
    found = asdict(resolved(recipe))
    options = found.pop("options")
    return found | {f"{method}.{name}": value for method, given in options.items() for name, value in given.items()}


def nothing(_: Trial, __: int) -> float | None:
    return None


@pytest.fixture(scope="module")
def design() -> Design:
    return load_design()


@pytest.fixture
def study(design: Design) -> Study:
    return Study(design)


def confirmed(trial: Trial, seed: int) -> float | None:
    """The base of the confirmation on three seeds: FedSSD adds 0.1, 0.2, 0.3, at 0.5 it takes 1 or about that."""
    if trial.part != "confirm" or trial.group != "base" or seed > 5:
        return None
    added = {"fedavg": 0.0, "fedssd": 0.1 * (seed - 2), "fedssd-0.5": -1.0 - 0.01 * seed}
    return 60.0 + seed + added[trial.arm] if trial.arm in added else None
