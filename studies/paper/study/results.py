"""The finished runs that a study can count on, and their accuracies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean

from fedssd.recipe import Recipe
from fedssd.runs.read import read_run
from fedssd.sweeps.cache import recipes_of_finished
from studies.paper.batches import made
from studies.paper.cell import Cell
from studies.paper.study.trial import Trial

BY_LATE_ROUNDS = ("screen", "tune", "columns", "compose", "digits-columns")  # parts that choose between runs of ours
LATE = 5


class Results:
    """Finished runs, by what they are runs of and the kernels that made them, which end up to a point or more apart.

    The first rounds of a longer run are the shorter run, but for rounding: where both are there, the shorter counts.
    """

    longest = False  # whether the longer counts instead

    def __init__(self, folders: Iterable[Path]) -> None:
        self.done: dict[str, Path] = {}  # every run that counts, by its key, whatever kernels made it
        self._runs: dict[tuple[str, str], list[Path]] = {}
        self._by_length: dict[tuple[str, str], dict[int, Path]] = {}
        self._measured: dict[tuple[object, ...], dict[int, float]] = {}
        for recipe, run in recipes_of_finished(folders):
            self.done[recipe.hash] = run
            self._runs.setdefault(made(recipe), []).append(run)
            self._by_length.setdefault(_endless(recipe), {})[recipe.rounds] = run

    def find(self, cell: Cell) -> Path | None:
        """The folder of its run, or of the longest that is longer, so that all parts have the same base."""
        found = self.repeats([cell]).get(cell.key)
        return None if found is None else found[-1]

    def found(self, cells: Iterable[Cell]) -> dict[str, Path]:
        """Where those of these cells are that need not run, by their keys."""
        return {key: runs[-1] for key, runs in self.repeats(cells).items()}

    def repeats(self, cells: Iterable[Cell]) -> dict[str, list[Path]]:
        """The same with all repeats of a run; the last is the one that counts."""
        found: dict[str, list[Path]] = {}
        for cell in cells:
            lengths = self._by_length.get(_endless(cell.recipe), {})
            longer = [length for length in lengths if length > cell.recipe.rounds and cell.recipe.evaluate_every == 1]
            runs, instead = self._runs.get(made(cell.recipe), []), [lengths[max(longer)]] if longer else []
            runs = instead or runs if self.longest else runs or instead
            if runs:
                found[cell.key] = runs
        return found

    def by_longest(self) -> Results:
        """The same runs, of which the longer count where there are both: whether that says the same."""
        found = copy(self)
        found.longest, found._measured = True, {}
        return found

    def run(self, trial: Trial, seed: int) -> Path | None:
        """The folder of a finished run."""
        return self.find(trial.cell(seed))

    def accuracies(self, trial: Trial, seeds: Sequence[int], which: str = "") -> dict[int, float]:
        """Percent, by those seeds that are finished: of the ``last`` round, the ``best``, or the mean of the ``late``.

        Unless it is said which, the late rounds where a part chooses between runs, since that is less a matter of
        chance, and the last round otherwise, as in the paper.
        """
        kind = which or ("late" if trial.part in BY_LATE_ROUNDS else "last")
        key = (*made(trial.recipe), tuple(seeds), kind)
        if key not in self._measured:  # a page asks for the same ones hundreds of times
            found = {seed: self.run(trial, seed) for seed in seeds}
            self._measured[key] = {
                seed: 100 * MEASURES[kind]([acc for round_, acc in _curve(run) if round_ <= trial.recipe.rounds])
                for seed, run in found.items()
                if run is not None
            }
        return dict(self._measured[key])

    def mean(self, trial: Trial, seeds: Sequence[int]) -> float | None:
        """Over all of these seeds; None while one is missing."""
        found = self.accuracies(trial, seeds)
        return fmean(found.values()) if found and len(found) == len(seeds) else None


MEASURES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "last": lambda curve: curve[-1],
    "best": max,
    "late": lambda curve: fmean(curve[-LATE:]),
}


def _endless(recipe: Recipe) -> tuple[str, str]:
    """The same but for its length."""
    return made(replace(recipe, rounds=1))


@cache
def _curve(run: Path) -> tuple[tuple[int, float], ...]:
    """Every evaluated round with the global model's accuracy."""
    return tuple((one.number, one.accuracy) for one in read_run(run).rounds if one.accuracy is not None)
