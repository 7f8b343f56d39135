"""The column of gains over FedAvg: the paired difference, its interval, and whether it is more than chance."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from fedssd.reports.statistics import LEVEL, Rival, holm

Gains = Mapping[str, Rival]  # by method, FedAvg being the rival
HEADING = ("gain over FedAvg, points", "[95 % interval], paired by seed")
SURVIVES = "†"
NUMBERS = ("gain_points", "gain_low", "gain_high", "gain_p", "gain_p_holm")


def cells(gains: Gains, seeds: int) -> dict[str, str]:
    """What stands in the column, by method, in a table of so many seeds."""
    surviving = _surviving(gains) if len(gains) > 1 else []
    return {name: _printed(gain, seeds) + (f" {SURVIVES}" if name in surviving else "") for name, gain in gains.items()}


def _surviving(gains: Gains) -> list[str]:
    """The methods whose gain is significant when all are tested together."""
    adjusted = holm({name: gain.p_value for name, gain in gains.items()})
    return [name for name, p_value in adjusted.items() if p_value < 1 - LEVEL]


def _printed(gain: Rival, seeds: int) -> str:
    """The mean with its interval, on how many seeds it could be measured, and whether the interval holds zero."""
    mean, half = fmean(gain.gains), gain.half_width
    interval = "–" if half is None else f"{_signed(mean - half)}, {_signed(mean + half)}"
    measured = f" ({len(gain.gains)}/{seeds})" if len(gain.gains) < seeds else ""
    return f"{_signed(mean)} [{interval}]{measured}{'' if half is None or gain.clear else ' not significant'}"


def _signed(points: float) -> str:
    return f"{round(points, 2) + 0.0:+.2f}"  # never −0


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
        found = f"{SURVIVES}: still significant" if _surviving(gains) else "none is significant"
        lines.append(f"{found} at 5 % when all {len(gains)} gains are tested together (Holm)")
    return lines


def numbers(gains: Gains) -> dict[str, list[float | None]]:
    """By method the mean and the ends of its interval in points, and its p-value alone and by Holm."""
    adjusted = holm({name: gain.p_value for name, gain in gains.items()})

    def known(name: str, gain: Rival) -> list[float | None]:
        mean, half = fmean(gain.gains), gain.half_width
        if half is None:
            return [mean, None, None, None, None]
        return [mean, mean - half, mean + half, gain.p_value, adjusted[name]]

    return {name: known(name, gain) for name, gain in gains.items()}
