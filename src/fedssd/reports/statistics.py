"""Two methods on the same seeds: paired differences, their confidence intervals, and Holm's correction for several."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtr, stdtrit  # not scipy.stats, which takes seconds to import

LEVEL = 0.95
ALIKE = 1e-9  # points: less than the test set of any dataset can show, more than rounding


@dataclass(frozen=True)
class Rival:
    """A method's final accuracies and ours on the seeds both have, in percent."""

    method: str
    accuracies: tuple[float, ...]
    ours: tuple[float, ...]

    @property
    def gains(self) -> list[float]:
        """Ours less theirs, seed by seed."""
        return [a - b for a, b in zip(self.ours, self.accuracies, strict=True)]

    @property
    def half_width(self) -> float | None:
        """Half of the 95 % confidence interval of the mean gain, by Student's t; needs two seeds whose gains differ.

        The same gain on every seed is a few test samples on a few seeds, not a gain without uncertainty.
        """
        error = self._standard_error
        return None if error is None else student_t(len(self.gains) - 1) * error

    @property
    def p_value(self) -> float:
        """How likely a mean gain at least this far from zero is by chance, by Student's t; 1 without an interval."""
        error = self._standard_error
        return 1.0 if error is None else 2 * float(stdtr(len(self.gains) - 1, -abs(fmean(self.gains)) / error))

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.half_width is not None and abs(fmean(self.gains)) > self.half_width

    @property
    def _standard_error(self) -> float | None:
        gains = self.gains
        if not gains or max(gains) - min(gains) < ALIKE:
            return None
        return stdev(gains) / math.sqrt(len(gains))


def student_t(freedom: int) -> float:
    """The t with P(|T| ≤ t) = 95 % for Student's T with so many degrees of freedom."""
    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def pair(method: str, theirs: Mapping[int, float], ours: Mapping[int, float]) -> Rival:
    """Both by seed, on the seeds they share."""
    seeds = sorted(theirs.keys() & ours.keys())
    return Rival(method, tuple(theirs[seed] for seed in seeds), tuple(ours[seed] for seed in seeds))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjust p-values for testing all of them together, by Holm's step-down method.

    Rejecting what is at most α keeps the chance of even one false rejection at α, whatever depends on what (Holm 1979).

    Args:
        p_values: one for each hypothesis of the family.

    Returns:
        The adjusted p-values under the same names, in the same order.

    Example:
        >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
        {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}
