"""The paper's and the study's figures, each described once and drawn by matplotlib.

``draw("figure-forgetting", runs, folder)`` writes folder/figure-forgetting.svg from runs by the title of their setting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedssd import Result, UserError
from fedssd.reports.charts import (
    COLOURS,
    Chart,
    Line,
    Matrix,
    Panel,
    Series,
    all_values,
    by_method,
    colours,
    mean_curve,
    seed_count,
)
from fedssd.reports.figures import BY_CLASS, accuracies, by_class, called, dots, gaps, held, last_confusion, shares
from fedssd.reports.figures import measures as measured_over_rounds
from fedssd.reports.plots import svg
from fedssd.theory import FORMS
from studies.paper.by_round import MEASURES
from studies.paper.theory.measure import RoundMeasure
from studies.paper.theory.report import counts, judge, rounds_of

Runs = Mapping[str, Sequence[Result]]  # by the title of their setting, or the name of their line
Gains = Mapping[str, Mapping[str, Mapping[int, Sequence[float]]]]  # by panel, line and round, seed by seed
CLIENT = 8  # whose confusion matrices the paper shows
LIKE = ("fedcad", "moon", "fedcurv", "fedssd", "fedntd")  # whose colours the columns' lines have, in their order
ONE_SCALE = "CIFAR-10"
DASHED = "#K"  # the columns by classes a client
STRAIGHT = 30  # up to this ratio of the largest value to the smallest, an ordinary axis shows both
OF_THE_THEOREM = {"observed": "#0072b2", "printed": "#d55e00", "derived": "#009e73"}


def draw(name: str, results: Any, folder: Path, note: str = "") -> Path:
    """Write a figure as ``NAME.svg``.

    Args:
        name: one of FIGURES
        results: what its function takes, mostly runs by the title of their setting
        folder: where it goes
        note: what a reader must know, such as which data stand in for the paper's

    Returns:
        The file.
    """
    drawn = picture(name, results, note)
    if not drawn:
        raise UserError(f"these runs recorded nothing that {name} could be drawn from")
    file = folder / f"{name}.svg"
    file.write_text(drawn, encoding="utf-8")
    return file


def picture(name: str, results: Any, note: str = "") -> str:
    """Return the figure as SVG; nothing where the runs recorded none of it."""
    chart = FIGURES[name](results)
    if chart is None:
        return ""
    notes = " · ".join(filter(None, [note, chart.note]))
    return svg(Chart(chart.title, chart.panels, notes, chart.columns))


def distribution(splits: Mapping[str, Sequence[Sequence[int]]]) -> Chart:
    """Who holds how many samples of each class: a panel a dataset, given as counts by client and class."""
    return Chart("Training samples by client and class", [held(*split) for split in splits.items()], columns=3)


def forgetting(runs: Runs) -> Chart | None:
    """Left a dot for every round, global against mean local accuracy; right their difference over the rounds."""
    series = _by_title(runs)
    panels = dots(series, "Global against mean local accuracy"), gaps(series, "Global less mean local, points")
    note = "FedAvg: test accuracy of the global model and of the clients' models, mean over seeds"
    return Chart("Forgetting by heterogeneity", [panel for panel in panels if panel], note) if all(panels) else None


def classes(runs: Runs) -> Chart | None:
    """Accuracy by class over the rounds, of the global model and of client 0, a pair of panels a setting."""
    panels = [
        panel
        for title, found in runs.items()
        for name in ("global model", "client 0")
        for panel in by_class(f"{title}: {name}", found, BY_CLASS[name])
    ]
    note = f"FedAvg: share of a class's test samples called by their name; mean over {_seeds(runs)}"
    return Chart("Accuracy by class over the rounds", panels, note) if panels else None


def confusion(runs: Runs) -> Chart | None:
    """What client 8 holds, the global model it was sent last, and what it made of each method's: on the first seeds."""
    panels: list[Panel] = []
    for one in by_method([run for found in runs.values() for run in found]):
        run = min(one.records, key=lambda record: record.summary.seed)
        found = last_confusion(run)
        if found is None or CLIENT not in found[1].client_confusion:
            continue
        before, last = found
        names = [str(number) for number in range(len(last.client_confusion[CLIENT]))]
        if not panels:
            panels += _holdings(run, names)
            panels += [called("the global model, %", shares(before.confusion), names)] if before else []
        title = f"{one.name}: client {CLIENT}, seed {run.summary.seed}, %"
        panels.append(called(title, shares(last.client_confusion[CLIENT]), names))
    note = "share of a class's test samples that are called so, in the last round"
    return Chart(f"Confusion matrices of client {CLIENT}", panels, note) if panels else None


def _holdings(run: Result, names: Sequence[str]) -> list[Panel]:
    """The training samples of client 8, which are called what they are."""
    for own in run.provenance.get("counts", [])[CLIENT:][:1]:
        rows = [[count * (row == column) for column in range(len(own))] for row, count in enumerate(own)]
        return [
            Panel(
                f"client {CLIENT} holds, samples", (), Matrix(rows, max(own), "samples", names=names), "class", "class"
            )
        ]
    return []


