"""Promised against observed decrease, round by round, as one hand-made SVG for light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedssd.reports.charts import Scale, nice_ticks, spaced
from fedssd.reports.svg import sheet, text
from fedssd.theory import FORMS
from studies.paper.theory.measure import RoundMeasure
from studies.paper.theory.report import counts, judge

WIDTH, HEIGHT = 1060, 470
TOP, BOTTOM, PANEL = 110, 84, 330
LEFTS = (70, 620)
STRAIGHT = 30  # up to this ratio of the largest value to the smallest, an ordinary axis shows both

Values = Sequence[float | None]


@dataclass(frozen=True)
class Series:
    """A line over the rounds; None where there is no value."""

    name: str
    style: str  # its class in the style sheet
    values: Values


@dataclass(frozen=True)
class Panel:
    """One of the two plots."""

    title: str
    remark: str
    series: Sequence[Series]


@dataclass(frozen=True)
class Signed:
    """A scale for values of either sign over many powers of ten: straight within ±unit, logarithmic beyond."""

    unit: float
    inner: Scale
    bent: bool  # whether anything lies beyond ±unit

    def __call__(self, value: float) -> float:
        return self.inner(stretch(value, self.unit))


def stretch(value: float, unit: float) -> float:
    """sign(v) (1 + log₁₀(|v|/unit)) beyond ±unit, v/unit within."""
    size = abs(value) / unit
    return math.copysign(1 + math.log10(size), value) if size > 1 else value / unit


def promise_figure(rounds: Sequence[RoundMeasure], m_max: float, clients: float, subtitle: str = "") -> str:
    """Left, the decrease of the global loss; right, μ + L_m, which has to be above 0 for a promise at all."""
    judged = {form.name: [judge(one, form, m_max, clients) for one in rounds] for form in FORMS}
    promised = [Series(f"promised, as {name}", name, [one.promised for one in found]) for name, found in judged.items()]
    margin = [Series(f"as {name}", name, [one.promise.margin for one in found]) for name, found in judged.items()]
    decrease = Panel(
        "How much the global loss fell in the round",
        _about_promises([value for one in promised for value in one.values]),
        [Series("observed", "observed", [one.observed for one in rounds]), *promised],
    )
    panels = (decrease, Panel("μ + L_m", "condition 2: above 0, or the theorem is silent", margin))
    numbers = [one.round for one in rounds]
    body = [
        text(24, 30, "What Theorem 1 promises, and what the rounds brought", "title"),
        text(24, 50, subtitle, "quiet"),
        *(part for left, panel in zip(LEFTS, panels, strict=True) for part in _panel(left, panel, numbers)),
    ]
    for place, (name, found) in enumerate(reversed(judged.items())):
        body.append(text(24, HEIGHT - 12 - 18 * place, f"as {name}: {counts(found)}", "quiet"))
    return sheet(WIDTH, HEIGHT, TITLE, LIGHT, DARK, body)


def _about_promises(promised: Values) -> str:
    """What the reader of the left panel would stumble over."""
    made = [value for value in promised if value is not None]
    if not made:
        return "nothing is promised in any round"
    return "a promise below 0 is none" if min(made) < 0 else ""


def _panel(left: float, panel: Panel, rounds: Sequence[int]) -> list[str]:
    last = max(rounds[-1], rounds[0] + 1)
    ticks = tuple(t for t in nice_ticks(rounds[0], last, 5) if t == int(t) and rounds[0] <= t <= last)
    x, (y, marks) = Scale(rounds[0], last, left, left + PANEL, ticks), signed_scale(panel.series)
    remarks = [panel.remark, f"logarithmic beyond ±{y.unit:g}" if y.bent else ""]
    parts = [text(left, TOP - 32, panel.title, "panel")]
    parts.append(text(left, TOP - 15, "; ".join(remark for remark in remarks if remark), "tick"))
    for value in marks:
        kind = "zero" if value == 0 else "grid"
        parts.append(f'<line class="{kind}" x1="{left}" x2="{left + PANEL}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(text(left - 8, y(value) + 4, f"{value:g}".replace("-", "−"), "tick end"))
    parts += [text(x(tick), HEIGHT - BOTTOM + 16, f"{tick:g}", "tick middle") for tick in x.ticks]
    parts.append(text(left + PANEL / 2, HEIGHT - BOTTOM + 32, "round", "tick middle"))
    shown = [one for one in panel.series if any(value is not None for value in one.values)]
    parts += [mark for one in shown for mark in _marks(one, rounds, x, y)]
    return parts + _names(shown, left + PANEL, y)


def signed_scale(series: Sequence[Series]) -> tuple[Signed, list[float]]:
    """Wide enough for every value, with 0 in it, and the values to mark; straight where no power of ten is crossed."""
    values = [v for one in series for v in one.values if v is not None and math.isfinite(v)]
    sizes = sorted(abs(v) for v in values if v != 0) or [1.0]
    if sizes[-1] <= STRAIGHT * sizes[0]:
        ticks = nice_ticks(min(0.0, *values, 0.0), max(0.0, *values, 0.0))
        unit = max(abs(ticks[0]), abs(ticks[-1]))
        return Signed(unit, Scale(ticks[0] / unit, ticks[-1] / unit, HEIGHT - BOTTOM, TOP, ()), False), list(ticks)
    unit = 10.0 ** math.floor(math.log10(sizes[len(sizes) // 10]))
    stretched = [stretch(v, unit) for v in values]
    low, high = math.floor(min(0.0, *stretched)), math.ceil(max(0.0, *stretched))
    every = max(1, math.ceil((high - low) / 9))
    marks = [_unstretched(place, unit) for place in range(low, high + 1) if place % every == 0]
    return Signed(unit, Scale(low, high, HEIGHT - BOTTOM, TOP, ()), True), marks


def _unstretched(place: int, unit: float) -> float:
    return math.copysign(unit * 10.0 ** (abs(place) - 1), place) if place else 0.0


def _marks(one: Series, rounds: Sequence[int], x: Scale, y: Signed) -> list[str]:
    """A dot for every value and a line between neighbours."""
    points = [None if v is None else (x(r), y(v)) for r, v in zip(rounds, one.values, strict=True)]
    lines = [
        f'<line class="line {one.style}" x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}"/>'
        for a, b in pairwise(points)
        if a and b
    ]
    return lines + [f'<circle class="dot {one.style}" cx="{p[0]:.1f}" cy="{p[1]:.1f}" r="3"/>' for p in points if p]


def _names(series: Sequence[Series], right: float, y: Signed) -> list[str]:
    """Beside the last value of each line, moved apart where they would overlap."""
    ends = {one.name: y(next(v for v in reversed(one.values) if v is not None)) for one in series}
    places = spaced(ends, TOP, HEIGHT - BOTTOM)
    return [text(right + 10, places[one.name] + 4, one.name, f"name {one.style}") for one in series]


TITLE = "Promised and observed decrease of the global training loss over the rounds"
LIGHT = """.zero { stroke: #5b6472; stroke-width: 1.5 }
.line { stroke-width: 2; stroke-linecap: round }
.line.observed { stroke: #0072b2 } .observed { fill: #0072b2 }
.line.printed { stroke: #d55e00 } .printed { fill: #d55e00 }
.line.derived { stroke: #009e73; stroke-dasharray: 5 4 } .derived { fill: #009e73 }
.name { font-weight: 600 }"""
DARK = """.zero { stroke: #a3abb8 }
.line.observed { stroke: #3f97d6 } .observed { fill: #3f97d6 }
.line.printed { stroke: #ff7a1a } .printed { fill: #ff7a1a }
.line.derived { stroke: #22b88d } .derived { fill: #22b88d }"""
