"""What results/ holds of one method, alone and in compositions: the table at the end of its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedssd.methods.registry import LOCALS, SERVERS
from fedssd.recipe import KEYS, MACHINE, Recipe
from fedssd.reports.comparison import BASELINE
from fedssd.reports.grouping import head_with, heads_beside, own_head
from fedssd.reports.markdown import table
from fedssd.reports.statistics import pair
from fedssd.runs.read import newest_last, read_run
from fedssd.sweeps.cache import recipe_of, runs_in
from studies.paper.report.lines import lines_of as rounds_of
from studies.paper.report.wording import interval

# What runs may differ in and still be on one task; lines part by split, head, length and how they were computed.
FREE = {"method", "server", "head", "seed", "partition_seed", "evaluate_local", "rounds", *MACHINE} - {"kernels"}
TASK = [key for key in KEYS if key not in FREE]
A_SPLIT_A_SEED = -1
HEADS = ("method", "setting", "split", "rounds", "final accuracy %", "gain over FedAvg, points [95 %]", "seeds")
ABOUT = "Paired by seed, 95 % by Student's t; *: significant, each for itself: [how to read it](README.md#our-numbers)."


@dataclass(frozen=True)
class Finished:
    """A run with all its rounds."""

    recipe: Recipe
    folder: Path
    accuracy: float  # percent, of the last round
    diverged: bool

    @property
    def split(self) -> int:
        """The seed of its split."""
        return self.recipe.split_seed

    @property
    def task(self) -> tuple[Any, ...]:
        """What FedAvg has to share to be compared with."""
        return tuple(getattr(self.recipe, key) for key in TASK)

    def after(self, rounds: int) -> float | None:
        """Its accuracy after some of its rounds, as the run of that length would have ended."""
        if rounds == self.recipe.rounds:
            return self.accuracy
        lines = rounds_of(read_run(self.folder))
        return next(
            (100 * line["global"]["acc"] for line in lines if line["round"] == rounds and "global" in line), None
        )


@dataclass
class Line:
    """The finished runs of one pair of halves on one task: on one split, or with a split for each seed."""

    recipe: Recipe
    task: tuple[Any, ...]
    split: int
    runs: dict[int, Finished] = field(default_factory=dict)  # by seed

    @property
    def accuracies(self) -> dict[int, float]:
        """Percent, by seed."""
        return {seed: run.accuracy for seed, run in self.runs.items()}

    @property
    def halves(self) -> list[str]:
        """Everything beside FedAvg, the server half last."""
        return [name for name in (*self.recipe.method.split("+"), self.recipe.server) if name != BASELINE]

    def concerns(self, name: str) -> bool:
        """Whether a method has part in it; FedAvg has where nothing else does."""
        return name in (self.halves or [BASELINE])

    @property
    def label(self) -> str:
        """``fedssd × fednova``, with the options that are not at their default and a head that was asked for."""
        return self._named + ("" if self.head == own_head(self.recipe.method) else f", head {self.head}")

    @property
    def head(self) -> str:
        """Whether the model has a projection head: on or off."""
        return head_with(self.recipe.method, self.recipe.head)

    @property
    def _named(self) -> str:
        recipe = self.recipe
        local = "+".join(part + self._changed(LOCALS, part) for part in recipe.method.split("+"))
        if recipe.server == BASELINE:
            return local
        server = recipe.server + self._changed(SERVERS, recipe.server)
        return server if recipe.method == BASELINE else f"{local} × {server}"

    def _changed(self, kinds: Mapping[str, Any], name: str) -> str:
        given = self.recipe.options.get(name, {})
        defaults = {one.name: one.default for one in fields(kinds[name])} if name in kinds else {}
        changed = [f"{key} = {_short(value)}" for key, value in given.items() if value != defaults.get(key)]
        return f" ({', '.join(changed)})" if changed else ""

    @property
    def words(self) -> str:
        """The setting, as far as it differs in what is published here."""
        recipe = self.recipe
        words = [recipe.data, recipe.partition, f"{recipe.clients} clients"]
        words += [f"{recipe.participation:.0%} a round"] if recipe.participation < 1 else []
        words += [f"{recipe.epochs} epoch{'' if recipe.epochs == 1 else 's'}"]
        words += [f"augment {recipe.augment}"] if recipe.augment != "none" else []
        words += [f"faults {recipe.faults}"] if recipe.faults else []
        words += ["kernels off"] if recipe.kernels == "off" else []
        return ", ".join(words)


def lines_of(results: Path, besides: Path | None = None) -> list[Line]:
    """All finished runs below a folder, of repeats the one begun last; ``besides`` a folder of it, as a study has.

    A run whose seed is that of a split which others share is on that split, and where its method also ran with a split
    for each seed, among those too: it is what either way of splitting gives.
    """
    runs = _finished(results, besides)
    shared = {(repr(run.task), run.split) for run in runs if run.split != run.recipe.seed}
    found: dict[str, Line] = {}
    for run in runs:
        recipe = run.recipe
        own = [A_SPLIT_A_SEED] if run.split == recipe.seed else []
        for split in (*own, *([run.split] if (repr(run.task), run.split) in shared else [])):
            head = head_with(recipe.method, recipe.head)
            key = repr((recipe.method, recipe.server, recipe.options, head, run.task, recipe.rounds, split))
            found.setdefault(key, Line(recipe, run.task, split)).runs[recipe.seed] = run
    return [
        line
        for line in found.values()
        if line.split != A_SPLIT_A_SEED or any((repr(r.task), r.split) not in shared for r in line.runs.values())
    ]


def _finished(results: Path, besides: Path | None) -> list[Finished]:
    found = []
    for folder in newest_last(one for one in runs_in(results) if besides is None or besides not in one.parents):
        summary = read_run(folder).summary
        if summary.finished and summary.accuracy is not None:
            recipe = recipe_of(folder)
            found.append(Finished(recipe, folder, 100 * summary.accuracy, summary.diverged is not None))
    return found


def numbers_of(name: str, lines: Sequence[Line]) -> str:
    """The page's table: the method alone first, then its compositions, lines that differ by the split together."""
    mine = [line for line in lines if line.concerns(name)]
    first = list(dict.fromkeys((line.label, line.words, line.recipe.rounds) for line in mine))
    mine.sort(key=lambda line: (len(line.halves) > 1, first.index((line.label, line.words, line.recipe.rounds))))
    if not mine:
        return "Nothing measured yet.\n"
    return "\n".join([table(HEADS, [_cells(line, lines) for line in mine], left=3), ABOUT, ""])


