"""Learning curves as one hand-made SVG: for light and dark, labelled at the line ends, safe for the colour-blind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from fedssd.reports.svg import sheet, text
from fedssd.simulation.result import Result, Round

HEIGHT = 450
TOP, BOTTOM = 104, 52  # above and below the panels
PANEL, LABELS, AXIS = 320, 130, 44  # widths: the plot, short names at its right, the numbers at its left
SHORT, LONGEST, LETTER = 10, 24, 8  # letters that fit there, letters of the longest name, width of each beyond
LINE_HEIGHT = 15  # smallest distance between two names
INTERESTING = 0.1  # the share of rounds at the start that may fall out of the picture
FLAT = 1 / 3  # of the height: where all later rounds have less, the first do fall out

# Okabe and Ito's colours, for light and for dark backgrounds; FedAvg is the grey everything is measured against.
COLOURS = {
    "fedavg": ("#6b7280", "#a3abb8"),
    "fedprox": ("#56b4e9", "#7cc7f2"),
    "fedcurv": ("#009e73", "#22b88d"),
    "moon": ("#cc79a7", "#de97bf"),
    "fedntd": ("#e69f00", "#f0b429"),
    "fedcad": ("#0072b2", "#3f97d6"),
    "fedssd": ("#d55e00", "#ff7a1a"),
}
SPARE = (("#7a5195", "#b08fd0"), ("#8c6d1f", "#c9a84a"), ("#2f4b4f", "#8fb3b8"), ("#a8324a", "#e8788c"))
NAMES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedcurv": "FedCurv",
    "moon": "MOON",
    "fedntd": "FedNTD",
    "fedcad": "FedCAD",
    "fedssd": "FedSSD",
}
HERO = "fedssd"


@dataclass(frozen=True)
class Curve:
    """Mean and spread over seeds, round by round, in percent."""

    method: str
    rounds: tuple[int, ...]
    mean: tuple[float, ...]
    spread: tuple[float, ...]  # sample standard deviation; 0 with one seed


def learning_curves(results: Sequence[Result], subtitle: str = "") -> str:
    """Global accuracy and the clients' mean local accuracy over the rounds, one line per method."""
    panels = [
        ("Global model", over_seeds(results, global_accuracy)),
        ("Clients' own models, mean", over_seeds(results, local_accuracy)),
    ]
    panels = [(title, found) for title, found in panels if found]
    methods = list(dict.fromkeys(run.summary.method for run in results))
    seeds = len({run.summary.seed for run in results})
    note = f"{subtitle}{' · ' if subtitle else ''}" + ("1 seed" if seeds == 1 else f"mean and ±1 std of {seeds} seeds")
    labels = room_for([_short(method) for method in methods])
    step = AXIS + PANEL + labels
    body = [text(24, 30, "Test accuracy, %", "title"), text(24, 50, note, "quiet")]
    for place, (title, found) in enumerate(panels):
        body += panel(24 + place * step + AXIS, title, found, methods, _accuracy_scale(found), labels=labels)
    return document(math.ceil(24 + len(panels) * step), methods, body)


def room_for(names: Sequence[str]) -> int:
    """The width that names and values need at the right of a plot."""
    return LABELS + LETTER * max(0, max(map(len, names)) - SHORT)


def global_accuracy(one: Round) -> float | None:
    """The global model's test accuracy in a round."""
    return one.accuracy


def local_accuracy(one: Round) -> float | None:
    """The mean test accuracy of the clients' models in a round."""
    return one.local_accuracy


def over_seeds(results: Sequence[Result], measure: Callable[[Round], float | None]) -> list[Curve]:
    """A curve per method, in the order the methods came; rounds without a value are left out."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in results:
        by_round = found.setdefault(run.summary.method, {})
        for one in run.rounds:
            value = measure(one)
            if value is not None and math.isfinite(value):
                by_round.setdefault(one.number, []).append(100 * value)
    return [mean_curve(method, by_round) for method, by_round in found.items() if by_round]


def mean_curve(method: str, by_round: Mapping[int, list[float]]) -> Curve:
    """Mean and spread of what the seeds have in each round."""
    rounds = sorted(by_round)
    spread = tuple(stdev(by_round[r]) if len(by_round[r]) > 1 else 0.0 for r in rounds)
    return Curve(method, tuple(rounds), tuple(fmean(by_round[r]) for r in rounds), spread)


@dataclass(frozen=True)
class Scale:
    """From numbers to places on the page."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def nice_ticks(low: float, high: float, wanted: int = 6) -> tuple[float, ...]:
    """Round numbers that cover the range: steps of 1, 2 or 5 times a power of ten."""
    rough = max(high - low, 1e-9) / wanted
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return tuple(round(step * count, 10) for count in range(first, max(last, first + 1) + 1))