def learning_curves(runs: Runs) -> Chart:
    """Test accuracy of the global model and of the clients' own, a row a setting, one line a method.

    A setting without a title is the only one.
    """
    panels = [panel for title, found in runs.items() for panel in accuracies(by_method(found), title)]
    return Chart("Test accuracy over the rounds, %", panels, f"mean and ±1 standard deviation over {_seeds(runs)}")


def by_round(gains: Gains) -> Chart | None:
    """FedSSD's gain over FedAvg in every round, a line for each split; CIFAR-10's panels have one scale."""
    panels = []
    for title, columns in gains.items():
        look = dict(zip(columns, LIKE, strict=False))
        curves = {name: mean_curve(by) for name, by in columns.items()}
        lines = [
            Line(name, one.rounds, one.mean, (), COLOURS[look[name]][0], int(name.startswith(DASHED)))
            for name, one in curves.items()
        ]
        seeds = seed_count(max(map(len, by.values())) for by in columns.values())
        panels.append(Panel(title, lines, note=seeds))
    scales = {panel.title: all_values(panel.lines) for panel in panels}
    shared = [scale for title, scale in scales.items() if title.startswith(ONE_SCALE)]  # or noise looks like an effect
    for title in scales:
        if title.startswith(ONE_SCALE):
            scales[title] = min(low for low, _ in shared), max(high for _, high in shared)
    seen = [replace(one, low=scales[one.title][0], high=scales[one.title][1]) for one in panels]
    note = "mean over seeds, by round; the panels of CIFAR-10 have one scale"
    return Chart("FedSSD less FedAvg, points", seen, note) if seen else None


def mechanism(runs: Runs) -> Chart | None:
    """What methods do from round to round: how much is distilled and forgotten, and how far clients go."""
    pairs = dict(zip(runs, colours(list(runs)), strict=True)) | {"kl": COLOURS["fedcurv"]}
    series = [Series(name, name, *pairs[name], records) for name, records in runs.items()]
    panels = measured_over_rounds(series, MEASURES)
    note = f"mean and ±1 standard deviation over {_seeds(runs)}"
    return Chart("Distillation, forgetting and drift from round to round", panels, note) if panels else None


def theorem(found: Mapping[str, Any]) -> Chart:
    """What Theorem 1 promises and what the rounds brought, from what ``theory`` measured on a run."""
    return promises(rounds_of(found), found["m_max"], float(found["S"]), found["setting"])


def promises(rounds: Sequence[RoundMeasure], m_max: float, clients: float, setting: str = "") -> Chart:
    """Left, the decrease of the global loss; right, μ + L_m, which has to be above 0 for a promise at all."""
    judged = {form.name: [judge(one, form, m_max, clients) for one in rounds] for form in FORMS}
    numbers = [one.round for one in rounds]

    def line(name: str, shown: str, values: Sequence[float | None]) -> Line:
        known = [math.nan if value is None else value for value in values]
        return Line(shown, numbers, known, (), OF_THE_THEOREM[name], int(name == "derived"), dots=True)

    promised = [line(n, f"promised, as {n}", [one.promised for one in found]) for n, found in judged.items()]
    margins = [line(n, f"as {n}", [one.promise.margin for one in found]) for n, found in judged.items()]
    observed = line("observed", "observed", [one.observed for one in rounds])
    made = [value for one in promised for value in one.y if math.isfinite(value)]
    remark = "a promise below 0 is none" if made and min(made) < 0 else "" if made else "nothing is promised"
    panels = [
        _over_powers("Fall of the global loss in the round", [observed, *promised], remark),
        _over_powers("μ + L_m", margins, "condition 2: above 0"),
    ]
    lines = [setting, *(f"as {name}: {counts(found)}" for name, found in judged.items())]
    return Chart("What Theorem 1 promises, and what the rounds brought", panels, "\n".join(filter(None, lines)))


def _over_powers(title: str, lines: Sequence[Line], note: str) -> Panel:
    """A panel whose axis is logarithmic beyond the smaller values where powers of ten are crossed."""
    sizes = sorted(abs(y) for line in lines for y in line.y if math.isfinite(y) and y != 0) or [1.0]
    bent = sizes[-1] > STRAIGHT * sizes[0]
    shown = [line for line in lines if any(map(math.isfinite, line.y))]
    straight = 10.0 ** math.floor(math.log10(sizes[len(sizes) // 10])) if bent else math.inf
    return Panel(title, shown, note=note, straight=straight)


def _by_title(runs: Runs) -> list[Series]:
    pairs = zip(runs.items(), colours(list(runs)), strict=True)
    return [Series(title, title, *pair, found) for (title, found), pair in pairs]


def _seeds(runs: Runs) -> str:
    return seed_count(len({run.summary.seed for run in found}) for found in runs.values())


FIGURES: dict[str, Callable[[Any], Chart | None]] = {
    "curves": learning_curves,
    "compositions": learning_curves,
    "figure-distribution": distribution,
    "figure-forgetting": forgetting,
    "figure-classes": classes,
    "figure-confusion": confusion,
    "figure-curves": learning_curves,
    "figure-participation": learning_curves,
    "figure-epochs": learning_curves,
    "study-by-round": by_round,
    "study-mechanism": mechanism,
    "theory": theorem,
    "theory-m-max-0.01": theorem,
    "theory-m-max-1": theorem,
}
