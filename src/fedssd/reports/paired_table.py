"""The table of ``fedssd bench``: a method against others on the same seeds, difference by difference."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from fedssd.reports.charts import NAMES
from fedssd.reports.statistics import Rival
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


def paired_table(name: str, ours: Sequence[float], rivals: Sequence[Rival]) -> Table:
    """Build the table from our accuracies in percent and the rivals; values are in percent and points."""
    rows = [_row(Cell(name, (name,)), ours, Cell(), Cell())]
    for rival in rivals:
        mean, half = fmean(rival.gains), rival.half_width
        interval = Cell("–")
        if half is not None:
            text = f"{mean - half:+.2f} to {mean + half:+.2f}{' *' if rival.clear else ''}"
            interval = Cell(text, (mean - half, mean + half))
        gain = Cell(f"{round(mean, 2) + 0.0:+.2f}", (mean,))
        rows.append(_row(_named(rival), rival.accuracies, gain, interval))
    return Table(COLUMNS, rows, NOTES)


def _row(method: Cell, accuracies: Sequence[float], gain: Cell, interval: Cell) -> list[Cell]:
    seeds = len(accuracies)
    return [method, Cell(values=(seeds,)), _accuracy(accuracies), gain, interval, Cell(str(seeds))]


def _named(rival: Rival) -> Cell:
    return Cell(NAMES.get(rival.method, rival.method), (rival.method,))


def _accuracy(values: Sequence[float]) -> Cell:
    mean, std = fmean(values), stdev(values) if len(values) > 1 else None
    return Cell(f"{mean:.2f}" + ("" if std is None else f" ± {std:.2f}"), (mean, std))


def table_for_a_paper(name: str, ours: Sequence[float], rivals: Sequence[Rival]) -> Table:
    """Build the same in three columns, as papers have it: ours last, differences with half of their interval."""
    rows = []
    for rival in rivals:
        mean, half = fmean(rival.gains), rival.half_width
        gain = f"{mean:+.2f}" + ("" if half is None else f" ± {half:.2f}")
        rows.append([_named(rival), _accuracy(rival.accuracies), Cell(gain)])
    rows.append([Cell(name), _accuracy(ours), Cell()])
    columns = [Column("Method", left=True), Column("Accuracy (%)"), Column("Difference")]
    return Table(columns, rows, ["paired by seed; 95 % intervals by Student's t"])
