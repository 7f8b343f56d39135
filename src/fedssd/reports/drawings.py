"""Plots over the rounds on one page, two in a row, so that they are read in a column of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fedssd.reports.charts import AXIS, HEIGHT, PANEL, TOP, Curve, Scale, document, panel, room_for
from fedssd.reports.svg import text

ACROSS = 2
DOWN = HEIGHT - TOP + 40  # from one row to the next


class Plot(NamedTuple):
    """One of them."""

    title: str
    curves: Sequence[Curve]
    y: Scale
    note: str = ""  # beside the title


class Page(NamedTuple):
    """What all have: the names of lines, as they are shown, with their colours for light and dark."""

    title: str  # for who cannot see it
    heading: str
    note: str
    names: Sequence[str]
    palette: Sequence[tuple[str, str]] = ()
    style: str = ""


def drawn(page: Page, plots: Sequence[Plot]) -> str:
    """The whole page as SVG."""
    labels = room_for(page.names)
    step = AXIS + PANEL + labels
    body = [text(24, 30, page.heading, "title"), text(24, 50, page.note, "quiet")]
    for place, plot in enumerate(plots):
        row, column = divmod(place, ACROSS)
        left = 24 + column * step + AXIS
        body += [
            f'<g transform="translate(0 {row * DOWN})">',
            *panel(left, plot.title, plot.curves, page.names, plot.y, row, labels, str, plot.note),
            "</g>",
        ]
    width, rows = 24 + min(len(plots), ACROSS) * step, -(-len(plots) // ACROSS)
    return document(width, page.names, body, HEIGHT + max(0, rows - 1) * DOWN, page.title, page.palette, page.style)


def seeds(counts: Iterable[int]) -> str:
    """``3 seeds``, or ``3 to 7 seeds`` where some have more."""
    found = sorted(set(counts))
    said = str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"
    return f"{said} seed{'' if found == [1] else 's'}"