def worth_seeing(curves: Sequence[Curve]) -> tuple[float, float]:
    """Percent from the least worth seeing to the greatest; the very first rounds may start below the picture."""
    last = max(curve.rounds[-1] for curve in curves)
    later = [
        (mean - spread, mean + spread)
        for curve in curves
        for number, mean, spread in zip(curve.rounds, curve.mean, curve.spread, strict=True)
        if number > INTERESTING * last
    ]
    low, high = max(0.0, min(a for a, _ in later)), min(100.0, max(b for _, b in later))
    room = max(0.04 * (high - low), 0.5)
    return max(0.0, low - room), min(100.0, high + room)


def _accuracy_scale(curves: Sequence[Curve]) -> Scale:
    return _upright(*worth_seeing(curves))


def _upright(low: float, high: float) -> Scale:
    ticks = tuple(tick for tick in nice_ticks(low, high) if low <= tick <= high)
    return Scale(low, high, HEIGHT - BOTTOM, TOP, ticks)


def _round_scale(curves: Sequence[Curve], left: float) -> Scale:
    first, last = min(c.rounds[0] for c in curves), max(c.rounds[-1] for c in curves)
    ticks = tuple(t for t in nice_ticks(first, max(last, first + 1), 5) if first <= t <= last and t == int(t))
    return Scale(first, max(last, first + 1), left, left + PANEL, ticks)


def value_scale(lines: Sequence[Curve]) -> Scale:
    """From the least to the greatest, with zero where that is near."""
    low = min(m - s for line in lines for m, s in zip(line.mean, line.spread, strict=True))
    high = max(m + s for line in lines for m, s in zip(line.mean, line.spread, strict=True))
    room = 0.04 * (high - low) or 1.0  # one and the same value throughout
    from_zero = low < 0.2 * high and min(min(line.mean) for line in lines) >= 0
    return _upright(min(low, 0.0) if from_zero else low - room, high + room)


def later_scale(lines: Sequence[Curve]) -> Scale:
    """The same, of the later rounds alone where beside the first they would be flat."""
    whole, last = value_scale(lines), max(line.rounds[-1] for line in lines)
    later = [one for line in lines if (one := _after(line, INTERESTING * last)).rounds]
    found = value_scale(later) if later else whole
    return found if found.high - found.low < FLAT * (whole.high - whole.low) else whole


def _after(line: Curve, first: float) -> Curve:
    kept = slice(sum(number <= first for number in line.rounds), None)
    return Curve(line.method, line.rounds[kept], line.mean[kept], line.spread[kept])


def cut_off(lines: Sequence[Curve], y: Scale) -> str:
    """Which rounds have a mean outside the picture, in words; nothing where none has."""
    out = [n for line in lines for n, mean in zip(line.rounds, line.mean, strict=True) if not y.low <= mean <= y.high]
    if not out:
        return ""
    return f"cut off: round{'' if len(set(out)) == 1 else 's'} " + "–".join(map(str, sorted({min(out), max(out)})))


def panel(
    left: float,
    title: str,
    curves: Sequence[Curve],
    methods: Sequence[str],
    y: Scale,
    row: int = 0,
    labels: float = LABELS,
    shown: Callable[[str], str] | None = None,
    note: str = "",
) -> list[str]:
    """One plot over the rounds; ``row`` tells those apart that a document moves to another row.

    Lines are named as ``shown`` says, or by a method's name in print.
    """
    x = _round_scale(curves, left)
    parts = [text(left, TOP - 14, title, "panel"), text(x.end + labels - 10, TOP - 14, note, "tick end"), *axes(x, y)]
    drawn = sorted(curves, key=lambda curve: curve.method == HERO)  # the method of the house on top
    name = f"clip{left:.0f}" + (f"-{row}" if row else "")
    parts.append(
        f'<clipPath id="{name}"><rect x="{left:g}" y="{TOP}" width="{PANEL}" height="{y.start - TOP}"/></clipPath>'
    )
    parts.append(f'<g clip-path="url(#{name})">')
    parts += [_band(curve, x, y, methods.index(curve.method)) for curve in drawn if any(curve.spread)]
    parts += [_line(curve, x, y, methods.index(curve.method)) for curve in drawn]
    return [*parts, "</g>", *_end_labels(drawn, x, y, methods, labels, shown or _short)]


