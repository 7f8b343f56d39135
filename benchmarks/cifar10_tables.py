"""The tables of results/cifar10, written again from its runs: those of its folders, and those over several.

    python benchmarks/cifar10_tables.py

``fifty-rounds/table.md`` sets the methods that ran for 50 rounds beside FedAvg and FedSSD after 50 of their 100 rounds,
on the same split and seeds. ``table.md``, ``table.csv`` and ``curves.svg`` beside runs are what ``fedssd compare`` and
``fedssd sweep`` wrote there, by today's rules. ``kernels.md`` sets FedSSD with our kernels beside PyTorch's layers,
seed by seed; of the runs without them the rounds alone are kept, since their recipes are those of the runs with them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

from fedssd.cli.run import setting
from fedssd.experiment.recipe import load_recipe
from fedssd.reports.charts import learning_curves
from fedssd.reports.comparison import tabulate
from fedssd.reports.records import Record, read
from fedssd.reports.statistics import Rival, pair

RESULTS = Path(__file__).resolve().parent.parent / "results" / "cifar10"
ROUND, SEEDS = 50, (0, 1, 2)
ROWS = {
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


def accuracies(folder: str, round_: int, seeds: tuple[int, ...]) -> dict[int, float]:
    """The global model's accuracy in percent after a round, by seed."""
    return {seed: 100 * after(folder, seed, round_)["global"]["acc"] for seed in seeds}


def after(folder: str, seed: int, round_: int) -> dict[str, dict[str, float]]:
    return _round(RESULTS / f"{folder}-{seed}" / "rounds.jsonl", round_)


def _round(record: Path, round_: int) -> dict[str, dict[str, float]]:
    lines = map(json.loads, record.read_text(encoding="utf-8").splitlines()[1:])
    found: dict[str, dict[str, float]] = next(line for line in lines if line["round"] == round_)
    return found


def fifty_rounds() -> str:
    base = accuracies(ROWS["fedavg"], ROUND, SEEDS)
    lines = [
        "| method | accuracy % | clients' own models % | gain over FedAvg, points | 95 % interval | MB up and down |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, folder in ROWS.items():
        ours = accuracies(folder, ROUND, SEEDS)
        own = fmean(100 * after(folder, seed, ROUND)["local"]["acc_mean"] for seed in SEEDS)
        size = fmean(_megabytes(folder, seed) for seed in SEEDS)
        gain = ["", ""] if name == "fedavg" else _gain(pair("fedavg", base, ours))
        spread = f"{fmean(ours.values()):.2f} ± {stdev(ours.values()):.2f}"
        lines.append(f"| {name} | {spread} | {own:.2f} | {gain[0]} | {gain[1]} | {size:.0f} |")
    lines += ["", f"mean ± standard deviation over {len(SEEDS)} seeds on one split, after {ROUND} rounds."]
    return "\n".join(lines) + "\n"


def _megabytes(folder: str, seed: int) -> float:
    lines = map(json.loads, (RESULTS / f"{folder}-{seed}" / "rounds.jsonl").read_text().splitlines()[1:])
    return sum(float(line["bytes_up"] + line["bytes_down"]) for line in lines if line["round"] <= ROUND) / 1e6


def _gain(found: Rival) -> list[str]:
    assert found.half_width is not None  # there are several seeds
    mean = fmean(found.gains)
    return [f"{mean:+.2f}", f"{mean - found.half_width:+.2f} … {mean + found.half_width:+.2f}"]


def kernels(round_: int = 100, seeds: tuple[int, ...] = (0, 1, 2, 3, 4)) -> str:
    on = accuracies(ROWS["fedssd"], round_, seeds)
    records = {seed: RESULTS / "fedssd-kernels-off" / f"{seed}.jsonl" for seed in seeds}
    off = {seed: 100 * _round(record, round_)["global"]["acc"] for seed, record in records.items()}
    lines = ["| seed | kernels on % | kernels off % | difference |", "| ---: | ---: | ---: | ---: |"]
    lines += [f"| {seed} | {on[seed]:.2f} | {off[seed]:.2f} | {on[seed] - off[seed]:+.2f} |" for seed in seeds]
    mean, interval = _gain(pair("off", off, on))
    lines += ["", f"mean difference {mean} points, 95 % interval {interval}; FedSSD after {round_} rounds."]
    return "\n".join(lines) + "\n"


def folder_runs(folder: Path) -> list[Record]:
    """A folder's runs, each named after its own folder without the seed."""
    return [_named(read(summary.parent)) for summary in sorted(folder.glob("*/summary.json"))]


def _named(run: Record) -> Record:
    return replace(run, summary={**run.summary, "method": run.folder.name.rpartition("-")[0]})


if __name__ == "__main__":
    for found in sorted(RESULTS.rglob("table.csv")):
        runs = folder_runs(found.parent)
        found.write_text(tabulate(runs).csv(), encoding="utf-8")
        found.with_suffix(".md").write_text(tabulate(runs).markdown(), encoding="utf-8")
        curves = found.with_name("curves.svg")
        if curves.is_file():
            subtitle = setting(load_recipe(runs[0].folder / "recipe.toml", {}))
            curves.write_text(learning_curves(runs, subtitle), encoding="utf-8")
    (RESULTS / "fifty-rounds" / "table.md").write_text(fifty_rounds(), encoding="utf-8")
    (RESULTS / "kernels.md").write_text(kernels(), encoding="utf-8")
