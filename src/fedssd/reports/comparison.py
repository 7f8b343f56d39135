"""The comparison table: results in, rows out, and three ways to write them down. Pure functions."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import Any, NamedTuple, Protocol

from fedssd.reports import gains, markdown
from fedssd.reports.statistics import Rival, pair, student_t

BASELINE = "fedavg"
WIDTH = 100  # columns of a terminal; what is wider goes on below
Value = float | None  # None: not measured, or never reached


class Outcome(Protocol):
    """What the report needs of a run."""

    @property
    def rounds(self) -> list[dict[str, Any]]: ...

    @property
    def summary(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Column:
    """One column: what is measured, how it is printed, and which way is better."""

    key: str
    heading: tuple[str, str]
    digits: int
    scale: float = 1.0
    better: int = 1  # 1: more is better, −1: less is better, 0: neither by itself
    spread: bool = False
    median: bool = False  # over all seeds, where one that has no value yet counts as beyond the others


COLUMNS = (
    Column("final_acc", ("final", "accuracy %"), 2, 100, spread=True),
    Column("best_acc", ("best", "%"), 2, 100),
    Column("rounds_to_baseline", ("rounds to", "FedAvg's"), 1, better=-1, median=True),
    Column("local_acc", ("local", "accuracy %"), 2, 100),
    Column("forgetting", ("forgetting", "gap, points"), 2, 100, better=0),  # what learns nothing forgets nothing
    Column("bytes_up", ("up", "MB"), 1, 1e-6, better=-1),
    Column("bytes_down", ("down", "MB"), 1, 1e-6, better=-1),
)


class Reached(NamedTuple):
    """After how many rounds something was reached: the median over seeds."""

    rounds: float
    beyond: bool  # the median falls on a seed that never reached it, and is more than these rounds
    times: int
    seeds: int

    def __str__(self) -> str:
        """``> 90 (1/2)``: beyond 90 rounds, reached on one of two seeds; without brackets where on all."""
        text = f"{'> ' if self.beyond else ''}{self.rounds:g}"
        return text if self.times == self.seeds else f"{text} ({self.times}/{self.seeds})"


def reached(first: Sequence[float | None], tried: Sequence[float]) -> Reached | None:
    """By seed the first round that reached it, None for never, and the rounds there were; never is beyond them all.

    Means over the seeds that reached it would flatter whoever fails on the slow ones.
    """
    if not first:
        return None
    order = sorted(((one is None, all_ if one is None else one) for one, all_ in zip(first, tried, strict=True)))
    middle = [order[(len(order) - 1) // 2], order[len(order) // 2]]
    times = sum(one is not None for one in first)
    return Reached(fmean(number for _, number in middle), any(never for never, _ in middle), times, len(first))


@dataclass(frozen=True)
class Row:
    """A method's values, seed by seed in the table's order of seeds."""

    method: str
    values: Mapping[str, Sequence[Value]]
    tried: Sequence[int | None] = ()  # the rounds each seed had for FedAvg's accuracy, None where that is not known
    gain: Rival | None = None  # its final accuracies beside FedAvg's, None where there is no other FedAvg

    def mean(self, key: str) -> Value:
        """The mean over the seeds that have a value."""
        there = self._there(key)
        return fmean(there) if there else None

    def std(self, key: str) -> Value:
        """The sample standard deviation; needs two seeds."""
        there = self._there(key)
        return stdev(there) if len(there) > 1 else None

    def missing(self, key: str) -> int:
        """Seeds without a value."""
        return len(self.values[key]) - len(self._there(key))

    def reached(self, key: str) -> Reached | None:
        """The median of a number of rounds over the seeds that could be measured."""
        known = [(one, all_) for one, all_ in zip(self.values[key], self.tried, strict=True) if all_ is not None]
        return reached([one for one, _ in known], [all_ for _, all_ in known])

    def _there(self, key: str) -> list[float]:
        return [value for value in self.values[key] if value is not None]


@dataclass(frozen=True)
class Table:
    """Rows in the order the methods were given, over the same seeds."""

    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    diverged: tuple[str, ...] = ()  # runs whose training broke down
    dropped: Mapping[str, int] = field(default_factory=dict)  # updates left out of the average, by method

    @property
    def columns(self) -> list[Column]:
        """The columns somebody has a value in."""
        return [column for column in COLUMNS if any(row.mean(column.key) is not None for row in self.rows)]

    @property
    def gains(self) -> dict[str, Rival]:
        """By method its difference to FedAvg, where there is one."""
        return {row.method: row.gain for row in self.rows if row.gain is not None}

    @property
    def counts_rounds(self) -> bool:
        """Whether it has a column of rounds to FedAvg's."""
        return any(column.median for column in self.columns)