def _cells(line: Line, lines: Sequence[Line]) -> list[str]:
    split = "one for each seed" if line.split == A_SPLIT_A_SEED else f"number {line.split} for all"
    diverged = sum(run.diverged for run in line.runs.values())
    seeds = f"{len(line.runs)}" + (f", {diverged} diverged" if diverged else "")
    spread = _spread(list(line.accuracies.values()))
    return [line.label, line.words, split, str(line.recipe.rounds), spread, _beside(line, lines), seeds]


def _beside(line: Line, lines: Sequence[Line]) -> str:
    """The gain over FedAvg's runs with the same seeds and splits; a dash for FedAvg itself and where it was not run.

    FedAvg's model has the line's projection head; a head of the method's own accord is no other setting. A longer run
    of FedAvg stands for one of as many rounds, where there is none.
    """
    if line.concerns(BASELINE):
        return "–"
    rounds = line.recipe.rounds
    like = [one for one in lines if one.concerns(BASELINE) and (one.task, one.split) == (line.task, line.split)]
    heads = heads_beside(line.recipe.method, line.head)
    head = next((head for head in heads if any(one.head == head for one in like)), "")
    like = [one for one in like if one.head == head]
    base: dict[int, float] = {}
    for one in sorted(like, key=lambda one: (one.recipe.rounds == rounds, one.recipe.rounds)):
        after = {seed: run.after(rounds) for seed, run in one.runs.items() if one.recipe.rounds >= rounds}
        base |= {seed: accuracy for seed, accuracy in after.items() if accuracy is not None}
    return interval(pair(BASELINE, base, line.accuracies))


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
