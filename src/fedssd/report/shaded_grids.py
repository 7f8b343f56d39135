"""Shaded grids as one hand-made SVG, such as who holds what: the stronger the colour, the more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedssd.report.svg import sheet, text

PANEL, SPACE, LEFT, TOP, BOTTOM = 260.0, 56.0, 48.0, 46.0, 46.0
LABELS = 10  # at most so many numbers along a side
LIGHT = """.cell { fill: #0b62b8; shape-rendering: crispEdges }
.frame { fill: none; stroke: #9aa3af }"""
DARK = ".cell { fill: #58a6f0 }"


class Grid(NamedTuple):
    """One panel: numbers by what goes across and what goes down."""

    title: str
    values: Sequence[Sequence[float]]  # [across, down]
    across: str
    first: int = 0  # the number of what stands at the left
    most: float = 0.0  # what has the full colour; 0: the greatest of the values


def split_picture(splits: Sequence[tuple[str, Sequence[Sequence[int]]]]) -> str:
    """A panel for each titled split, given as samples by client and class."""
    return grids("Training samples by client and class", [Grid(title, counts, "client") for title, counts in splits])


def grids(title: str, panels: Sequence[Grid]) -> str:
    """The panels side by side."""
    width, height = LEFT + len(panels) * (PANEL + SPACE), TOP + PANEL + BOTTOM
    body = [part for n, panel in enumerate(panels) for part in _panel(LEFT + n * (PANEL + SPACE), panel)]
    return sheet(width, height, title, LIGHT, DARK, body)


def _panel(left: float, grid: Grid) -> list[str]:
    columns, rows = len(grid.values), len(grid.values[0])
    across, down = PANEL / columns, PANEL / rows
    most = grid.most or max(map(max, grid.values)) or 1
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
    return [*parts, text(left + PANEL / 2, TOP + PANEL + 36, grid.across, "tick middle")]
