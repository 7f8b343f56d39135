"""Digits with ten clients of whom two send NaN and two their update flipped ×10, every round: what survives that.

Writes results/reliability/digits.json, every run's figures, of which docs/reliability.md shows the table. The clean
run is FedAvg over the same six honest clients: the four others never reply.
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
from fedssd.core import tree
from fedssd.core.tree import Tree
from fedssd.recipe import Recipe, load_recipe
from fedssd.simulation.events import Event
from fedssd.sweeps.grid import run_named

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "results" / "reliability"
FAULTS, HONEST_ONLY = "nan=2,flip=2x10", "silent=4"
PARTITIONS = {"iid": "IID", "dirichlet:0.5": "Dir(0.5)", "classes:2": "#K=2"}
SETTING = {"data": "digits", "clients": 10, "auxiliary": 8, "rounds": 20, "epochs": 10, "batch": 32, "lr": 0.03}


class Case(NamedTuple):
    """A row of the table: the keys that make it, and what it is called there."""

    title: str
    keys: dict[str, Any]


CASES = [
    Case("clean: FedAvg over the six honest clients", {"faults": HONEST_ONLY}),
    Case("FedAvg, guard off", {"on_bad_update": "keep"}),
    Case("FedAvg, guard", {}),
    Case("FedAvg, guard with a norm limit of 3", {"norm_limit": 3.0}),
    Case("median, guard", {"server": "median"}),
    Case("trimmed mean (2 off each end), guard", {"server": "trimmed-mean", "trimmed-mean.cut": 2}),
    Case("Krum (f = 2), guard", {"server": "krum", "krum.bad": 2}),
    Case("multi-Krum (f = 2, mean of 4), guard", {"server": "krum", "krum.bad": 2, "krum.keep": 4}),
    Case("clipping at the median norm, guard", {"server": "clipping"}),
    Case("median, guard off", {"server": "median", "on_bad_update": "keep"}),
]


def recipe(case: Case, partition: str, seed: int) -> Recipe:
    """FedAvg's local half; the case says the rest."""
    keys = {**SETTING, "method": "fedavg", "partition": partition, "seed": seed, "faults": FAULTS, **case.keys}
    return load_recipe(None, keys)


def measure(seeds: list[int], workers: int) -> dict[str, Any]:
    """Every case on every split and seed."""
    wanted = [(case, split, seed) for case in CASES for split in PARTITIONS for seed in seeds]
    recipes = [recipe(*one) for one in wanted]
    results = run_named(recipes, [str(place) for place in range(len(recipes))], workers=workers, listen=_say)
    runs = []
    for (case, split, seed), result in zip(wanted, results, strict=True):
        summary = result.summary
        runs.append(
            {
                "case": case.title,
                "keys": case.keys,
                "partition": split,
                "seed": seed,
                "acc": summary.accuracy,
                "best": summary.best_accuracy,
                "loss": summary.loss,
                "weights": _state(result.weights),
                "diverged": summary.diverged,
                "dropped": summary.dropped,
                "unchanged_rounds": summary.unchanged_rounds,
                "recipe_hash": summary.recipe_hash,
                "split_hash": summary.split_hash,
            }
        )
    versions = {"fedssd": fedssd.__version__, "torch": str(torch.__version__), "python": platform.python_version()}
    return {"setting": {**SETTING, "method": "fedavg", "faults": FAULTS}, "versions": versions, "runs": runs}


def table(found: dict[str, Any]) -> str:
    """Final accuracy by case and split, over the seeds, and how far that is from the clean run."""
    lines = ["| server half | " + " | ".join(PARTITIONS.values()) + " |", "| --- |" + " ---: |" * len(PARTITIONS)]
    for title in dict.fromkeys(run["case"] for run in found["runs"]):
        lines.append("| " + " | ".join([title, *(_cell(found["runs"], title, split) for split in PARTITIONS)]) + " |")
    seeds = len({run["seed"] for run in found["runs"]})
    lines += [
        "",
        f"Final global accuracy in percent, mean ± standard deviation over {seeds} seeds; in brackets the difference "
        "from the clean run. NaN: every weight of the final model is NaN. Broke down: the loss overflowed, or the "
        "guard refused every update of a round, so that the model no longer moved.",
    ]
    return "\n".join(lines) + "\n"


def _cell(runs: list[dict[str, Any]], title: str, split: str) -> str:
    mine = [run for run in runs if (run["case"], run["partition"]) == (title, split)]
    clean = {run["seed"]: run["acc"] for run in runs if (run["case"], run["partition"]) == (CASES[0].title, split)}
    percent = [100 * run["acc"] for run in mine]
    text = f"{fmean(percent):.2f} ± {stdev(percent):.2f}" if len(percent) > 1 else f"{percent[0]:.2f}"
    if title != CASES[0].title:
        text += f" ({fmean(100 * (run['acc'] - clean[run['seed']]) for run in mine):+.2f})"
    ended = [name for name, broken in (("NaN", _is_nan), ("broke down", _broke_down)) for run in mine if broken(run)]
    notes = [f"{name} on {ended.count(name)} of {len(mine)}" for name in dict.fromkeys(ended)]
    return ", ".join([text, *notes])


def _is_nan(run: dict[str, Any]) -> bool:
    return bool(run["weights"] == "nan")


def _broke_down(run: dict[str, Any]) -> bool:
    return run["diverged"] is not None and not _is_nan(run)


def _state(weights: Tree) -> str:
    """Whether the final global model is all numbers, all NaN, or something in between."""
    leaves = tree.leaves(weights)
    if all(bool(torch.isfinite(leaf).all()) for leaf in leaves):
        return "finite"
    return "nan" if all(bool(torch.isnan(leaf).all()) for leaf in leaves) else "not finite"


def _say(event: Event) -> None:
    if event.round and event.round.number == SETTING["rounds"]:
        print(f"{event.done}/{event.total} rounds", event.run, event.round.accuracy, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    found = measure([int(seed) for seed in args.seeds.split(",")], args.workers)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "digits.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
