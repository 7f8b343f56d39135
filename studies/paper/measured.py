"""The tables and pictures of what was measured, by the names that pages call them: each made from results/."""

from __future__ import annotations

import csv
import json
import runpy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedssd.cli.run import setting
from fedssd.recipe import PAPER_METHODS, load_recipe
from fedssd.reports.charts import learning_curves
from fedssd.reports.comparison import tabulate
from fedssd.reports.methods import as_markdown, catalogue, traffic_as_markdown
from fedssd.reports.statistics import Rival, pair
from fedssd.runs.archive import SUFFIX
from fedssd.runs.read import look, read_run
from fedssd.simulation.result import Result, Round
from studies.paper.digits_tables import pairs
from studies.paper.report.shaded_grids import split_picture
from studies.paper.theory import report as theory
from studies.paper.theory.figure import promise_figure

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
CIFAR10, KERNELS_OFF = RESULTS / f"cifar10{SUFFIX}", RESULTS / f"cifar10-kernels-off{SUFFIX}"
ROUND, SEEDS = 50, (0, 1, 2)  # of the table of methods that ran for fifty rounds on one split
FIFTY = {
    "fedavg": "fedavg-three-splits/partition_seed=1",
    "fedssd": "fedssd-ten-seeds/fedssd",
    "scaffold": "fifty-rounds/scaffold/scaffold",
    "fedgkd": "fifty-rounds/fedgkd/fedgkd",
    "fedavg × fednova": "fifty-rounds/fednova/fedavg",
    "fedavg × ida": "fifty-rounds/ida/fedavg",
    "fedavg × feddf": "fifty-rounds/feddf/fedavg",
    "fedssd × fednova": "fifty-rounds/fedssd-with-fednova/fedssd",
    "fedssd + fedprox": "fifty-rounds/fedssd+fedprox/fedssd+fedprox",
}
SHOWN = ("fedavg", "fedssd", "fedssd+fedprox", "fedssd × fednova", "fedssd × pfnm", "fedssd × fedma")


def benchmark(name: str) -> dict[str, Any]:
    """What a program of benchmarks/ defines."""
    return runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"))


