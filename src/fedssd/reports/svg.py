"""Hand-made SVG in one type and one set of greys, on light and on dark."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape


def text(x: float, y: float, words: str, style: str) -> str:
    """Words at a place; nothing without words."""
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>' if words else ""


def sheet(width: float, height: float, title: str, light: str, dark: str, body: Sequence[str]) -> str:
    """A whole SVG; ``light`` and ``dark`` are the rules of style that it adds."""
    parts = "\n".join(part for part in body if part)
    return DOCUMENT.format(width=width, height=height, title=escape(title), light=light, dark=dark, body=parts)


DOCUMENT = """<svg xmlns="http://www.w3.org/2000/svg" role="img"
     viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<title>{title}</title>
<style>
text {{ font: 13px system-ui, -apple-system, "Segoe UI", "Liberation Sans", Arial, sans-serif; fill: #1f2430 }}
.paper {{ fill: #ffffff }}
.title {{ font-size: 17px; font-weight: 600 }}
.panel {{ font-size: 14px; font-weight: 600 }}
.quiet, .tick, .value {{ fill: #5b6472 }}
.tick, .value {{ font-size: 12px }}
.middle {{ text-anchor: middle }}
.end {{ text-anchor: end }}
.grid {{ stroke: #e3e6eb; stroke-width: 1 }}
{light}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6e9ef }}
.paper {{ fill: #12151b }}
.quiet, .tick, .value {{ fill: #a3abb8 }}
.grid {{ stroke: #2a303a }}
{dark}
}}
</style>
<rect class="paper" width="{width}" height="{height}" rx="8"/>
{body}
</svg>
"""
