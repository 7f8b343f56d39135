"""What each figure is drawn from: runs by their settings, gains by round, splits, the theorem's constants."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fedssd
from fedssd import Result
from studies.paper import method_pages
from studies.paper.evidence import Evidence
from studies.paper.figures import draw
from studies.paper.paper import EXPERIMENTS, OURS, SPLITS
from studies.paper.results import PACKS
from studies.paper.trials import Trial

SEEDS = range(3)  # of a figure, as many as `run` has unless told otherwise
Gains = dict[str, dict[str, dict[int, list[float]]]]  # by panel, line and round, seed by seed


def draw_all(of: Evidence, folder: Path) -> list[Path]:
    """Write every figure that there are runs for."""
    sources: dict[str, Callable[[], Any]] = {
        "figure-distribution": splits,
        **{
            name: partial(of_paper, of, name)
            for name in EXPERIMENTS
            if name.startswith("figure-") and "dist" not in name
        },
        "figure-curves": partial(of_paper, of, "table1"),
        "figure-participation": partial(of_paper, of, "participation"),
        "figure-epochs": partial(of_paper, of, "epochs"),
        "study-by-round": partial(gains, of),
        "study-mechanism": partial(at_the_base, of),
        **{f"theory-{name}": partial(theorem, name) for name in ("m-max-0.01", "m-max-1")},
    }
    found = [draw(name, source(), folder) for name, source in sources.items()]
    digits = fedssd.Recipe.load("digits")
    task = f"{digits.clients} clients, {digits.rounds} rounds of {digits.epochs} epochs"
    note = f"{digits.data}, {digits.partition}, {task}"
    return found + [draw(name, {"": runs}, folder, note) for name, runs in method_pages.curves(of.runs).items()]


def of_paper(of: Evidence, name: str) -> dict[str, list[Result]]:
    """The runs behind a figure or table of the paper, by the title of their column."""
    found = {
        column.title: [
            run for method in column.methods for run in of.runs.by_seed(column.setting(method=method), SEEDS).values()
        ]
        for column in EXPERIMENTS[name].columns
    }
    return {title: runs for title, runs in found.items() if runs}


def at_the_base(of: Evidence) -> dict[str, list[Result]]:
    """The arms at the base with what they recorded."""
    return {one.arm: list(of.records(one).values()) for one in of.study.bases("confirm")}


def gains(of: Evidence) -> Gains:
    """FedSSD's gain over FedAvg by round, on CIFAR-10 as both are reported, and on digits with each strength."""
    found: Gains = {}
    ours, settled = of.study.design.columns, of.settled
    for name, value in ((OURS, settled.strengths[ours.key]), (ours.name, settled.everywhere)):
        for column in SPLITS:
            panel = found.setdefault(f"CIFAR-10, M_max = {value:g}", {})
            panel[column.title] = _by_round(of, of.study.reported(column, name))
    for m_max in of.study.design.digits_m_max:
        for column in SPLITS:
            panel = found.setdefault(f"Digits, M_max = {m_max:g}", {})
            panel[column.title] = _by_round(of, of.study.on_digits(column, m_max))
    return found


def _by_round(of: Evidence, trial: Trial) -> dict[int, list[float]]:
    ours, theirs = of.records(trial), of.records(of.study.fedavg_beside(trial))
    found: dict[int, list[float]] = {}
    for seed in sorted(ours.keys() & theirs.keys()):
        for one, other in zip(ours[seed].rounds, theirs[seed].rounds, strict=True):
            if one.accuracy is not None and other.accuracy is not None:
                found.setdefault(one.number, []).append(100 * (one.accuracy - other.accuracy))
    return found


def splits() -> dict[str, list[list[int]]]:
    """Who holds how many samples of each class on the paper's three datasets."""
    found: dict[str, dict[str, list[int]]] = {}
    with (PACKS / "paper" / "figure-distribution.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["setting"], {}).setdefault(row["client"], []).append(int(row["samples"]))
    return {title: list(clients.values()) for title, clients in found.items()}


def theorem(name: str) -> Any:
    """What was measured of the theorem on a run."""
    return json.loads((PACKS / "theory" / name / "theory.json").read_text(encoding="utf-8"))
