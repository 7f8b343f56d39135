"""Two methods on the same seeds: paired differences, their confidence intervals, and Holm's correction for several."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TypeVar

from scipy.special import stdtr, stdtrit  # not scipy.stats, which takes seconds to import

from fedssd.errors import UserError
from fedssd.simulation.result import Result

K = TypeVar("K", bound=Hashable)
LEVEL = 0.95
ALIKE = 1e-9  # points: less than the test set of any dataset can show, more than rounding


def student_t(freedom: int) -> float:
    """The t with P(|T| ≤ t) = 95 % for Student's T with so many degrees of freedom."""
    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def adjusted_by_holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """Adjust p-values for testing all of them together, by Holm's step-down method.

    Rejecting what is at most α keeps the chance of even one false rejection at α, whatever depends on what (Holm 1979).

    Args:
        p_values: one for each hypothesis of the family.

    Returns:
        The adjusted p-values under the same names, in the same order.

    Example:
        >>> adjusted_by_holm({"a": 0.01, "b": 0.04, "c": 0.03})
        {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    adjusted: dict[K, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


@dataclass(frozen=True)
class Difference:
    """What one method has more than another, seed by seed; accuracies in points."""

    seeds: tuple[int, ...]
    values: tuple[float, ...]
    level: float = LEVEL
    unit: str = "points"
    p_of_family: float | None = None  # by Holm, where it is one of several that were tested together

    @property
    def n(self) -> int:
        """How many seeds both methods have."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """The mean difference."""
        return fmean(self.values)

    @property
    def low(self) -> float | None:
        """The lower end of the confidence interval, by Student's t; None below two seeds or where all are equal."""
        half = self.half_width
        return None if half is None else self.mean - half

    @property
    def high(self) -> float | None:
        """The upper end."""
        half = self.half_width
        return None if half is None else self.mean + half

    @property
    def p(self) -> float:
        """How likely a mean at least this far from zero is by chance; 1 without an interval."""
        if self.p_of_family is not None:
            return self.p_of_family
        error = _standard_error(self.values)
        return 1.0 if error is None else 2 * float(stdtr(self.n - 1, -abs(self.mean) / error))

    @property
    def clear(self) -> bool:
        """Whether the difference is significant."""
        return self.half_width is not None and self.p < 1 - self.level

    @property
    def half_width(self) -> float | None:
        """Half of the interval; None where there is none.

        The same difference on every seed is a few test samples on a few seeds, not one without uncertainty.
        """
        error = _standard_error(self.values)
        return None if error is None else float(stdtrit(self.n - 1, (1 + self.level) / 2)) * error

    def __str__(self) -> str:
        seeds = f"{self.n} seed{'' if self.n == 1 else 's'}"
        if self.low is None or self.high is None:
            return f"{self.mean:+.2f} {self.unit}, {seeds}, no interval"
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}] {self.unit}, {seeds}"


def pair(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference:
    """Return ours less theirs, both given by seed, on the seeds they share."""
    seeds = tuple(sorted(theirs.keys() & ours.keys()))
    return Difference(seeds, tuple(ours[seed] - theirs[seed] for seed in seeds))


def paired(
    ours: Sequence[Result],
    theirs: Sequence[Result],
    metric: str | Callable[[Result], float] = "accuracy",
    level: float = LEVEL,
) -> Difference:
    """Compare two methods seed by seed, on the seeds that both have.

    Args:
        ours: runs of one method, one a seed
        theirs: runs of the other, on the same data and splits
        metric: a figure of :class:`Summary`, or a function of a result
        level: of the confidence interval

    Returns:
        Ours less theirs. Accuracies and forgetting are in points.

    Example:
        >>> ours, theirs = fedssd.run("fedprox", **small), fedssd.run("fedavg", **small)
        >>> fedssd.paired([ours], [theirs]).seeds
        (0,)
    """
    first, second = _by_seed(ours), _by_seed(theirs)
    seeds = tuple(sorted(first.keys() & second.keys()))
    if not seeds:
        raise UserError(f"expected runs that share a seed, got seeds {sorted(first)} and {sorted(second)}")
    for seed in seeds:
        a, b = first[seed].summary, second[seed].summary
        if (a.data, a.split_hash) != (b.data, b.split_hash):
            what = f"{a.data} split {a.split_hash} and {b.data} split {b.split_hash}"
            raise UserError(f"paired differences need the same data and split for both, got {what} for seed {seed}")
    in_points = isinstance(metric, str) and ("accuracy" in metric or metric == "forgetting")
    values = tuple(_figure(first[seed], metric) - _figure(second[seed], metric) for seed in seeds)
    values = tuple(100 * value for value in values) if in_points else values
    return Difference(seeds, values, level, "points" if in_points else metric if isinstance(metric, str) else "")


def holm(differences: Mapping[K, Difference], level: float = LEVEL) -> dict[K, Difference]:
    """Judge several differences together, by Holm's step-down method.

    Args:
        differences: the family, by name
        level: 0.95 keeps the chance of even one false finding at 5 %

    Returns:
        The same differences, whose ``p`` is adjusted and whose ``clear`` goes by it.

    Example:
        >>> family = {"a": fedssd.Difference((0, 1, 2), (1.0, 1.1, 0.9)), "b": fedssd.Difference((0, 1), (1.0, -1.0))}
        >>> [name for name, one in fedssd.holm(family).items() if one.clear]
        ['a']
    """
    adjusted = adjusted_by_holm({name: replace(one, p_of_family=None).p for name, one in differences.items()})
    return {name: replace(one, p_of_family=adjusted[name], level=level) for name, one in differences.items()}


def _by_seed(results: Sequence[Result]) -> dict[int, Result]:
    found: dict[int, Result] = {}
    for result in results:
        seed = result.summary.seed
        if seed in found:
            raise UserError(f"expected one run a seed, got two of seed {seed}: {found[seed]!r} and {result!r}")
        found[seed] = result
    return found


def _figure(result: Result, metric: str | Callable[[Result], float]) -> float:
    if callable(metric):
        return float(metric(result))
    value = getattr(result.summary, metric, None)
    if isinstance(value, str) or not isinstance(value, int | float):
        raise UserError(f"metric expects a figure that every run has, such as accuracy, got {metric!r} in {result!r}")
    return float(value)


def _standard_error(values: Sequence[float]) -> float | None:
    """Of the mean; None where there is no spread to know it by."""
    if not values or max(values) - min(values) < ALIKE:
        return None
    return stdev(values) / math.sqrt(len(values))
