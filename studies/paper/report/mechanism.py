"""What a method does from round to round: how much is distilled and forgotten, and how far clients go."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedssd.reports.charts import COLOURS, Curve, colours, cut_off, later_scale, mean_curve
from fedssd.reports.drawings import Page, Plot, drawn, seeds
from fedssd.simulation.result import Result
from studies.paper.report.lines import lines_of

Line = Mapping[str, Any]
Runs = Mapping[str, Sequence[Result]]  # by the name a line in the figure has
OWN = {"kl": COLOURS["fedcurv"]}  # which is not drawn here; the free colour it would have is like FedAvg's grey


def _percent(line: Line, *path: str) -> float | None:
    value: Any = line
    for key in path:
        value = (value or {}).get(key)
    return None if value is None else round(100 * float(value), 9)  # 10 % less 10 % is 0


def _worst(line: Line, whose: str) -> float | None:
    measured = line.get(whose) or {}
    recalls, worst = measured.get("class_acc"), measured.get("worst")  # of a packed run often the worst alone
    return 100 * min(recalls) if recalls else None if worst is None else 100 * worst


DISTILLED: dict[str, Callable[[Line], float | None]] = {  # a method without a teacher has none of these
    "mean M / M_max, %": lambda line: _percent(line, "distillation", "weight"),
    "share of M > 0, %": lambda line: _percent(line, "distillation", "active"),
    "penalty over cross-entropy, %": lambda line: _percent(line, "distillation", "ratio"),
}
MEASURES: dict[str, Callable[[Line], float | None]] = DISTILLED | {
    "clients' accuracy Acc_L, %": lambda line: _percent(line, "local", "acc_mean"),
    "forgetting Acc_G − Acc_L, points": lambda line: _percent(line, "forgetting"),
    "drift ‖w_i − w_g‖": lambda line: line.get("drift"),
    "recall of the worst class, global model, %": lambda line: _worst(line, "global"),
    "recall of the worst class, clients' mean, %": lambda line: _worst(line, "local"),
}


def curves(runs: Runs, measure: Callable[[Line], float | None]) -> list[Curve]:
    """A curve for each name that has the figure."""
    found = []
    for name, records in runs.items():
        by_round: dict[int, list[float]] = {}
        for line in (line for record in records for line in lines_of(record)):
            value = measure(line)
            if value is not None:
                by_round.setdefault(line["round"], []).append(value)
        found += [mean_curve(name, by_round)] if by_round else []
    return found


def at_the_end(runs: Sequence[Result], measure: Callable[[Line], float | None]) -> float | None:
    """The mean over seeds in the last round."""
    known = ends(runs, measure)
    return fmean(known) if known else None


def ends(runs: Sequence[Result], measure: Callable[[Line], float | None]) -> list[float]:
    """Of those seeds that have it, in the last round."""
    return list(ends_by_seed(runs, measure).values())


def ends_by_seed(runs: Sequence[Result], measure: Callable[[Line], float | None]) -> dict[int, float]:
    """The same, each with its seed."""
    values = {record.summary.seed: measure(lines_of(record)[-1]) for record in runs if record.rounds}
    return {seed: value for seed, value in values.items() if value is not None}


def picture(runs: Runs) -> str:
    """Every measure that some run has, as plots over the rounds; lines are called as the table calls them."""
    found = [(title, lines) for title, measure in MEASURES.items() if (lines := curves(runs, measure))]
    scales = [later_scale(lines) for _, lines in found]
    plots = [Plot(title, lines, y, cut_off(lines, y)) for (title, lines), y in zip(found, scales, strict=True)]
    names = list(runs)
    palette = [OWN.get(name, colour) for name, colour in zip(names, colours(names), strict=True)]
    note = f"mean and ±1 std over {seeds(map(len, runs.values()))}"
    return drawn(
        Page("Distillation, forgetting and drift over the rounds", "From round to round", note, names, palette), plots
    )


def as_csv(runs: Runs) -> str:
    """The numbers behind the picture, run by run, and every class's recall."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["arm", "seed", "round", "measure", "value"])
    for name, records in runs.items():
        for record in records:
            for line in lines_of(record):
                head = [name, record.summary.seed, line["round"]]
                for title, measure in MEASURES.items():
                    value = measure(line)
                    if value is not None:
                        writer.writerow([*head, title, f"{value:.6g}"])
                for number, recall in enumerate((line.get("global") or {}).get("class_acc", [])):
                    writer.writerow([*head, f"recall of class {number}, global model, %", f"{100 * recall:.6g}"])
    return file.getvalue()
