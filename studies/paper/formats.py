"""How tables write a figure: mean and spread, a paired difference with its interval; what was not run says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev

from fedssd import Difference, Result

NOT_RUN = "not run yet"
By = Mapping[int, float]  # percent, by seed


def paired(theirs: By, ours: By) -> Difference:
    """Ours less theirs, on the seeds that both have."""
    seeds = tuple(sorted(theirs.keys() & ours.keys()))
    return Difference(seeds, tuple(ours[seed] - theirs[seed] for seed in seeds))


def spread(values: Sequence[float], digits: int | None = None) -> str:
    """Mean ± standard deviation (seeds): to a hundredth, or to so many significant digits."""
    if not values:
        return NOT_RUN
    figures = [fmean(values), *([stdev(values)] if len(values) > 1 else [])]
    if digits is None:
        written = [f"{figure:.2f}" for figure in figures]
    else:
        written = [_significant(figure, digits - place) for place, figure in enumerate(figures)]
    return f"{' ± '.join(written)} ({len(values)})"


def _significant(value: float, digits: int) -> str:
    """To so many significant digits, but never short of the units: 12, not 1e+01."""
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def interval(found: Difference) -> str:
    """A paired difference with its 95 % interval; a star where zero is outside it."""
    if not found.n:
        return "–"
    mean = f"{round(found.mean, 2) + 0.0:+.2f}"
    if found.low is None or found.high is None:
        return mean
    return f"{mean} [{found.low:+.2f}, {found.high:+.2f}]{' *' if found.clear else ''}"


def counted(found: Difference) -> str:
    """The same, and on how many seeds it is."""
    return f"{interval(found)} ({found.n})" if found.n else NOT_RUN


def holds(found: Difference, value: float) -> bool:
    """Whether a value lies in the interval of a difference."""
    return found.low is not None and found.high is not None and found.low <= value <= found.high


def reached(first: Sequence[int | None], tried: int) -> str:
    """T: the median over seeds of the first round that reached it; None is never, which is beyond all rounds.

    ``> 90 (1/2)``: beyond 90 rounds, reached on one of two seeds; without brackets where on all.
    """
    if not first:
        return "–"
    order = sorted(tried if one is None else one for one in first)
    times = len(first) - first.count(None)
    text = f"{'> ' if times <= len(first) // 2 else ''}{median(order):g}"
    return text if times == len(first) else f"{text} ({times}/{len(first)})"


def rounds_to(ours: Mapping[int, Result], theirs: Mapping[int, Result]) -> list[int | None]:
    """Seed by seed the first round of ours with the final accuracy of theirs."""
    return [run.rounds_to(last(theirs[seed])) for seed, run in ours.items() if seed in theirs]


def last(run: Result) -> float:
    """The accuracy of the last round that was evaluated."""
    return next((one.accuracy for one in reversed(run.rounds) if one.accuracy is not None), 0.0)


def code(text: str) -> str:
    """A recipe key, a label, as a page shows code."""
    return f"`{text}`"


def chosen_mark(values: Sequence[object], value: object) -> str:
    """Behind the value of a grid that was chosen; at the grid's edge a better one may lie beyond."""
    return " **chosen**" + (", at the grid's edge" if value in (values[0], values[-1]) else "")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table of Markdown, its first columns, ``left`` of them, to the left."""
    rules = ["---" if place < left else "---:" for place in range(len(heads))]
    lines = [" | ".join(cell.replace("|", r"\|") for cell in row) for row in (heads, rules, *rows)]  # as in |D_i|
    return "\n".join([*(f"| {line} |" for line in lines), ""])
