"""What a chart shows, as plain data: names, colours, lines and matrices. plots.py draws it, and the page's script."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from fedssd.reports.comparison import percent
from fedssd.reports.grouping import Setting, halves_of, once_per_seed, pair_name
from fedssd.simulation.fields import Vector
from fedssd.simulation.result import Result, Round

INTERESTING = 0.1  # the share of rounds at the start that may fall out of the picture
FLAT = 1 / 3  # of the height: where all later rounds have less, the first do fall out
DRAWN = 8  # lines at first: more are mud
DASHES = 4  # kinds of lines, for those that share a colour

# Okabe and Ito's colours, for light and for dark backgrounds; FedAvg is the grey everything is measured against.
COLOURS = {
    "fedavg": ("#6b7280", "#a3abb8"),
    "fedprox": ("#56b4e9", "#7cc7f2"),
    "fedcurv": ("#009e73", "#22b88d"),
    "moon": ("#cc79a7", "#de97bf"),
    "fedntd": ("#e69f00", "#f0b429"),
    "fedcad": ("#0072b2", "#3f97d6"),
    "fedssd": ("#d55e00", "#ff7a1a"),
}
SPARE = (("#7a5195", "#b08fd0"), ("#8c6d1f", "#c9a84a"), ("#2f4b4f", "#8fb3b8"), ("#a8324a", "#e8788c"))
NAMES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedcurv": "FedCurv",
    "moon": "MOON",
    "fedntd": "FedNTD",
    "fedcad": "FedCAD",
    "fedssd": "FedSSD",
}
HERO = "fedssd"


@dataclass(frozen=True)
class Line:
    """Values over something: a line, its spread as a band around it, or dots."""

    name: str
    x: Sequence[float]
    y: Sequence[float]  # NaN where there is no value
    spread: Sequence[float] = ()  # sample standard deviation; none with one seed
    colour: str = COLOURS["fedavg"][0]
    dash: int = 0  # which of the kinds of lines, or of dots
    bold: bool = False
    dots: bool = False
    joined: bool = True  # by a line


@dataclass(frozen=True)
class Matrix:
    """Values by what goes down and what goes across: the stronger the colour, the more."""

    values: Sequence[Sequence[float]]  # [down][across]
    full: float  # the value that has the full colour
    unit: str  # of the scale
    first: int = 0  # the number of what stands at the left
    names: Sequence[str] = ()  # of rows and columns, where both are classes; then numbers stand in the cells


@dataclass(frozen=True)
class Panel:
    """One plot: lines or a matrix."""

    title: str
    lines: Sequence[Line] = ()
    matrix: Matrix | None = None
    across: str = "round"
    up: str = ""
    low: float | None = None  # what is seen of the values; all if None
    high: float | None = None
    note: str = ""  # beside the title
    diagonal: bool = False  # where both axes have the same value
    straight: float | None = None  # 0 is marked; within ± so much the axis is straight, beyond it logarithmic


@dataclass(frozen=True)
class Chart:
    """One or several plots that are read together."""

    title: str
    panels: Sequence[Panel]
    note: str = ""
    columns: int = 2  # panels side by side on a wide page


@dataclass(frozen=True)
class Series:
    """The runs of a method on several seeds, with the name and the colours they have in every chart."""

    id: str
    name: str
    light: str
    dark: str
    records: Sequence[Result]
    dash: int = 0
    leads: str | None = None  # the pair of halves whose line to look at first it is
    drawn: bool = True  # at first; a page with many lines begins with some

    def line(self, curve: Curve) -> Line:
        """Draw a curve of it as a line."""
        bold, spread = HERO in (self.id, self.leads), curve.spread if any(curve.spread) else ()
        return Line(self.name, curve.rounds, curve.mean, spread, self.light, self.dash, bold)


@dataclass(frozen=True)
class Curve:
    """Mean and sample standard deviation over seeds, round by round."""

    rounds: tuple[int, ...]
    mean: tuple[float, ...]
    spread: tuple[float, ...]  # 0 with one seed


def by_method(results: Sequence[Result]) -> list[Series]:
    """Make a series of each method, in the order they came, called as their papers do."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.summary.method, []).append(result)
    names = shown_names(list(groups))
    pairs = zip(groups.items(), colours(list(groups)), strict=True)
    return dashed([Series(name, names[name], *pair, runs) for (name, runs), pair in pairs])


