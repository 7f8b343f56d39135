"""Finished runs, found by the recipe they are runs of; the first rounds of a longer run are the shorter run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import fedssd
from fedssd import Recipe, Result

ROOT = Path(__file__).resolve().parents[2]
PACKS = ROOT / "results"
LATE = 5
MEASURES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "last": lambda curve: curve[-1],
    "best": max,
    "late": lambda curve: fmean(curve[-LATE:]),  # to choose by: less a matter of chance than one round
}
Key = tuple[str, str, int, int]  # what it is a run of but for its length, by which kernels, its seed and its split's


class Runs:
    """Finished runs by recipe and kernels, since with other kernels the same recipe ends elsewhere.

    Example:
        >>> runs = Runs([PACKS])
        >>> runs.find(Recipe.load("digits", method="fedavg")).summary.rounds
        20
    """

    def __init__(self, places: Iterable[Path]) -> None:
        self.newest_last: list[Result] = []
        self._hashes: dict[str, str] = {}
        self._found: dict[Key, dict[int, Result]] = {}
        self._curves: dict[tuple[Any, ...], float] = {}
        packs = [pack for place in places for pack in (sorted(place.rglob("*.runs.jsonl.gz")) or [place])]
        self.add(run for pack in packs for run in fedssd.read_runs(pack))

    def add(self, runs: Iterable[Result]) -> None:
        """Count further runs; of one made more than once the one begun last."""
        new = sorted(runs, key=_begun)
        self.newest_last += new
        for run in new:
            self._found.setdefault(self.key(run.recipe), {})[run.recipe.rounds] = run

    def key(self, recipe: Recipe) -> Key:
        """Name what a recipe's runs have in common but for their length."""
        plain = recipe.replace(seed=0, rounds=1, partition_seed=0)
        if plain.hash not in self._hashes:
            self._hashes[plain.hash] = plain.resolved().hash
        return self._hashes[plain.hash], recipe.kernels, recipe.seed, recipe.split_seed

    def find(self, recipe: Recipe) -> Result | None:
        """Return the run of a recipe, or the first rounds of the longest that is longer, or None."""
        lengths = self._found.get(self.key(recipe), {})
        longer = [length for length in lengths if length > recipe.rounds] if recipe.evaluate_every == 1 else []
        if recipe.rounds in lengths or not longer:
            return lengths.get(recipe.rounds)
        run = lengths[max(longer)]
        return replace(run, rounds=run.rounds[: recipe.rounds])

    def by_seed(self, recipe: Recipe, seeds: Iterable[int]) -> dict[int, Result]:
        """Return the runs of a recipe on those of these seeds that are there."""
        found = {seed: self.find(recipe.replace(seed=seed)) for seed in seeds}
        return {seed: run for seed, run in found.items() if run is not None}

    def percent(self, recipe: Recipe, seeds: Iterable[int], which: str = "last") -> dict[int, float]:
        """Return their accuracies: of the ``last`` round, the ``best``, or the mean of the ``late`` ones."""
        found = {}
        for seed in seeds:
            place = (recipe.hash, recipe.kernels, seed, which)
            if place not in self._curves and (run := self.find(recipe.replace(seed=seed))) is not None:
                curve = [one.accuracy for one in run.rounds if one.accuracy is not None]
                self._curves[place] = 100 * MEASURES[which](curve)
            if place in self._curves:
                found[seed] = self._curves[place]
        return found


def _begun(run: Result) -> tuple[str, Path]:
    times = [one.get("started") for one in (run.provenance, *run.provenance.get("resumed", []))]
    return max((time for time in times if isinstance(time, str)), default=""), run.folder or Path()
