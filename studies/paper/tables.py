"""The paper's tables beside our runs: ours, the published figure, gains over FedAvg, T, and what was not run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, stdev

from fedssd import Difference, Recipe, Result
from studies.paper.formats import By, counted, interval, paired, reached, rounds_to, spread, table
from studies.paper.paper import CIFAR10, NAMES, THEIRS, Column, Experiment, Published
from studies.paper.results import Runs

FAR_OFF = 1.0  # points between our FedAvg and the published one from which a setting is flagged
SEEDS = range(10)  # as many as anybody has run
LOOKED_AT = range(5)  # splits of which one was picked for its FedAvg


@dataclass(frozen=True)
class Cell:
    """One method on one column: ours over the seeds that are finished, and theirs."""

    method: str
    runs: dict[int, Result]
    fedavg: dict[int, Result] = field(repr=False)
    printed: Published | None
    printed_fedavg: Published | None
    rounds: int

    @cached_property
    def percent(self) -> By:
        """Accuracy of the last round, by seed."""
        return {seed: 100 * (run.summary.accuracy or 0.0) for seed, run in self.runs.items()}

    @property
    def gain(self) -> Difference:
        """Over FedAvg of the same seeds; of FedAvg itself none."""
        base = {seed: 100 * (run.summary.accuracy or 0.0) for seed, run in self.fedavg.items()}
        return paired(base if self.method != THEIRS else {}, self.percent)

    @property
    def printed_gain(self) -> float | None:
        """The published figure less the published FedAvg."""
        if self.printed is None or self.printed_fedavg is None or self.method == THEIRS:
            return None
        return self.printed.accuracy - self.printed_fedavg.accuracy

    @property
    def difference(self) -> float | None:
        """Ours less theirs, in points."""
        return (
            None if self.printed is None or not self.percent else fmean(self.percent.values()) - self.printed.accuracy
        )

    @property
    def stands_out(self) -> bool:
        """Whether the difference is larger than both spreads."""
        if self.difference is None or self.printed is None or self.printed.spread is None or len(self.percent) < 2:
            return False
        return abs(self.difference) > max(stdev(self.percent.values()), self.printed.spread)

    @property
    def far_off(self) -> bool:
        """Whether this is FedAvg, more than a point from the published figure: the setting may not be the paper's."""
        return self.method == THEIRS and self.difference is not None and abs(self.difference) > FAR_OFF

    @property
    def reaching(self) -> list[int | None]:
        """T, seed by seed: None where FedAvg's final accuracy was not reached."""
        return rounds_to(self.runs, self.fedavg)

    @property
    def local(self) -> list[float]:
        """Mean accuracy of the clients' own models after the last round's training, as far as it was measured."""
        known = [run.summary.local_accuracy for run in self.runs.values()]
        return [100 * one for one in known if one is not None]


def places(
    experiment: Experiment, small: bool = False, dataset: str = "", only: str = ""
) -> list[tuple[Column, Recipe]]:
    """The columns that go by these names; where small, columns that differ in nothing but the dataset are one."""
    found: list[tuple[Column, Recipe]] = []
    for column in experiment.columns:
        base = column.setting(small)
        wanted = dataset in ("", column.setting().data) and only in ("", column.recipe, column.title)
        if wanted and not any(base == other for _, other in found):
            found.append((column, base))
    return found


def cells(column: Column, base: Recipe, runs: Runs, small: bool = False) -> list[Cell]:
    """A column's cells as far as they are finished; of digits the paper prints nothing."""
    fedavg = runs.by_seed(base.replace(method=THEIRS), SEEDS)
    printed = {} if small else column.published
    return [
        Cell(
            method,
            runs.by_seed(base.replace(method=method), SEEDS),
            fedavg,
            printed.get(method),
            printed.get(THEIRS),
            base.rounds,
        )
        for method in column.methods
    ]


def section(experiment: Experiment, runs: Runs, small: bool = False) -> str:
    """A table of the paper: a table for each column that has runs, where those come from, and what is not run."""
    parts, origins, missing = [], [], []
    for column, base in places(experiment, small):
        found = cells(column, base, runs, small)
        if not any(cell.runs for cell in found):
            missing.append(f"{column.title} (`{column.recipe}`)")
            continue
        flags = f"{experiment.name} --only {column.recipe}{' --scale small' if small else ''}"
        heads, rows = _shown(found)
        stand_in = ", on digits in its stead" if small else ""
        title = f"**{column.title}**{stand_in} (`python -m studies.paper run {flags}`)"
        picked = column.recipe == CIFAR10.recipe and not small
        parts.append("\n".join([title, "", table(heads, rows), *(f"{note}." for note in _notes(found, picked)), ""]))
        origins.append(_origin(column, found))
    if parts:
        parts.append(table(("column", "made on", "splits by seed", "seconds of all runs"), origins, left=3))
    return "\n".join([*parts, *([f"Not run yet: {', '.join(missing)}.\n"] if missing else [])])


