"""The column of gains over FedAvg: the paired difference, its interval, and whether it is more than chance."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from fedssd.reports.statistics import LEVEL, Rival, adjusted_by_holm
from fedssd.reports.table import Cell, Column

Gains = Mapping[str, Rival]  # by method, FedAvg being the rival
COLUMN = Column(
    "gain over FedAvg, points\n[95 % interval], paired by seed",
    ("gain_points", "gain_low", "gain_high", "gain_p", "gain_p_holm"),
    left=True,
)
SURVIVES = "†"


def cells(gains: Gains, seeds: int) -> dict[str, Cell]:
    """What stands in the column, by method, in a table of so many seeds.

    The values are the mean and the ends of its interval, in points, and its p-value alone and by Holm.
    """
    adjusted = adjusted_by_holm({name: gain.p_value for name, gain in gains.items()})

    def cell(name: str, gain: Rival) -> Cell:
        mean, half = fmean(gain.gains), gain.half_width
        interval = "–" if half is None else f"{_signed(mean - half)}, {_signed(mean + half)}"
        measured = f" ({len(gain.gains)}/{seeds})" if len(gain.gains) < seeds else ""
        text = f"{_signed(mean)} [{interval}]{measured}{'' if half is None or gain.clear else ' not significant'}"
        if half is None:
            return Cell(text, (mean, None, None, None, None))
        mark = f" {SURVIVES}" if len(gains) > 1 and _significant(adjusted[name]) else ""
        return Cell(text + mark, (mean, mean - half, mean + half, gain.p_value, adjusted[name]))

    return {name: cell(name, gain) for name, gain in gains.items()}


def _signed(points: float) -> str:
    return f"{round(points, 2) + 0.0:+.2f}"  # never −0


def _significant(p_value: float) -> bool:
    return p_value < 1 - LEVEL


def remarks(gains: Gains, seeds: int) -> list[str]:
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
        adjusted = adjusted_by_holm({name: gain.p_value for name, gain in gains.items()})
        found = f"{SURVIVES}: still significant" if any(map(_significant, adjusted.values())) else "none is significant"
        lines.append(f"{found} at 5 % when all {len(gains)} gains are tested together (Holm)")
    return lines
