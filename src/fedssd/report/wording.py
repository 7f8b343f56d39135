"""How the study says a figure: spreads, differences, verdicts; what has not been run says so."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from fedssd.report.paired import Rival

NOT_RUN = "not run yet"


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation (how many)."""
    if not values:
        return NOT_RUN
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "") + f" ({len(values)})"


def interval(found: Rival) -> str:
    """A paired difference with its interval; a star where that leaves out zero."""
    if not found.gains:
        return "–"
    mean, half = fmean(found.gains), found.half_width
    if half is None:
        return f"{mean:+.2f}"
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]{' *' if found.clear else ''}"


def verdict(found: Rival, worth: float) -> str:
    """In a word what a difference says: nothing, where it is both small and not to be told from none.

    Below half of what is worth confirming it is little, whatever a few seeds agree on.
    """
    if len(found.gains) < 2:
        return NOT_RUN if not found.gains else "one seed says nothing"
    mean = fmean(found.gains)
    if found.clear:
        little = ", by little" if abs(mean) < worth / 2 else ""
        return ("raises it" if mean > 0 else "lowers it") + little
    return "nothing" if abs(mean) < worth else "not told apart"


def leads(found: Rival) -> str:
    """Whether it leads FedAvg, as the rest of a sentence."""
    mean, half = fmean(found.gains), found.half_width
    if half is None:
        return f"differs from FedAvg by {mean:+.2f} points on one seed, which decides nothing"
    size = f"{mean:+.2f} points, 95 % interval {mean - half:+.2f} to {mean + half:+.2f}, {len(found.gains)} seeds"
    if not found.clear:
        return f"is not told apart from FedAvg ({size})"
    return f"{'leads' if mean > 0 else 'trails'} FedAvg ({size})"


def code(text: str) -> str:
    """A recipe key, a label, as a page shows code."""
    return f"`{text}`"


def any_run(rows: Sequence[Sequence[str]], place: int) -> bool:
    """Whether a column of a table has a figure in it."""
    return any(row[place] not in (NOT_RUN, "–") for row in rows)
