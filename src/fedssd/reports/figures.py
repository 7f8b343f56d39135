"""The charts that runs have data for: each function takes series of one task and describes a chart, or None."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fedssd.reports.charts import (
    Chart,
    Line,
    Matrix,
    Panel,
    Series,
    all_values,
    by_method,
    class_means,
    curve_of,
    cut_off,
    global_accuracy,
    later_values,
    local_accuracy,
    mean_curve,
    totals,
    traffic,
    train_seconds,
    worth_seeing,
)
from fedssd.simulation.fields import Vector
from fedssd.simulation.result import Result, Round

CLIENT = 8  # whose confusion matrices the paper shows
WHOSE = {"Global model": global_accuracy, "Clients' own models, mean": local_accuracy}
DISTILLED = {"weight": "mean M / M_max", "active": "share of M > 0", "ratio": "penalty / cross-entropy"}
BY_CLASS: dict[str, Callable[[Round], Vector]] = {
    "global model": lambda one: one.class_accuracy,
    "clients, mean": lambda one: one.local_class_accuracy,
    "client 0": lambda one: one.client_0_class_accuracy,
}
Measure = Callable[[Round], float | None]
Drawing = Callable[[Sequence[Series]], Chart | None]


def learning_curves(results: Sequence[Result], subtitle: str = "") -> Chart:
    """Global accuracy and the clients' mean local accuracy over the rounds, one line a method."""
    panels = accuracies(by_method(results))
    seeds = len({run.summary.seed for run in results})
    note = "1 seed" if seeds == 1 else f"mean and ±1 standard deviation of {seeds} seeds"
    return Chart("Test accuracy, %", panels, " · ".join(filter(None, [subtitle, note])))


def accuracies(series: Sequence[Series], setting: str = "") -> list[Panel]:
    """Of the global model and of the clients' own: the panels for which there are lines."""
    found = {title: over_rounds(series, measure) for title, measure in WHOSE.items()}
    before = f"{setting}: " if setting else ""
    return [
        Panel(before + (title.lower() if setting else title), lines, None, "round", "", *worth_seeing(lines))
        for title, lines in found.items()
        if lines
    ]


def over_rounds(series: Sequence[Series], measure: Measure) -> list[Line]:
    """A line for each series that has the figure."""
    return [one.line(curve) for one in series if (curve := curve_of(one.records, measure))]


def measures(series: Sequence[Series], wanted: Mapping[str, Measure]) -> list[Panel]:
    """A panel for each measure that some series has; what is cut off is said."""
    panels = []
    for title, measure in wanted.items():
        if lines := over_rounds(series, measure):
            low, high = later_values(lines)
            panels.append(Panel(title, lines, low=low, high=high, note=cut_off(lines, low, high)))
    return panels


def accuracy(measure: Measure, up: str, series: Sequence[Series]) -> Chart | None:
    """An accuracy over the rounds."""
    lines = over_rounds(series, measure)
    return Chart(up, [Panel("", lines, None, "round", up, *worth_seeing(lines))]) if lines else None


def _local_and_global(one: Series) -> dict[int, tuple[float, float]]:
    """Mean local and global accuracy, by those rounds in which both were measured."""
    ours, local = curve_of(one.records, global_accuracy), curve_of(one.records, local_accuracy)
    if ours is None or local is None:
        return {}
    reached = dict(zip(ours.rounds, ours.mean, strict=True))
    return {number: (value, reached[number]) for number, value in zip(local.rounds, local.mean, strict=True)}


def dots(series: Sequence[Series], title: str = "") -> Panel | None:
    """Global against mean local accuracy, a dot a round; on the diagonal nothing is forgotten."""
    both = [(one, found.values()) for one in series if (found := _local_and_global(one))]
    lines = [
        Line(one.name, [a for a, _ in found], [b for _, b in found], (), one.light, one.dash, dots=True, joined=False)
        for one, found in both
    ]
    up, across = "global accuracy, %", "mean local accuracy, %"
    return Panel(title, lines, None, across, up, diagonal=True) if lines else None


def gaps(series: Sequence[Series], title: str = "") -> Panel | None:
    """Global less mean local accuracy over the rounds."""
    lines = []
    for one in series:
        if found := _local_and_global(one):
            lines.append(one.line(mean_curve({number: [reached - own] for number, (own, reached) in found.items()})))
    return Panel(title, lines, None, "round", "global less local, points", *all_values(lines)) if lines else None


def _alone(title: str, panel: Panel | None) -> Chart | None:
    return Chart(title, [panel]) if panel else None


def classes(series: Sequence[Series], whose: Sequence[str] = tuple(BY_CLASS)) -> Chart | None:
    """Accuracy by class over the rounds, for one of the methods; of client 0 on the first seed."""
    one = _last(series, lambda run: any(round_.class_accuracy for round_ in run.rounds))
    if one is None:
        return None
    panels = []
    for name in whose:
        records = one.records[:1] if name == "client 0" else one.records
        panels += by_class(f"{one.name}: {name}", records, BY_CLASS[name])
    return Chart("Accuracy by class over the rounds", panels, columns=3)


def by_class(title: str, records: Sequence[Result], measure: Callable[[Round], Vector]) -> list[Panel]:
    """A panel of classes down and rounds across; none without values."""
    found = class_means(records, measure)
    if not found:
        return []
    down = [[100 * value for value in row] for row in zip(*found.values(), strict=True)]
    return [Panel(title, (), Matrix(down, 100, "%", min(found)), "round", "class")]