def series_of(setting: Setting) -> list[Series]:
    """Make the series of a task: no two of those drawn at first look alike."""
    lines = {one.id: one.records for one in by_method(once_per_seed(setting.records)[0])}
    names = list(lines)
    leads = {name: pair for pair, name in _leaders(lines).items()}
    drawn = [*leads, *(name for name in _best_first(lines) if name not in leads)][:DRAWN]
    ordered = [*drawn, *(name for name in names if name not in drawn)]
    pairs = dict(zip(ordered, colours(ordered), strict=True))
    shown = shown_names(names)
    found = [Series(n, shown[n], *pairs[n], lines[n], leads=leads.get(n), drawn=n in drawn) for n in names]
    return dashed(found)


def _leaders(lines: Mapping[str, Sequence[Result]]) -> dict[str, str]:
    """Of each pair of halves, such as FedSSD at several strengths, the line to look at: the plain, else the best."""
    best = _best_first(lines)
    pairs = {name: pair_name(halves_of(runs[0])) for name, runs in lines.items()}
    return {
        pair: pair if pair in lines else next(name for name in best if pairs[name] == pair)
        for pair in dict.fromkeys(pairs.values())
    }


def _best_first(lines: Mapping[str, Sequence[Result]]) -> list[str]:
    return sorted(lines, key=lambda name: fmean(map(percent, lines[name])), reverse=True)


def dashed(series: Iterable[Series]) -> list[Series]:
    """Of those that share a colour, as there are not colours enough for all, the second is dashed, the third dotted."""
    before, found = Counter[str](), []
    for one in series:
        found.append(replace(one, dash=before[one.light] % DASHES))
        before[one.light] += 1
    return found


def shown_names(names: Sequence[str]) -> dict[str, str]:
    """Name the lines: a method as its paper does, a user's class without its file where that is clear."""
    short = {name: re.sub(r"[^+× ]*\.py:", "", name) for name in names}
    found = {}
    for name in names:
        method, _, rest = name.partition(" ")
        alone = method in NAMES and not rest.startswith("×")
        unique = list(short.values()).count(short[name]) == 1
        found[name] = f"{NAMES[method]} {rest}".strip() if alone else short[name] if unique else name
    return found


def colours(methods: Sequence[str]) -> list[tuple[str, str]]:
    """Return each method's colour on light and on dark: its own for a method of the paper, a free one otherwise."""
    strangers = [method for method in methods if method not in COLOURS]
    free = [*SPARE, *(pair for method, pair in COLOURS.items() if method not in methods)]
    return [COLOURS.get(m) or free[strangers.index(m) % len(free)] for m in methods]


def global_accuracy(one: Round) -> float | None:
    """Return the global model's test accuracy in a round, in percent."""
    return None if one.accuracy is None else 100 * one.accuracy


def local_accuracy(one: Round) -> float | None:
    """Return the mean test accuracy of the clients' models in a round, in percent."""
    return None if one.local_accuracy is None else 100 * one.local_accuracy


def curve_of(records: Iterable[Result], measure: Callable[[Round], float | None]) -> Curve | None:
    """Measure every round of every seed; rounds without a value are left out, and None is returned without any."""
    by_round: dict[int, list[float]] = {}
    for one in (one for record in records for one in record.rounds):
        value = measure(one)
        if value is not None and math.isfinite(value):
            by_round.setdefault(one.number, []).append(value)
    return mean_curve(by_round) if by_round else None


def mean_curve(by_round: Mapping[int, Sequence[float]]) -> Curve:
    """Return mean and spread of what the seeds have in each round."""
    rounds = sorted(by_round)
    spread = tuple(stdev(by_round[r]) if len(by_round[r]) > 1 else 0.0 for r in rounds)
    return Curve(tuple(rounds), tuple(fmean(by_round[r]) for r in rounds), spread)


