"""The comparison table: results in, a table out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, stdev
from typing import NamedTuple

from fedssd.reports.statistics import Difference, holm, pair, student_t
from fedssd.reports.table import Cell, Column, Table
from fedssd.simulation.result import Result

BASELINE = "fedavg"
Value = float | None  # None: not measured, or never reached


@dataclass(frozen=True)
class Measure:
    """One column: what is measured, how it is printed, and which way is better."""

    key: str
    heading: str
    digits: int
    scale: float = 1.0
    better: int = 1  # 1: more is better, −1: less is better, 0: neither by itself
    spread: bool = False
    median: bool = False  # over all seeds, where one that has no value yet counts as beyond the others

    @property
    def names(self) -> tuple[str, str]:
        """What its two numbers are called."""
        first, second = ("median", "reached") if self.median else ("mean", "std")
        return f"{self.key}_{first}", f"{self.key}_{second}"


MEASURES = (
    Measure("final_acc", "final\naccuracy %", 2, 100, spread=True),
    Measure("best_acc", "best\n%", 2, 100),
    Measure("rounds_to_baseline", "rounds to\nFedAvg's", 1, better=-1, median=True),
    Measure("local_acc", "local\naccuracy %", 2, 100),
    Measure("forgetting", "forgetting\ngap, points", 2, 100, better=0),  # what learns nothing forgets nothing
    Measure("bytes_up", "up\nMB", 1, 1e-6, better=-1),
    Measure("bytes_down", "down\nMB", 1, 1e-6, better=-1),
)

GAIN = Column(
    "gain over FedAvg, points\n[95 % interval], paired by seed",
    ("gain_points", "gain_low", "gain_high", "gain_p", "gain_p_holm"),
    left=True,
)
SURVIVES = "†"


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
    gain: Difference | None = None  # of its final accuracies to FedAvg's, None where there is no other FedAvg

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
class Comparison:
    """Rows in the order the methods were given, over the same seeds."""

    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    diverged: tuple[str, ...] = ()  # runs whose training broke down
    dropped: Mapping[str, int] = field(default_factory=dict)  # updates left out of the average, by method

    @property
    def measures(self) -> list[Measure]:
        """The measures somebody has a value in."""
        return [measure for measure in MEASURES if any(row.mean(measure.key) is not None for row in self.rows)]

    @property
    def gains(self) -> dict[str, Difference]:
        """By method its difference to FedAvg, where there is one."""
        return {row.method: row.gain for row in self.rows if row.gain is not None}

    @property
    def counts_rounds(self) -> bool:
        """Whether it has a column of rounds to FedAvg's."""
        return any(measure.median for measure in self.measures)


def percent(result: Result) -> float:
    """The global model's accuracy after the last evaluated round, in percent; NaN where there is none."""
    return 100 * (math.nan if result.summary.accuracy is None else result.summary.accuracy)


def by_method(results: Sequence[Result], baselines: Mapping[str, str] | None = None) -> Comparison:
    """The values of these runs; rounds to FedAvg's final accuracy and gains over it are paired seed by seed.

    ``baselines`` names for each method the one that is its FedAvg; where it names none, nothing is measured.
    """
    runs = {(run.summary.method, run.summary.seed): run for run in results}
    seeds = tuple(sorted({seed for _, seed in runs}))
    accuracies: dict[str, dict[int, float]] = {}  # in percent
    for (method, seed), run in runs.items():
        accuracies.setdefault(method, {})[seed] = percent(run)
    rows = []
    for method in accuracies:
        base = BASELINE if baselines is None else baselines.get(method)
        pairs = [(runs.get((method, seed)), runs.get((base or "", seed))) for seed in seeds]
        measured = [_measure(run, baseline) for run, baseline in pairs]
        tried = [run.rounds[-1].number if run and run.rounds and baseline else None for run, baseline in pairs]
        values = {measure.key: [found.get(measure.key) for found in measured] for measure in MEASURES}
        theirs = accuracies.get(base, {}) if base and base != method else {}
        gain = pair(accuracies[method], theirs) if theirs.keys() & accuracies[method].keys() else None
        rows.append(Row(method, values, tried, gain))
    lost = [f"{run.summary.method} seed {run.summary.seed}" for run in results if run.summary.diverged is not None]
    dropped = Counter[str]()
    for run in results:
        dropped[run.summary.method] += run.summary.dropped
    return Comparison(tuple(rows), seeds, tuple(lost), +dropped)