def axes(x: Scale, y: Scale, across: str = "round") -> list[str]:
    """Both axes with their numbers, and what goes across."""
    parts = []
    for tick in y.ticks:
        parts.append(f'<line class="grid" x1="{x.start:.1f}" x2="{x.end:.1f}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(text(x.start - 8, y(tick) + 4, f"{tick:g}", "tick end"))
    parts.append(f'<line class="axis" x1="{x.start:.1f}" x2="{x.end:.1f}" y1="{y.start:.1f}" y2="{y.start:.1f}"/>')
    for tick in x.ticks:
        parts.append(text(x(tick), y.start + 18, f"{tick:g}", "tick middle"))
    return [*parts, text((x.start + x.end) / 2, y.start + 38, across, "tick middle")]


def _points(curve: Curve, values: Sequence[float], x: Scale, y: Scale) -> list[str]:
    return [f"{x(number):.1f},{y(value):.1f}" for number, value in zip(curve.rounds, values, strict=True)]


def _line(curve: Curve, x: Scale, y: Scale, number: int) -> str:
    hero = " hero" if curve.method == HERO else ""
    return f'<polyline class="line c{number}{hero}" points="{" ".join(_points(curve, curve.mean, x, y))}"/>'


def _band(curve: Curve, x: Scale, y: Scale, number: int) -> str:
    upper = [mean + spread for mean, spread in zip(curve.mean, curve.spread, strict=True)]
    lower = [mean - spread for mean, spread in zip(curve.mean, curve.spread, strict=True)]
    outline = _points(curve, upper, x, y) + _points(curve, lower, x, y)[::-1]
    return f'<polygon class="band f{number}" points="{" ".join(outline)}"/>'


def _end_labels(
    curves: Sequence[Curve], x: Scale, y: Scale, methods: Sequence[str], labels: float, shown: Callable[[str], str]
) -> list[str]:
    """Names beside the line ends, moved apart where they would overlap, each with a thread to its line."""
    last = {curve.method: curve.mean[-1] for curve in curves}
    ends = {method: min(max(y(value), y.end), y.start) for method, value in last.items()}
    places = spaced(ends, y.end, y.start)
    parts = []
    for method, place in places.items():
        number, hero = methods.index(method), " hero" if method == HERO else ""
        thread = f"{x.end + 2:.1f},{ends[method]:.1f} {x.end + 16:.1f},{place:.1f}"
        parts.append(f'<polyline class="thread c{number}" points="{thread}"/>')
        parts.append(text(x.end + 20, place + 4, shown(method), f"name{hero}"))
        parts.append(text(x.end + labels - 10, place + 4, _figure(last[method]), f"value end{hero}"))
    return parts


def _figure(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"


def _short(method: str) -> str:
    """A name that fits beside its value: of a file and class the class, and no longer than a composition's."""
    name = NAMES.get(method, method).rsplit(":", 1)[-1]
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def spaced(places: Mapping[str, float], top: float, bottom: float) -> dict[str, float]:
    """Move names apart to at least a line's height, keeping their order and, where there is room, to the panel."""
    order = sorted(places, key=lambda name: places[name])
    found: dict[str, float] = {}
    floor = top
    for name in order:
        found[name] = floor = max(places[name], floor)
        floor += LINE_HEIGHT
    ceiling = bottom
    for name in reversed(order):
        found[name] = ceiling = min(found[name], ceiling)
        ceiling -= LINE_HEIGHT
    return found


def colours(methods: Sequence[str]) -> list[tuple[str, str]]:
    """Each method's colour on light and on dark: its own for a method of the paper, a free one otherwise."""
    strangers = [method for method in methods if method not in COLOURS]
    free = [*SPARE, *(pair for method, pair in COLOURS.items() if method not in methods)]
    return [COLOURS.get(m) or free[strangers.index(m) % len(free)] for m in methods]


def document(
    width: float,
    methods: Sequence[str],
    body: Sequence[str],
    height: float = HEIGHT,
    title: str = "Test accuracy over the rounds, by method",
    palette: Sequence[tuple[str, str]] = (),
    style: str = "",
) -> str:
    """A whole SVG, with a colour for each method, or those of a palette, for light and dark."""
    pairs = palette or colours(methods)
    light, dark = (
        "\n".join(f".c{n} {{ stroke: {c[shade]} }} .f{n} {{ fill: {c[shade]} }}" for n, c in enumerate(pairs))
        for shade in (0, 1)
    )
    band = 0.16 if len(methods) <= 3 else 0.08  # many bands on top of each other make mud
    bands = f".band {{ opacity: {band}; stroke: none }}"
    return sheet(width, height, title, "\n".join(filter(None, [STYLE, bands, light, style])), dark, body)


STYLE = """.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round }
.line.hero { stroke-width: 3.2 }
.name.hero, .value.hero { font-weight: 700 }
.axis { stroke: #9aa3af; stroke-width: 1 }
.thread { fill: none; stroke-width: 1.5 }"""