def class_means(records: Iterable[Result], measure: Callable[[Round], Vector]) -> dict[int, list[float]]:
    """Return by round a value for each class, as the mean over the seeds that have it."""
    found: dict[int, list[Vector]] = {}
    for one in (one for record in records for one in record.rounds):
        if measure(one):
            found.setdefault(one.number, []).append(measure(one))
    return {number: [fmean(values) for values in zip(*found[number], strict=True)] for number in sorted(found)}


def worth_seeing(lines: Sequence[Line]) -> tuple[float, float]:
    """Return the least and greatest percent worth seeing; the very first rounds may start below the picture."""
    last = max(line.x[-1] for line in lines)
    later = [ends for line in lines for ends in _ends(line, INTERESTING * last)]
    low, high = max(0.0, min(a for a, _ in later)), min(100.0, max(b for _, b in later))
    room = max(0.04 * (high - low), 0.5)
    return max(0.0, low - room), min(100.0, high + room)


def all_values(lines: Sequence[Line]) -> tuple[float, float]:
    """Return the least and the greatest value, with zero where that is near."""
    ends = [ends for line in lines for ends in _ends(line)]
    low, high = min(a for a, _ in ends), max(b for _, b in ends)
    room = 0.04 * (high - low) or 1.0  # one and the same value throughout
    from_zero = low < 0.2 * high and min(min(line.y) for line in lines) >= 0
    return (min(low, 0.0) if from_zero else low - room), high + room


def later_values(lines: Sequence[Line]) -> tuple[float, float]:
    """Return the same, of the later rounds alone where beside the first they would be flat."""
    whole, last = all_values(lines), max(line.x[-1] for line in lines)
    later = [one for line in lines if (one := _after(line, INTERESTING * last)).x]
    found = all_values(later) if later else whole
    return found if found[1] - found[0] < FLAT * (whole[1] - whole[0]) else whole


def cut_off(lines: Sequence[Line], low: float, high: float) -> str:
    """Say which rounds have a mean outside the picture; nothing where none has."""
    out = {int(n) for line in lines for n, mean in zip(line.x, line.y, strict=True) if not low <= mean <= high}
    if not out:
        return ""
    return f"cut off: round{'' if len(out) == 1 else 's'} " + "–".join(map(str, sorted({min(out), max(out)})))


def seed_count(counts: Iterable[int]) -> str:
    """Return ``3 seeds``, or ``3 to 7 seeds`` where some have more."""
    found = sorted(set(counts)) or [0]
    return f"{' to '.join(map(str, dict.fromkeys((found[0], found[-1]))))} seed{'' if found == [1] else 's'}"


def _after(line: Line, first: float) -> Line:
    kept = slice(sum(number <= first for number in line.x), None)
    return replace(line, x=line.x[kept], y=line.y[kept], spread=line.spread[kept])


def _ends(line: Line, first: float = -math.inf) -> list[tuple[float, float]]:
    """Value less and plus its spread, after round ``first``."""
    spread = line.spread or [0.0] * len(line.x)
    return [(y - s, y + s) for x, y, s in zip(line.x, line.y, spread, strict=True) if x > first]


def totals(records: Iterable[Result], measure: Callable[[Round], float]) -> dict[int, float]:
    """Return the running total after each evaluated round, as the mean over seeds."""
    by_round: dict[int, list[float]] = {}
    for record in records:
        total = 0.0
        for one in record.rounds:
            total += measure(one)
            if one.accuracy is not None:
                by_round.setdefault(one.number, []).append(total)
    return {number: fmean(by_round[number]) for number in sorted(by_round)}


def traffic(one: Round) -> float:
    """Return the bytes of a round, up and down, over all clients."""
    return one.bytes_up + one.bytes_down


def train_seconds(one: Round) -> float:
    """Return what training took; evaluating the clients' models is our curiosity, not the method's cost."""
    return sum(value for name, value in one.seconds.items() if name != "evaluate")