def first_reaching(rounds: Sequence[Mapping[str, Any]], target: float) -> int | None:
    """The first round whose global accuracy is at least the target."""
    evaluated = (line for line in rounds if "global" in line)
    return next((line["round"] for line in evaluated if line["global"]["acc"] >= target), None)


def tabulate(results: Sequence[Outcome], baselines: Mapping[str, str] | None = None) -> Table:
    """The table of these runs; rounds to FedAvg's final accuracy and gains over it are paired seed by seed.

    ``baselines`` names for each method the one that is its FedAvg; where it names none, nothing is measured.
    """
    runs = {(run.summary["method"], run.summary["seed"]): run for run in results}
    seeds = tuple(sorted({seed for _, seed in runs}))
    accuracies: dict[str, dict[int, float]] = {}  # in percent
    for (method, seed), run in runs.items():
        accuracies.setdefault(method, {})[seed] = 100 * run.summary["final"]["acc"]
    rows = []
    for method in accuracies:
        base = BASELINE if baselines is None else baselines.get(method)
        pairs = [(runs.get((method, seed)), runs.get((base, seed))) for seed in seeds]
        measured = [_measure(run, baseline) for run, baseline in pairs]
        tried = [run.rounds[-1]["round"] if run and run.rounds and baseline else None for run, baseline in pairs]
        values = {column.key: [found.get(column.key) for found in measured] for column in COLUMNS}
        gain = pair(BASELINE, accuracies.get(base or "", {}), accuracies[method])
        rows.append(Row(method, values, tried, gain if gain.gains and base != method else None))
    lost = [f"{run.summary['method']} seed {run.summary['seed']}" for run in results if "diverged" in run.summary]
    dropped = Counter[str]()
    for run in results:
        dropped[run.summary["method"]] += run.summary.get("dropped", 0)
    return Table(tuple(rows), seeds, tuple(lost), +dropped)


def _measure(run: Outcome | None, baseline: Outcome | None) -> dict[str, Value]:
    if run is None:
        return {}
    summary = run.summary
    target = baseline.summary["final"]["acc"] if baseline else None
    return {
        "final_acc": summary["final"]["acc"],
        "best_acc": summary["best"]["acc"],
        "rounds_to_baseline": None if target is None else first_reaching(run.rounds, target),
        "local_acc": summary["final"].get("local_acc"),
        "forgetting": summary["final"].get("forgetting"),
        "bytes_up": summary["bytes_up"],
        "bytes_down": summary["bytes_down"],
    }


def outstanding(table: Table, column: Column) -> Row | None:
    """The best row, if the 95 % interval of its paired difference to every other, by Student's t, leaves out zero."""
    if column.better == 0 or len(table.rows) < 2 or len(table.seeds) < 2:
        return None
    if any(row.missing(column.key) for row in table.rows):  # a seed that is missing cannot be compared
        return None
    best = max(table.rows, key=lambda row: column.better * (_middle(row, column) or 0.0))
    others = [row for row in table.rows if row is not best]
    return best if all(_clearly_better(best, other, column) for other in others) else None


def _middle(row: Row, column: Column) -> float | None:
    """What a cell prints of its seeds, none of which is missing."""
    values = [value for value in row.values[column.key] if value is not None]
    return median(values) if column.median else row.mean(column.key)


def _clearly_better(best: Row, other: Row, column: Column) -> bool:
    leads = [
        column.better * ((a or 0.0) - (b or 0.0))
        for a, b in zip(best.values[column.key], other.values[column.key], strict=True)
    ]
    half_width = student_t(len(leads) - 1) * stdev(leads) / math.sqrt(len(leads))
    return fmean(leads) > half_width and _printed(best, column) != _printed(other, column)


def _printed(row: Row, column: Column) -> str:
    """One cell: the mean, its spread, and on how many seeds it could be measured; of rounds the median."""
    if column.median:
        found = row.reached(column.key)
        return "–" if found is None else str(found)
    mean, std, missing = row.mean(column.key), row.std(column.key), row.missing(column.key)
    if mean is None:
        return "–"
    text = f"{round(column.scale * mean, column.digits) + 0.0:.{column.digits}f}"  # never −0
    if column.spread and std is not None:
        text += f" ± {column.scale * std:.{column.digits}f}"
    seeds = len(row.values[column.key])
    return f"{text} ({seeds - missing}/{seeds})" if missing else text


def headings(table: Table) -> list[tuple[str, str]]:
    """Of every column the two lines of its heading."""
    heads = [("", "method"), *(column.heading for column in table.columns)]
    return [*heads[:2], gains.HEADING, *heads[2:]] if table.gains else heads


def cells(table: Table, emphasise: Callable[[str], str]) -> list[list[str]]:
    """Every row as text, the outstanding values emphasised."""
    best = {column.key: outstanding(table, column) for column in table.columns}
    shown = gains.cells(table.gains, len(table.seeds))

    def cell(row: Row, column: Column) -> str:
        text = _printed(row, column)
        return emphasise(text) if best[column.key] is row else text

    def line(row: Row) -> list[str]:
        texts = [row.method, *(cell(row, column) for column in table.columns)]
        return [*texts[:2], shown.get(row.method, ""), *texts[2:]] if shown else texts

    return [line(row) for row in table.rows]


