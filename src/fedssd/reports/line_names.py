"""The names of a plot's lines: at their ends, moved apart where they would overlap, or below the picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedssd.reports.charts import Line

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

SAMPLE, LETTER, ROW = 0.4, 0.055, 0.15  # inches of a name below: the line before it, each letter, its row
APART = 1.25  # distance of two names at the ends of lines, in their size
LONGEST = 24  # letters of such a name


def at_the_ends(axes: Axes, lines: Sequence[Line]) -> list[tuple[Text, float, str]]:
    """Name and last value at the end of each line, with the height where it ends and its colour."""
    names = []
    for line in lines:
        last = next((y for y in reversed(line.y) if math.isfinite(y)), None)
        if last is not None:
            name = line.name if len(line.name) <= LONGEST else f"{line.name[: LONGEST - 1]}…"
            words = f"{name}  {_figure(last)}"
            weight = "bold" if line.bold else "normal"
            text = axes.text(1.05, 0.5, words, transform=axes.transAxes, va="center", weight=weight, fontsize="small")
            names.append((text, last, line.colour))
    return names


def _figure(value: float) -> str:
    return (f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}").replace("-", "−")


def move_apart(axes: Axes, names: Sequence[tuple[Text, float, str]]) -> None:
    """Names at the height of their lines, at least a line's height from each other, each with a thread to its end."""
    box = axes.get_window_extent()
    ends = [axes.transData.transform((0, value))[1] for _, value, _ in names]
    ends = [min(max(end, box.y0), box.y1) for end in ends]
    if not names:
        return
    apart = APART * float(names[0][0].get_fontsize()) * axes.figure.dpi / 72
    for (text, _, colour), end, place in zip(names, ends, spaced(ends, apart, box.y0, box.y1), strict=True):
        height, there = ((one - box.y0) / box.height for one in (end, place))
        text.set_y(there)
        thread: dict[str, Any] = {
            "color": colour,
            "linewidth": 0.9,
            "transform": axes.transAxes,
            "clip_on": False,
        }
        axes.plot([1.005, 1.042], [height, there], **thread)


def spaced(places: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Move places apart as little as can be, keeping their order and, where there is room, between low and high."""
    order = sorted(range(len(places)), key=lambda one: places[one])
    blocks: list[list[float]] = []  # of places that touch; each less the room of those before it
    for rank, one in enumerate(order):
        blocks.append([places[one] - rank * apart])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    levels = [fmean(block) for block in blocks for _ in block]
    highest = high - (len(order) - 1) * apart
    moved = [min(max(level, low), highest) + rank * apart for rank, level in enumerate(levels)]
    found = dict(zip(order, moved, strict=True))
    return [found[one] for one in range(len(places))]


def below(figure: Figure, names: Sequence[str], lines: Sequence[Artist]) -> None:
    """The lines' names below the picture, which grows by their rows, in as many columns as fit."""
    wide = figure.get_figwidth()
    columns = next(count for count in range(min(4, len(names)), 0, -1) if count == 1 or _width(names, count) <= wide)
    figure.set_figheight(figure.get_figheight() + ROW * -(-len(names) // columns))
    figure.legend(lines, names, loc="outside lower center", ncols=columns, handlelength=1.6, columnspacing=1.2)


def _width(names: Sequence[str], columns: int) -> float:
    """Inches that so many columns of names take, filled one after another."""
    rows = -(-len(names) // columns)
    chunks = (names[first : first + rows] for first in range(0, len(names), rows))
    return sum(SAMPLE + LETTER * max(map(len, chunk)) for chunk in chunks)
