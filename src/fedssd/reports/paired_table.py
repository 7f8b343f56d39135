"""The table of ``fedssd bench``: a method against others on the same seeds, difference by difference."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import fmean, stdev

from fedssd.reports.charts import NAMES
from fedssd.reports.statistics import pair
from fedssd.reports.table import Cell, Column, Table

COLUMNS = (
    Column("method", ("method",), left=True),
    Column(names=("seeds",)),
    Column("accuracy %", ("accuracy", "std")),
    Column("yours less it, points", ("gain",)),
    Column("95 % interval", ("low", "high")),
    Column("seeds"),
)
NOTES = (
    "mean ± standard deviation; differences are paired by seed (the same split and start)",
    "intervals by Student's t, each for itself; *: significant at 95 %; none where all seeds gain the same",
)


BySeed = Mapping[int, float]  # accuracies in percent


def paired_table(name: str, ours: BySeed, rivals: Mapping[str, BySeed]) -> Table:
    """Build the table of ours and, by method, of the rivals' on the seeds that both have; values are in percent."""
    rows = [_row(Cell(name, (name,)), ours.values(), Cell(), Cell())]
    for method, theirs in rivals.items():
        less, interval = pair(ours, theirs), Cell("–")
        if less.low is not None and less.high is not None:
            text = f"{less.low:+.2f} to {less.high:+.2f}{' *' if less.clear else ''}"
            interval = Cell(text, (less.low, less.high))
        gain = Cell(f"{round(less.mean, 2) + 0.0:+.2f}", (less.mean,))
        rows.append(_row(_named(method), [theirs[seed] for seed in less.seeds], gain, interval))
    return Table(COLUMNS, rows, NOTES)


def _row(method: Cell, accuracies: Collection[float], gain: Cell, interval: Cell) -> list[Cell]:
    seeds = len(accuracies)
    return [method, Cell(values=(seeds,)), _accuracy(accuracies), gain, interval, Cell(str(seeds))]


def _named(method: str) -> Cell:
    return Cell(NAMES.get(method, method), (method,))


def _accuracy(values: Collection[float]) -> Cell:
    mean, std = fmean(values), stdev(values) if len(values) > 1 else None
    return Cell(f"{mean:.2f}" + ("" if std is None else f" ± {std:.2f}"), (mean, std))


def table_for_a_paper(name: str, ours: BySeed, rivals: Mapping[str, BySeed]) -> Table:
    """Build the same in three columns, as papers have it: ours last, differences with half of their interval."""
    rows = []
    for method, theirs in rivals.items():
        less = pair(ours, theirs)
        gain = f"{less.mean:+.2f}" + ("" if less.half_width is None else f" ± {less.half_width:.2f}")
        rows.append([_named(method), _accuracy([theirs[seed] for seed in less.seeds]), Cell(gain)])
    rows.append([Cell(name), _accuracy(ours.values()), Cell()])
    columns = [Column("Method", left=True), Column("Accuracy (%)"), Column("Difference")]
    return Table(columns, rows, ["paired by seed; 95 % intervals by Student's t"])
