"""Who holds what as one hand-made SVG: clients across, classes down, the stronger the colour the more samples."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

PANEL, SPACE, LEFT, TOP, BOTTOM = 260.0, 56.0, 48.0, 46.0, 46.0
LABELS = 10  # at most so many numbers along a side


def split_picture(splits: Sequence[tuple[str, Sequence[Sequence[int]]]]) -> str:
    """A panel for each titled split, given as samples by client and class."""
    width = LEFT + len(splits) * (PANEL + SPACE)
    height = TOP + PANEL + BOTTOM
    panels = [_panel(LEFT + n * (PANEL + SPACE), title, counts) for n, (title, counts) in enumerate(splits)]
    return DOCUMENT.format(width=width, height=height, body="\n".join(panels))


def _panel(left: float, title: str, counts: Sequence[Sequence[int]]) -> str:
    clients, classes = len(counts), len(counts[0])
    across, down = PANEL / clients, PANEL / classes
    most = max(max(held) for held in counts) or 1
    parts = [f'<text class="title" x="{left}" y="{TOP - 16}">{escape(title)}</text>']
    for client, held in enumerate(counts):
        for number, count in enumerate(held):
            if count:
                parts.append(
                    f'<rect class="cell" x="{left + client * across:.2f}" y="{TOP + number * down:.2f}" '
                    f'width="{across:.2f}" height="{down:.2f}" fill-opacity="{count / most:.3f}"/>'
                )
    parts.append(f'<rect class="frame" x="{left}" y="{TOP}" width="{PANEL}" height="{PANEL}"/>')
    for client in range(0, clients, -(-clients // LABELS)):
        x = left + (client + 0.5) * across
        parts.append(f'<text class="middle" x="{x:.1f}" y="{TOP + PANEL + 16}">{client}</text>')
    for number in range(0, classes, -(-classes // LABELS)):
        y = TOP + (number + 0.5) * down + 4
        parts.append(f'<text class="end" x="{left - 6}" y="{y:.1f}">{number}</text>')
    parts.append(f'<text class="middle" x="{left + PANEL / 2}" y="{TOP + PANEL + 36}">client</text>')
    return "\n".join(parts)


DOCUMENT = """<svg xmlns="http://www.w3.org/2000/svg" role="img"
     viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}">
<title>Training samples by client and class</title>
<style>
text {{ font: 12px system-ui, -apple-system, "Segoe UI", "Liberation Sans", Arial, sans-serif; fill: #5b6472 }}
.title {{ font-size: 15px; font-weight: 600; fill: #1f2430 }}
.middle {{ text-anchor: middle }}
.end {{ text-anchor: end }}
.cell {{ fill: #0b62b8; shape-rendering: crispEdges }}
.frame {{ fill: none; stroke: #9aa3af }}
.paper {{ fill: #ffffff }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #a3abb8 }}
.title {{ fill: #e6e9ef }}
.cell {{ fill: #58a6f0 }}
.paper {{ fill: #12151b }}
}}
</style>
<rect class="paper" width="{width:.0f}" height="{height:.0f}" rx="8"/>
{body}
</svg>
"""