def _measure(run: Result | None, baseline: Result | None) -> dict[str, Value]:
    if run is None:
        return {}
    summary = run.summary
    target = baseline.summary.accuracy if baseline else None
    return {
        "final_acc": summary.accuracy,
        "best_acc": summary.best_accuracy,
        "rounds_to_baseline": None if target is None else run.rounds_to(target),
        "local_acc": summary.local_accuracy,
        "forgetting": summary.forgetting,
        "bytes_up": summary.bytes_up,
        "bytes_down": summary.bytes_down,
    }


def outstanding(comparison: Comparison, measure: Measure) -> Row | None:
    """The best row, if the 95 % interval of its paired difference to every other, by Student's t, excludes zero."""
    if measure.better == 0 or len(comparison.rows) < 2 or len(comparison.seeds) < 2:
        return None
    if any(row.missing(measure.key) for row in comparison.rows):  # a seed that is missing cannot be compared
        return None
    best = max(comparison.rows, key=lambda row: measure.better * (_middle(row, measure) or 0.0))
    others = [row for row in comparison.rows if row is not best]
    return best if all(_clearly_better(best, other, measure) for other in others) else None


def _middle(row: Row, measure: Measure) -> float | None:
    """What a cell prints of its seeds, none of which is missing."""
    values = [value for value in row.values[measure.key] if value is not None]
    return median(values) if measure.median else row.mean(measure.key)


def _clearly_better(best: Row, other: Row, measure: Measure) -> bool:
    leads = [
        measure.better * ((a or 0.0) - (b or 0.0))
        for a, b in zip(best.values[measure.key], other.values[measure.key], strict=True)
    ]
    half_width = student_t(len(leads) - 1) * stdev(leads) / math.sqrt(len(leads))
    return fmean(leads) > half_width and _printed(best, measure) != _printed(other, measure)


def _printed(row: Row, measure: Measure) -> str:
    """One cell: the mean, its spread, and on how many seeds it could be measured; of rounds the median."""
    if measure.median:
        found = row.reached(measure.key)
        return "–" if found is None else str(found)
    mean, std, missing = row.mean(measure.key), row.std(measure.key), row.missing(measure.key)
    if mean is None:
        return "–"
    text = f"{round(measure.scale * mean, measure.digits) + 0.0:.{measure.digits}f}"  # never −0
    if measure.spread and std is not None:
        text += f" ± {measure.scale * std:.{measure.digits}f}"
    seeds = len(row.values[measure.key])
    return f"{text} ({seeds - missing}/{seeds})" if missing else text


def tabulate(results: Sequence[Result], baselines: Mapping[str, str] | None = None, against: str = BASELINE) -> Table:
    """The comparison table of these runs: a row for every method, the outstanding values marked as the best.

    ``against`` is what the words of the table call the baseline.

    ``baselines`` names for each method the one that is its FedAvg. In the CSV accuracies are fractions, traffic is in
    bytes, and of rounds there is the median, unknown where it is beyond the rounds there were, and on how many seeds it
    was reached.
    """
    comparison = by_method(results, baselines)
    measured, gained = comparison.measures, gain_cells(comparison.gains, len(comparison.seeds))
    best = {measure.key: outstanding(comparison, measure) for measure in measured}

    def line(row: Row) -> list[Cell]:
        cells = [Cell(_printed(row, one), _numbers(row, one), best.get(one.key) is row) for one in MEASURES]
        gain = [gained.get(row.method, Cell())] if gained else []
        return [Cell(row.method, (row.method,)), Cell(values=(len(comparison.seeds),)), cells[0], *gain, *cells[1:]]

    columns = [Column(one.heading if one in measured else None, one.names) for one in MEASURES]
    names = [Column("method", ("method",), left=True), Column(names=("seeds",))]
    columns = [*names, columns[0], *([GAIN] if gained else []), *columns[1:]]
    found = Table(columns, [line(row) for row in comparison.rows], remarks(comparison))
    if against == BASELINE:
        return found
    renamed = [replace(one, heading=one.heading and one.heading.replace("FedAvg", against)) for one in columns]
    return replace(found, columns=renamed, notes=[note.replace("FedAvg", against) for note in found.notes])