def remarks(table: Table) -> list[str]:
    """What a reader must know to read the table."""
    count = len(table.seeds)
    lost = [f"diverged, so that its figures mean nothing: {name}" for name in table.diverged]
    if table.dropped:
        counts = ", ".join(f"{method} {number}" for method, number in table.dropped.items())
        lost.append(f"updates that did not go into the average: {counts}")
    lines = [_about_rounds(table)] if table.counts_rounds else []
    lines += gains.remarks(table.gains, count)
    if count < 2:
        return ["1 seed: no spread is known, so no value stands out", *lines, *lost]
    if any(outstanding(table, column) for column in table.columns):
        differs = "of its paired difference to every other the 95 % interval (Student's t) leaves out zero"
        lines.insert(0, f"marked: best in its column, and {differs}")
    return [f"mean ± standard deviation over {count} seeds", *lines, *lost]


def _about_rounds(table: Table) -> str:
    """How the column of rounds counts seeds."""
    median = "rounds to FedAvg's final accuracy: median"
    if not any(row.missing(column.key) for row in table.rows for column in table.columns if column.median):
        return median
    return f"{median}, a seed that never reached it counting as more than all rounds; (k/n): k of n seeds reached it"


def as_text(table: Table, colour: bool = False) -> str:
    """Aligned columns for a terminal; an outstanding value is bold, or starred where there is no bold."""
    start, end = ("\x1b[1m", "\x1b[0m") if colour else ("*", "")
    heads = headings(table)
    over, under = ([head[line] for head in heads] for line in (0, 1))
    columns = list(zip(over, under, *cells(table, lambda text: f"{start}{text}{end}"), strict=True))
    return "\n\n".join(_aligned(block) for block in _blocks(columns))


def _blocks(columns: Sequence[Sequence[str]]) -> list[list[Sequence[str]]]:
    """The columns in as many blocks as the width takes, each with the names in front."""
    names, *others = columns
    blocks = [[names]]
    for column in others:
        if sum(_width(one) + 2 for one in [*blocks[-1], column]) - 2 > WIDTH and len(blocks[-1]) > 1:
            blocks.append([names])
        blocks[-1].append(column)
    return blocks


def _width(column: Sequence[str]) -> int:
    return max(map(_visible, column))


def _aligned(columns: Sequence[Sequence[str]]) -> str:
    """Names and gains to the left, other numbers to the right."""
    widths = [_width(column) for column in columns]
    left = [place == 0 or column[0] == gains.HEADING[0] for place, column in enumerate(columns)]
    rows = ["  ".join(map(_padded, texts, widths, left)).rstrip() for texts in zip(*columns, strict=True)]
    return "\n".join([*rows[:2], "  ".join("─" * width for width in widths), *rows[2:]])


def _visible(text: str) -> int:
    return len(text.replace("\x1b[1m", "").replace("\x1b[0m", ""))


def _padded(text: str, width: int, left: bool) -> str:
    space = " " * (width - _visible(text))
    return text + space if left else space + text


def as_markdown(table: Table) -> str:
    """The same table for a page."""
    heads = [" ".join(head).strip() for head in headings(table)]
    shown = markdown.table(heads, cells(table, lambda cell: f"**{cell}**"))
    return "\n".join([shown, "; ".join(remarks(table)).replace("marked:", "bold:") + ".", ""])


def as_csv(table: Table) -> str:
    """Means and spreads for a spreadsheet: accuracies as fractions, traffic in bytes, empty where nothing is known.

    Of rounds the median, empty where that is beyond the rounds there were, and on how many seeds it was reached. Of the
    gain over FedAvg the points, the ends of its interval, and its p-value alone and by Holm among all in the table.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = [
        f"{column.key}_{what}"
        for column in COLUMNS
        for what in (("median", "reached") if column.median else ("mean", "std"))
    ]
    extra = gains.numbers(table.gains)
    writer.writerow(["method", "seeds", *names, *(gains.NUMBERS if extra else [])])
    for row in table.rows:
        numbers = [number for column in COLUMNS for number in _numbers(row, column)]
        numbers += extra.get(row.method, [None] * len(gains.NUMBERS)) if extra else []
        writer.writerow([row.method, len(table.seeds), *("" if n is None else f"{n:.10g}" for n in numbers)])
    return file.getvalue()


def _numbers(row: Row, column: Column) -> tuple[Value, Value]:
    if not column.median:
        return row.mean(column.key), row.std(column.key)
    found = row.reached(column.key)
    return (None, None) if found is None else (None if found.beyond else found.rounds, found.times)