def credibility(series: Sequence[Series]) -> Chart | None:
    """What the server last found on its auxiliary set and sent to the clients, where it is recorded whole."""
    one = _last(series, _whole_credibility)
    if one is None:
        return None
    last = [sent for sent in one.records[0].rounds if sent.credibility][-1]
    rows = [[100 * value for value in row] for row in last.credibility if isinstance(row, tuple)]
    return Chart(
        "Credibility", [called(f"{one.name}, sent in round {last.number}, %", rows, class_names(one.records[0]))]
    )


def _whole_credibility(run: Result) -> bool:
    return any(one.credibility and isinstance(one.credibility[0], tuple) for one in run.rounds)


def called(title: str, percent: Sequence[Sequence[float]], names: Sequence[str]) -> Panel:
    """True classes down and called classes across, in percent of the row."""
    return Panel(title, (), Matrix(percent, 100, "%", names=names), "called", "class")


def confusion(series: Sequence[Series]) -> Chart | None:
    """The global model a client was sent in the last round, and what the client made of it; two methods."""
    known = {one.id: found for one in series if (found := last_confusion(one.records[0])) and found[1].client_confusion}
    having = [one for one in series if one.id in known]
    chosen = [one for name in ("fedavg", "fedssd") if (one := _leading(having, name))] or having[:2]
    panels = []
    for one in chosen:
        (before, last), names = known[one.id], class_names(one.records[0])
        client = CLIENT if CLIENT in last.client_confusion else min(last.client_confusion)
        panels.append(called(f"{one.name}, global", shares((before or last).confusion), names))
        panels.append(called(f"{one.name}, client {client} after", shares(last.client_confusion[client]), names))
    return Chart("Before and after local training", panels) if panels else None


def last_confusion(run: Result) -> tuple[Round | None, Round] | None:
    """The last round with matrices, after the round that sent the clients its model, if that has one."""
    found = {one.number: one for one in run.rounds if one.confusion}
    return (found.get(max(found) - 1), found[max(found)]) if found else None


def shares(counts: Sequence[Sequence[float]]) -> list[list[float]]:
    """In percent of the row."""
    return [[100 * value / max(sum(row), 1) for value in row] for row in counts]


def class_names(run: Result) -> list[str]:
    """The data's own, or numbers."""
    found = next((one.class_accuracy for one in run.rounds if one.class_accuracy), ())
    return list(run.provenance.get("classes") or map(str, range(len(found))))


def distilled(series: Sequence[Series]) -> Chart | None:
    """How much was distilled, as means over all samples trained on in a round."""
    panels = []
    for key, title in DISTILLED.items():
        lines = over_rounds(series, share_of(key))
        panels += [Panel(title, [_without_spread(line) for line in lines])] if lines else []
    return Chart("How much was distilled", panels, columns=3) if panels else None


def share_of(key: str) -> Measure:
    """The measure of that name among what is recorded of distillation."""
    return lambda one: one.distillation.get(key)


def partition(series: Sequence[Series]) -> Chart | None:
    """Who holds how many training samples of each class, on the first split."""
    counts = next((run.provenance["counts"] for one in series for run in one.records if "counts" in run.provenance), ())
    return Chart("Who holds what", [held("", counts)]) if counts else None


def held(title: str, counts: Sequence[Sequence[int]]) -> Panel:
    """Training samples, given by client and class."""
    down = [list(row) for row in zip(*counts, strict=True)]
    return Panel(title, (), Matrix(down, max(map(max, down)) or 1, "samples"), "client", "class")


def cost(measure: Callable[[Round], float], scale: float, across: str, series: Sequence[Series]) -> Chart | None:
    """Accuracy over what was spent."""
    lines = over_rounds(series, global_accuracy)
    low, high = worth_seeing(lines)
    spent = [totals(one.records, measure) for one in series]
    moved = [
        Line(
            line.name, [scale * found[int(number)] for number in line.x], line.y, (), line.colour, line.dash, line.bold
        )
        for line, found in zip(lines, spent, strict=True)
    ]
    up = "global accuracy, %"
    return Chart("Accuracy against cost", [Panel("", moved, None, across, up, low, high)])


def _last(series: Sequence[Series], has: Callable[[Result], bool]) -> Series | None:
    """FedSSD where it has this, else the last method that does."""
    having = [one for one in series if any(map(has, one.records[:1]))]
    return _leading(having, "fedssd") or (having[-1] if having else None)


def _leading(series: Sequence[Series], name: str) -> Series | None:
    """Of a method's lines, such as FedSSD at several strengths, the one to look at first."""
    return next((one for one in series if name in (one.leads, one.id)), None)


def _without_spread(line: Line) -> Line:
    return Line(line.name, line.x, line.y, (), line.colour, line.dash, line.bold)


FIGURES: dict[str, Drawing] = {
    "curves-global": partial(accuracy, global_accuracy, "global accuracy, %"),
    "curves-local": partial(accuracy, local_accuracy, "mean local accuracy, %"),
    "forgetting": lambda series: _alone("Forgetting", dots(series)),
    "gap": lambda series: _alone("Forgetting over the rounds", gaps(series)),
    "classes": classes,
    "credibility": credibility,
    "distilled": distilled,
    "split": partition,
    "confusion": confusion,
    "cost-bytes": partial(cost, traffic, 1e-6, "megabytes, up and down"),
    "cost-seconds": partial(cost, train_seconds, 1.0, "seconds"),
}
# What fedssd.plot draws, by the word for it.
SHOWN = {
    "accuracy": "curves-global",
    "forgetting": "forgetting",
    "classes": "classes",
    "confusion": "confusion",
    "credibility": "credibility",
    "partition": "split",
}
