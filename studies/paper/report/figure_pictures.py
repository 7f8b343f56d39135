"""The paper's figures of its motivation as SVG: forgetting by heterogeneity, accuracy by class, confusion matrices.

Where runs hold nothing of what a figure shows, as lean ones do, it is empty. Confusion matrices are of the first seed,
all else is a mean over seeds. Data that stand in for the paper's are named in each.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

from fedssd.reports.charts import (
    AXIS,
    BOTTOM,
    HEIGHT,
    LABELS,
    NAMES,
    PANEL,
    TOP,
    Scale,
    axes,
    document,
    mean_curve,
    nice_ticks,
    panel,
    value_scale,
)
from fedssd.reports.drawings import seeds as seeds_of
from fedssd.reports.svg import text
from fedssd.simulation.result import Result
from studies.paper.report.figure_data import CLIENT, Matrix, Titled, matrices_of
from studies.paper.report.lines import lines_of
from studies.paper.report.shaded_grids import Grid, grids


def forgetting(runs: Titled, stand_in: str = "") -> str:
    """Left a dot for every round, global against mean local accuracy; right their difference; means over seeds."""
    found: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for title, run in runs:
        for line in lines_of(run):
            if "local" in line:
                both = 100 * line["local"]["acc_mean"], 100 * line["global"]["acc"]
                found.setdefault(title, {}).setdefault(line["round"], []).append(both)
    if not found:
        return ""
    titles = list(found)
    gaps = [
        mean_curve(title, {number: [b - a for a, b in seeds] for number, seeds in by_round.items()})
        for title, by_round in found.items()
    ]
    dots = {
        title: [(fmean(a for a, _ in seeds), fmean(b for _, b in seeds)) for seeds in by_round.values()]
        for title, by_round in found.items()
    }
    second = 24 + AXIS + PANEL + AXIS + 40
    body = [
        text(24, 30, f"Forgetting by heterogeneity, FedAvg{_named(stand_in)}", "title"),
        text(24, 50, "test accuracy of the global model and of the clients' models, mean", "quiet"),
        *_scatter(24 + AXIS, dots),
        *panel(second, "Global less mean local, points", gaps, titles, value_scale(gaps)),
    ]
    return document(second + PANEL + LABELS, titles, body, title="Global against local accuracy")


def _scatter(left: float, dots: dict[str, list[tuple[float, float]]]) -> list[str]:
    """Global upwards, local to the right, on one scale, so that the diagonal is where nothing is forgotten."""
    values = [value for pairs in dots.values() for pair in pairs for value in pair]
    ticks = nice_ticks(min(values), max(values))
    low, high = ticks[0], ticks[-1]
    x, y = Scale(low, high, left, left + PANEL, ticks), Scale(low, high, HEIGHT - BOTTOM, TOP, ticks)
    circles = [
        f'<circle class="f{number}" cx="{x(local):.1f}" cy="{y(reached):.1f}" r="2.6"/>'
        for number, pairs in enumerate(dots.values())
        for local, reached in pairs
    ]
    diagonal = f'<line class="grid" x1="{x.start}" y1="{y.start}" x2="{x.end}" y2="{y.end}"/>'
    title = text(left, TOP - 14, "Global against mean local, %", "panel")
    return [title, *axes(x, y, "mean local accuracy, %"), diagonal, *circles]


def by_class(runs: Titled, stand_in: str = "") -> str:
    """Accuracy by class over the rounds, of the global model and of client 0: means over seeds."""
    panels = []
    for title in dict.fromkeys(title for title, _ in runs):
        for name, key in (("global", "global"), ("client 0", "client_0")):
            found: dict[int, list[list[float]]] = {}  # by round, seed by seed
            for line in (line for other, run in runs if other == title for line in lines_of(run)):
                if "class_acc" in line.get(key, {}):
                    found.setdefault(line["round"], []).append(line[key]["class_acc"])
            if found:
                means = [[fmean(seeds) for seeds in zip(*found[number], strict=True)] for number in sorted(found)]
                called = f"{title}{_named(stand_in)}: {name}, {seeds_of(map(len, found.values()))}"
                panels.append(Grid(called, means, "round", min(found), shares=True))
    note = "share of a class's test samples called by their name; mean over seeds"
    return grids("Accuracy by class over the rounds", panels, note) if panels else ""


def confusion(runs: Titled, stand_in: str = "") -> str:
    """What client 8 holds, the global model that FedAvg sent it last, and what it made of each method's."""
    panels: list[Grid] = []
    of_seeds: list[int] = []
    for _, run in _first_seeds(runs):
        held, sent, after = matrices_of(run)
        if not after:
            continue
        name = NAMES.get(run.recipe.method, run.recipe.method)
        if not panels:
            panels += [Grid(f"client {CLIENT} holds{_named(stand_in)}", held, "class", unit="samples")] if held else []
            panels += [_called("the global model", sent)] if sent else []
        panels.append(_called(f"{name}: client {CLIENT}", after))
        of_seeds += [run.summary.seed]
    which = f"seed{'' if len(set(of_seeds)) == 1 else 's'} {', '.join(map(str, dict.fromkeys(of_seeds)))}"
    note = f"share of a class's test samples that are called so; {which}, last round"
    return grids(f"Confusion matrices of client {CLIENT}", panels, note) if panels else ""


def _called(title: str, matrix: Matrix) -> Grid:
    """True classes downwards, in shares of the row."""
    shares = [[value / (sum(row) or 1) for value in row] for row in matrix]
    return Grid(title, [list(column) for column in zip(*shares, strict=True)], "called", shares=True)


def _named(stand_in: str) -> str:
    return f" ({stand_in})" if stand_in else ""


def _first_seeds(runs: Titled) -> list[tuple[str, Result]]:
    """Of each setting and method the first seed."""
    found: dict[tuple[str, Any], tuple[str, Result]] = {}
    for title, run in sorted(runs, key=lambda one: _seed(one[1])):
        found.setdefault((title, run.recipe.method), (title, run))
    wanted = dict.fromkeys((title, run.recipe.method) for title, run in runs)
    return [found[key] for key in wanted]


def _seed(run: Result) -> float:
    return float(run.summary.seed)


OF_RUNS: dict[str, Callable[[Titled, str], str]] = {
    "figure-forgetting": forgetting,
    "figure-classes": by_class,
    "figure-confusion": confusion,
}