def _shown(found: Sequence[Cell]) -> tuple[list[str], list[list[str]]]:
    """A column of the paper as a table of its own: what is known of every cell."""
    printed = any(cell.printed for cell in found)
    columns: dict[str, Callable[[Cell], str]] = {"method": lambda cell: NAMES[cell.method], "ours %": _ours}
    if printed:
        columns |= {"paper %": _theirs, "difference": _difference}
    if any(cell.gain.n for cell in found):
        columns["gain over FedAvg [95 %]"] = lambda cell: interval(cell.gain)
    if any(cell.printed_gain is not None for cell in found):
        columns["paper's gain"] = lambda cell: "–" if cell.printed_gain is None else f"{cell.printed_gain:+.2f}"
    if any(cell.reaching for cell in found):
        columns["T"] = lambda cell: reached(cell.reaching, cell.rounds)
    if any(cell.printed and cell.printed.rounds for cell in found):
        columns["paper's T"] = lambda cell: str((cell.printed and cell.printed.rounds) or "–")
    if any(cell.local for cell in found):
        columns["clients' own models %"] = lambda cell: spread(cell.local) if cell.local else "–"
    return list(columns), [[show(cell) for show in columns.values()] for cell in found]


def _ours(cell: Cell) -> str:
    return spread(list(cell.percent.values())) if cell.percent else "not run"


def _theirs(cell: Cell) -> str:
    if cell.printed is None:
        return "–"
    return f"{cell.printed.accuracy:.2f}" + ("" if cell.printed.spread is None else f" ± {cell.printed.spread:.2f}")


def _difference(cell: Cell) -> str:
    if cell.difference is None:
        return "–"
    return f"{cell.difference:+.2f}{' †' if cell.stands_out else ''}{' ⚑' if cell.far_off else ''}"


def _notes(found: Sequence[Cell], picked: bool) -> list[str]:
    """What a reader must know to read a column."""
    notes = ["Ours: mean ± standard deviation (seeds)"]
    if any(cell.gain.low is not None for cell in found):
        notes.append("Gain over FedAvg: in points, paired by seed, 95 % by Student's t; *: significant at 95 %")
    if any(cell.reaching for cell in found):
        own = next((cell for cell in found if cell.method == THEIRS), None)
        null = f"; FedAvg itself first hits that value in round {reached(own.reaching, own.rounds)}" if own else ""
        notes.append(f"T: rounds to FedAvg's final accuracy, paired by seed, median{null}")
    if any(None in cell.reaching for cell in found):
        notes.append("(k/n): k of n seeds reached it, and the others count in the median as more than all rounds")
    if any(cell.stands_out for cell in found):
        notes.append("†: larger than both spreads")
    if any(cell.far_off for cell in found):
        notes.append(f"⚑: our FedAvg is more than {FAR_OFF:g} from the published figure")
    if picked and any(cell.method == THEIRS for cell in found):
        notes.append(
            "The split was picked from five for its FedAvg; what its client 8 holds makes it likely the paper's own"
        )
    return notes


def _origin(column: Column, found: Sequence[Cell]) -> list[str]:
    """Card, versions, splits and seconds of the runs behind a column."""
    runs = [run for cell in found for run in cell.runs.values()]
    made = dict.fromkeys(_made(run) for run in runs)
    splits = {run.summary.seed: run.summary.split_hash for run in runs}
    alike = len(splits) > 1 and len(set(splits.values())) == 1
    shown = [f"{seed}: `{one}`" for seed, one in sorted(splits.items())]
    seconds = sum(sum(one.seconds.values()) for run in runs for one in run.rounds)
    split = f"all: `{runs[0].summary.split_hash}`" if alike else ", ".join(shown)
    return [column.title, "; ".join(made), split, f"{seconds:,.0f}"]


def _made(run: Result) -> str:
    header = run.provenance
    commit = [f"commit {header['commit']}"] if header.get("commit") else []
    return " · ".join([header.get("card") or header.get("device", ""), f"torch {header.get('torch', '?')}", *commit])


def splits(runs: Runs) -> str:
    """Table 1's FedAvg on each of five splits: its accuracy, less the published, and less that of the one picked."""
    base, published = CIFAR10.setting(method=THEIRS), CIFAR10.published[THEIRS].accuracy
    found = {split: runs.percent(base.replace(partition_seed=split), SEEDS) for split in LOOKED_AT}
    picked = base.partition_seed
    rows = [
        [
            f"{split}{' (picked)' if split == picked else ''}",
            spread(list(own.values())),
            f"{fmean(own.values()) - published:+.2f}",
            "–" if split == picked else counted(paired(found[picked], own)),
        ]
        for split, own in found.items()
        if own
    ]
    heads = ("split", "FedAvg %", f"less the published {published:.2f}", "less the one picked [95 %] (seeds)")
    return table(heads, rows)
