"""Digits with ten clients, three of whom send their update with its sign flipped in every round: what survives that.

    python benchmarks/reliability.py [--workers 1] [--seeds 0,1,2]

A flipped update is as long as an honest one, so the guard takes it. The clean run is FedAvg over the same seven honest
clients. Writes results/reliability/digits.json, of which docs/reliability.md shows the table.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch

import fedssd
from fedssd.recipe import Recipe, load_recipe
from fedssd.simulation.events import Event
from fedssd.sweeps.grid import run_named

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "results" / "reliability"
FAULTS, HONEST_ONLY = "flip=3", "silent=3"
PARTITIONS = {"dirichlet:0.5": "Dir(0.5)"}
SETTING: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 10, "auxiliary": 8, "rounds": 20, "epochs": 10}
SETTING |= {"batch": 32, "lr": 0.03, "evaluate_every": 20, "evaluate_local": False, "engine": "vectorised"}


class Case(NamedTuple):
    """A row of the table: the keys that make it, and what it is called there."""

    title: str
    keys: dict[str, Any]


CASES = [
    Case("clean: FedAvg over the seven honest clients", {"faults": HONEST_ONLY}),
    Case("FedAvg", {}),
    Case("median", {"server": "median"}),
    Case("trimmed mean (3 off each end)", {"server": "trimmed-mean", "trimmed-mean.cut": 3}),
    Case("Krum (f = 3)", {"server": "krum", "krum.bad": 3}),
    Case("multi-Krum (f = 3, mean of 4)", {"server": "krum", "krum.bad": 3, "krum.keep": 4}),
    Case("clipping at the median norm", {"server": "clipping"}),
]


def recipe(case: Case, partition: str, seed: int) -> Recipe:
    """FedAvg's local half; the case says the rest."""
    keys = {**SETTING, "method": "fedavg", "partition": partition, "seed": seed, "faults": FAULTS, **case.keys}
    return load_recipe(None, keys)


def measure(seeds: list[int], workers: int) -> list[dict[str, Any]]:
    """Every case on every split and seed."""
    wanted = [(case, split, seed) for case in CASES for split in PARTITIONS for seed in seeds]
    recipes = [recipe(*one) for one in wanted]
    results = run_named(recipes, [str(place) for place in range(len(recipes))], workers=workers, listen=_say)
    return [
        {
            "case": case.title,
            "keys": case.keys,
            "partition": split,
            "seed": seed,
            "acc": result.summary.accuracy,
            "failed": result.summary.failed,
            "recipe_hash": result.summary.recipe_hash,
            "split_hash": result.summary.split_hash,
        }
        for (case, split, seed), result in zip(wanted, results, strict=True)
    ]


def table(found: dict[str, Any]) -> str:
    """Final accuracy by case and split, over the seeds, and how far that is from the clean run."""
    lines = ["| server half | " + " | ".join(PARTITIONS.values()) + " |", "| --- |" + " ---: |" * len(PARTITIONS)]
    for title in dict.fromkeys(run["case"] for run in found["runs"]):
        lines.append("| " + " | ".join([title, *(_cell(found["runs"], title, split) for split in PARTITIONS)]) + " |")
    seeds = len({run["seed"] for run in found["runs"]})
    lines += [
        "",
        f"Final global accuracy in percent, mean ± standard deviation over {seeds} seeds; in brackets the difference "
        "from the clean run.",
    ]
    return "\n".join(lines) + "\n"


def _cell(runs: list[dict[str, Any]], title: str, split: str) -> str:
    mine = [run for run in runs if (run["case"], run["partition"]) == (title, split)]
    clean = {run["seed"]: run["acc"] for run in runs if (run["case"], run["partition"]) == (CASES[0].title, split)}
    percent = [100 * run["acc"] for run in mine]
    text = f"{fmean(percent):.2f} ± {stdev(percent):.2f}" if len(percent) > 1 else f"{percent[0]:.2f}"
    if title != CASES[0].title:
        text += f" ({fmean(100 * (run['acc'] - clean[run['seed']]) for run in mine):+.2f})"
    failed = sum(bool(run["failed"]) for run in mine)
    return text + (f", failed on {failed} of {len(mine)}" if failed else "")


def _say(event: Event) -> None:
    if event.round and event.round.number == SETTING["rounds"]:
        print(f"{event.done}/{event.total} rounds", event.run, event.round.accuracy, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    runs = measure([int(seed) for seed in args.seeds.split(",")], args.workers)
    versions = {"fedssd": fedssd.__version__, "torch": str(torch.__version__), "python": platform.python_version()}
    found = {"setting": {**SETTING, "method": "fedavg", "faults": FAULTS}, "versions": versions, "runs": runs}
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "digits.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