def remarks(comparison: Comparison) -> list[str]:
    """What a reader must know to read the table."""
    count = len(comparison.seeds)
    lost = [f"diverged, so that its figures mean nothing: {name}" for name in comparison.diverged]
    if comparison.dropped:
        counts = ", ".join(f"{method} {number}" for method, number in comparison.dropped.items())
        lost.append(f"updates that did not go into the average: {counts}")
    lines = [_about_rounds(comparison)] if comparison.counts_rounds else []
    lines += _about_gains(comparison.gains, count)
    if count < 2:
        return ["1 seed: no spread is known, so no value stands out", *lines, *lost]
    if any(outstanding(comparison, measure) for measure in comparison.measures):
        differs = "of its paired difference to every other the 95 % interval (Student's t) excludes zero"
        lines.insert(0, f"marked: best in its column, and {differs}")
    return [f"mean ± standard deviation over {count} seeds", *lines, *lost]


def _about_rounds(comparison: Comparison) -> str:
    """How the column of rounds counts seeds."""
    median = "rounds to FedAvg's final accuracy: median"
    if not any(
        row.missing(measure.key) for row in comparison.rows for measure in comparison.measures if measure.median
    ):
        return median
    return f"{median}, a seed that never reached it counting as more than all rounds; (k/n): k of n seeds reached it"


def _numbers(row: Row, measure: Measure) -> tuple[Value, Value]:
    if not measure.median:
        return row.mean(measure.key), row.std(measure.key)
    found = row.reached(measure.key)
    return (None, None) if found is None else (None if found.beyond else found.rounds, found.times)


def gain_cells(gains: Mapping[str, Difference], seeds: int) -> dict[str, Cell]:
    """What stands in the column, by method, in a table of so many seeds.

    The values are the mean and the ends of its interval, in points, and its p-value alone and by Holm.
    """
    family = holm(gains) if gains else {}

    def cell(name: str, gain: Difference) -> Cell:
        interval = "–" if gain.low is None or gain.high is None else f"{_signed(gain.low)}, {_signed(gain.high)}"
        measured = f" ({gain.n}/{seeds})" if gain.n < seeds else ""
        doubt = "" if gain.low is None or gain.clear else " not significant"
        text = f"{_signed(gain.mean)} [{interval}]{measured}{doubt}"
        if gain.low is None:
            return Cell(text, (gain.mean, None, None, None, None))
        mark = f" {SURVIVES}" if len(gains) > 1 and family[name].clear else ""
        return Cell(text + mark, (gain.mean, gain.low, gain.high, gain.p, family[name].p))

    return {name: cell(name, gain) for name, gain in gains.items()}


def _signed(points: float) -> str:
    return f"{round(points, 2) + 0.0:+.2f}"  # never −0


def _about_gains(gains: Mapping[str, Difference], seeds: int) -> list[str]:
    """What a gain is, and which ones are more than chance."""
    if not gains:
        return []
    lines = ["gain over FedAvg: points of final accuracy, 95 % interval (Student's t), paired by seed"]
    if seeds < 2:
        return [*lines, "one seed has no interval: whether a gain is more than chance is not known"]
    measured = [gain for gain in gains.values() if gain.half_width is not None]
    if len(measured) < len(gains):
        lines.append("[–]: no interval, as fewer than two seeds are shared or all gain the same")
    if not all(gain.clear for gain in measured):
        lines.append("not significant: the 95 % interval holds zero")
    if len(gains) > 1 and measured:
        survives = any(one.clear for one in holm(gains).values())
        found = f"{SURVIVES}: still significant" if survives else "none is significant"
        lines.append(f"{found} at 5 % when all {len(gains)} gains are tested together (Holm)")
    return lines