def measured(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def digits() -> list[Result]:
    """Every run on digits, called after its halves, in the order of the program that made them."""
    found = {run.folder.name: run for run in look([RESULTS / f"digits{SUFFIX}"]).results}
    labels = [one.label for one in pairs()]
    names = {label: label.replace(" × ", "-with-") for label in labels}
    return [
        replace(run, summary=replace(run.summary, method=label))
        for label, name in names.items()
        for file, run in found.items()
        if file.rpartition("-")[0] == name
    ]


def side_by_side(folder: str) -> str:
    """The comparison of the runs that one command made, each called after its name in the pack without the seed."""
    runs = [run for run in look([CIFAR10]).results if run.folder.parent == CIFAR10 / folder]
    labels = [run.folder.name.rpartition("-")[0] for run in runs]
    named = [replace(run, summary=replace(run.summary, method=one)) for run, one in zip(runs, labels, strict=True)]
    return tabulate(named).markdown()


def fifty_rounds() -> str:
    """Methods that ran for fifty rounds beside FedAvg and FedSSD after fifty of their hundred, on the same split."""
    base = accuracies(CIFAR10, FIFTY["fedavg"], ROUND, SEEDS)
    lines = [
        "| method | accuracy % | clients' own models % | gain over FedAvg, points | 95 % interval | MB up and down |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, runs in FIFTY.items():
        ours = accuracies(CIFAR10, runs, ROUND, SEEDS)
        first = [rounds(CIFAR10, runs, seed)[:ROUND] for seed in SEEDS]
        own = fmean(100 * found[-1].local_accuracy for found in first)
        size = fmean(sum(one.bytes_up + one.bytes_down for one in found) / 1e6 for found in first)
        gain = ["", ""] if name == "fedavg" else _gain(pair("fedavg", base, ours))
        spread = f"{fmean(ours.values()):.2f} ± {stdev(ours.values()):.2f}"
        lines.append(f"| {name} | {spread} | {own:.2f} | {gain[0]} | {gain[1]} | {size:.0f} |")
    lines += ["", f"mean ± standard deviation over {len(SEEDS)} seeds on one split, after {ROUND} rounds."]
    return "\n".join(lines) + "\n"


def kernels(round_: int = 100, seeds: Sequence[int] = range(5)) -> str:
    """FedSSD with our kernels beside PyTorch's layers, seed by seed."""
    on, off = accuracies(CIFAR10, FIFTY["fedssd"], round_, seeds), accuracies(KERNELS_OFF, "fedssd", round_, seeds)
    lines = ["| seed | kernels on % | kernels off % | difference |", "| ---: | ---: | ---: | ---: |"]
    lines += [f"| {seed} | {on[seed]:.2f} | {off[seed]:.2f} | {on[seed] - off[seed]:+.2f} |" for seed in seeds]
    mean, interval = _gain(pair("off", off, on))
    lines += ["", f"mean difference {mean} points, 95 % interval {interval}; FedSSD after {round_} rounds."]
    return "\n".join(lines) + "\n"


def accuracies(file: Path, runs: str, round_: int, seeds: Sequence[int]) -> dict[int, float]:
    """The global model's accuracy in percent after a round, by seed."""
    return {seed: 100 * rounds(file, runs, seed)[round_ - 1].accuracy for seed in seeds}


def rounds(file: Path, runs: str, seed: int) -> tuple[Round, ...]:
    return read_run(file / f"{runs}-{seed}").rounds


def _gain(found: Rival) -> list[str]:
    assert found.half_width is not None  # there are several seeds
    mean = fmean(found.gains)
    return [f"{mean:+.2f}", f"{mean - found.half_width:+.2f} … {mean + found.half_width:+.2f}"]


def theorem(name: str) -> str:
    """The theorem's constants on a run, round by round."""
    found = measured(f"theory/{name}/theory.json")
    return theory.as_markdown(theory.rounds_of(found), found["m_max"], float(found["S"]), found["setting"])


def promises(name: str) -> str:
    """The same as a picture."""
    found = measured(f"theory/{name}/theory.json")
    return promise_figure(theory.rounds_of(found), found["m_max"], float(found["S"]), found["setting"])


TABLES: dict[str, Callable[[], str]] = {
    "digits": lambda: tabulate(digits()).markdown(),
    "cifar10/fedavg-three-splits": partial(side_by_side, "fedavg-three-splits"),
    "cifar10/fifty-rounds": fifty_rounds,
    "cifar10/kernels": kernels,
    "cost/methods": lambda: as_markdown(catalogue()),
    "cost/bytes": traffic_as_markdown,
    "privacy": lambda: benchmark("federation_privacy")["table"](measured("privacy/digits.json")),
    "reliability": lambda: benchmark("reliability")["table"](measured("reliability/digits.json")),
    "large-models": lambda: benchmark("large_models")["as_markdown"](measured("speed/large-models.json")["cases"]),
    "theory/m-max-0.01": partial(theorem, "m-max-0.01"),
    "theory/m-max-1": partial(theorem, "m-max-1"),
}


def pictures() -> dict[str, str]:
    """The pictures of pages that are no figures of the paper's or the study's, by their files."""
    runs, about = digits(), setting(load_recipe("digits", {}))
    return {
        "curves.svg": learning_curves([run for run in runs if run.summary.method in PAPER_METHODS], about),
        "compositions.svg": learning_curves([run for run in runs if run.summary.method in SHOWN], about),
        "figure-distribution.svg": split_picture(splits()),
        "theory-m-max-0.01.svg": promises("m-max-0.01"),
        "theory-m-max-1.svg": promises("m-max-1"),
    }


def splits() -> list[tuple[str, list[list[int]]]]:
    """Who holds how many samples of each class on the paper's three datasets."""
    found: dict[str, dict[str, list[int]]] = {}
    with (RESULTS / "paper" / "figure-distribution.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["setting"], {}).setdefault(row["client"], []).append(int(row["samples"]))
    return [(title, list(clients.values())) for title, clients in found.items()]
