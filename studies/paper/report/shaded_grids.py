"""Shaded grids as one hand-made SVG, such as who holds what: the stronger the colour, the more; each has its scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedssd.reports.svg import sheet, text

PANEL, SPACE, LEFT, TOP, BOTTOM = 260.0, 56.0, 48.0, 46.0, 72.0
NOTE, LETTER = 26.0, 7.5  # the height of a note above all panels, and the width of its letters at most
ROW = 3  # as many panels stand in one row; more stand two in a row
LABELS = 10  # at most so many numbers along a side
SHADES, SHADE, DEEP = 11, 9.0, 12.0  # of a scale: how many, how wide and how deep
LIGHT = """.cell, .shade { fill: #0b62b8; shape-rendering: crispEdges }
.frame { fill: none; stroke: #9aa3af }"""
DARK = ".cell, .shade { fill: #58a6f0 }"


class Grid(NamedTuple):
    """One panel: numbers by what goes across and what goes down."""

    title: str
    values: Sequence[Sequence[float]]  # [across, down]
    across: str
    first: int = 0  # the number of what stands at the left
    shares: bool = False  # of 1, which has the full colour; otherwise the greatest of the values has it
    unit: str = ""  # what is counted, for the scale


def split_picture(splits: Sequence[tuple[str, Sequence[Sequence[int]]]]) -> str:
    """A panel for each titled split, given as samples by client and class."""
    panels = [Grid(title, counts, "client", unit="samples") for title, counts in splits]
    return grids("Training samples by client and class", panels)


def grids(title: str, panels: Sequence[Grid], note: str = "") -> str:
    """The panels side by side, with a note above them."""
    across = len(panels) if len(panels) <= ROW else 2
    above, down = NOTE if note else 0.0, TOP + PANEL + BOTTOM
    body = [text(LEFT, 26, note, "quiet")]
    for number, panel in enumerate(panels):
        row, column = divmod(number, across)
        moved = above + row * down
        parts = _panel(LEFT + column * (PANEL + SPACE), panel)
        body += [f'<g transform="translate(0 {moved:g})">', *parts, "</g>"] if moved else parts
    width = max(LEFT + across * (PANEL + SPACE), LEFT + LETTER * len(note))
    return sheet(width, above + -(-len(panels) // across) * down, title, LIGHT, DARK, body)


def _panel(left: float, grid: Grid) -> list[str]:
    columns, rows = len(grid.values), len(grid.values[0])
    across, down = PANEL / columns, PANEL / rows
    most = 1 if grid.shares else max(map(max, grid.values)) or 1
    parts = [text(left, TOP - 16, grid.title, "panel")]
    for column, held in enumerate(grid.values):
        for row, value in enumerate(held):
            if value:
                parts.append(
                    f'<rect class="cell" x="{left + column * across:.2f}" y="{TOP + row * down:.2f}" '
                    f'width="{across:.2f}" height="{down:.2f}" fill-opacity="{value / most:.3f}"/>'
                )
    parts.append(f'<rect class="frame" x="{left}" y="{TOP}" width="{PANEL}" height="{PANEL}"/>')
    for column in range(0, columns, -(-columns // LABELS)):
        parts.append(text(left + (column + 0.5) * across, TOP + PANEL + 16, str(grid.first + column), "tick middle"))
    for row in range(0, rows, -(-rows // LABELS)):
        parts.append(text(left - 6, TOP + (row + 0.5) * down + 4, str(row), "tick end"))
    parts.append(text(left + PANEL / 2, TOP + PANEL + 34, grid.across, "tick middle"))
    return [*parts, *_scale(left, "0 %" if grid.shares else "0", "100 %" if grid.shares else f"{most:g} {grid.unit}")]


def _scale(left: float, least: str, most: str) -> list[str]:
    """What the shades say, from nothing to the full colour."""
    top, start = TOP + PANEL + 44, left + (30 if "%" in least else 14)
    shades = [
        f'<rect class="shade" x="{start + place * SHADE:.2f}" y="{top}" width="{SHADE}" height="{DEEP}" '
        f'fill-opacity="{place / (SHADES - 1):.3f}"/>'
        for place in range(SHADES)
    ]
    frame = f'<rect class="frame" x="{start}" y="{top}" width="{SHADES * SHADE}" height="{DEEP}"/>'
    ends = [text(start - 6, top + 11, least, "tick end"), text(start + SHADES * SHADE + 6, top + 11, most, "tick")]
    return [*shades, frame, *ends]
