"""What client 8 keeps of the global model: the paper's figure of confusion matrices as numbers, for every method.

The paper says of its client 8 which classes local training learns and of which FedSSD preserves what the global model
knows; in a split like it, the client holds the first and hardly any of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from fedssd.reports.charts import NAMES
from fedssd.reports.markdown import table
from fedssd.reports.statistics import pair
from fedssd.runs.read import read_run
from fedssd.simulation.result import Result
from studies.paper.cells import Place, cells_of, places_of
from studies.paper.paper import CIFAR10, EXPERIMENTS
from studies.paper.report.figure_data import CLIENT, Matrix, matrices_of
from studies.paper.report.lines import lines_of
from studies.paper.report.wording import interval, spread

LOCAL, GLOBAL = (0, 3, 4, 5, 8), (1, 2, 6, 7)  # what the paper says is learnt, and what is preserved


def section(done: Mapping[str, Path], seeds: Sequence[int]) -> str:
    """Recall of client 8's model in the last round and of the one it was sent, for Table 1's methods and Table 3's."""
    first = [place for place in places_of(EXPERIMENTS["table1"], {}) if place.column.recipe == CIFAR10.recipe]
    places = [*first, *places_of(EXPERIMENTS["table3"], {})]
    rows, shown, base = [], set[str](), dict[int, float]()
    for place in places:
        for method in place.column.methods:
            cells = [cell for cell in cells_of(place, seeds, (method,)) if cell.key in done]
            runs = [run for cell in cells if "client" in _recalls(run := read_run(done[cell.key]))]
            if runs and cells[0].key not in shown:  # a cell of two tables is shown once
                shown.update(cell.key for cell in cells)
                kept = {run.summary.seed: 100 * fmean(_recalls(run)["client"][k] for k in GLOBAL) for run in runs}
                base = kept if method == "fedavg" else base
                own, *others = _figures(runs)
                less = "–" if kept is base else interval(pair(method, base, kept))
                rows.append([_named(place, method), own, less, *others])
    if not rows:
        return ""
    words = [", ".join(map(str, classes)) for classes in (GLOBAL, LOCAL)]
    kept_of = (f"client {CLIENT} keeps of {words[0]}, %", "less FedAvg's [95 %]")
    heads = ("method", *kept_of, f"knows of {words[1]}, %")
    return table((*heads, f"the global model it was sent, of {words[0]}, %", f"of {words[1]}, %"), rows)


def _named(place: Place, method: str) -> str:
    name = NAMES.get(method, method.upper())
    return name if place.column.recipe == CIFAR10.recipe else f"{name}, {place.column.title}"


def _figures(runs: Sequence[Result]) -> list[str]:
    """Each over the runs that recorded it: of the model that was sent, those that evaluated the round before."""
    found = [_recalls(run) for run in runs]
    columns = [[100 * fmean(one[who][k] for k in classes) for one in found if who in one] for who, classes in ORDER]
    return [spread(values) if values else "–" for values in columns]


ORDER = (("client", GLOBAL), ("client", LOCAL), ("global", GLOBAL), ("global", LOCAL))


def _recalls(run: Result) -> dict[str, list[float]]:
    """By class, of the client's model after local training and of the global one it was sent, as far as recorded.

    Lean runs have the matrices of the last round alone, and every class's accuracy in every round.
    """
    _, sent, after = matrices_of(run)
    before = [line["global"].get("class_acc", []) for line in lines_of(run)[-2:-1] if "global" in line]
    found = {"client": _recall(after), "global": _recall(sent) or next(iter(before), [])}
    return {who: recalls for who, recalls in found.items() if recalls}


def _recall(matrix: Matrix) -> list[float]:
    return [row[place] / sum(row) for place, row in enumerate(matrix)]
