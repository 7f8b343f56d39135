"""What one lying client costs: digits, ten clients, one of whom lies in every round.

    python benchmarks/lies.py [--seeds 0,1,2] [--workers 2] [--only flip=1x30,…]

Each lie is compared with the run in which that client is silent, on the same seed and split. Writes
results/reliability/lies.json and the table that docs/reliability.md shows.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

import fedssd
from fedssd.recipe import load_recipe
from fedssd.simulation.result import Result
from fedssd.sweeps.grid import run_many

OUT = Path(__file__).resolve().parent.parent / "results" / "reliability"
SETTING: dict[str, Any] = {"method": "fedavg", "partition": "dirichlet:0.1", "evaluate_local": False}
SILENT = "silent=1"
LOUD = {"scale=1x1e37": "×10³⁷", "scale=1x100": "×100", "scale=1x30": "×30", "flip=1x30": "flipped ×30",
        "claim=1x1e13": "10¹⁵ samples claimed"}  # fmt: skip
QUIET = {"scale=1x10": "×10", "flip=1x10": "flipped ×10", "scale=1x5": "×5", "flip=1x5": "flipped ×5"}


class Server(NamedTuple):
    """A column: what stands between the replies and the model."""

    title: str
    keys: dict[str, Any]


SERVERS = (
    Server("FedAvg, no guard", {"on_bad_update": "keep"}),
    Server("FedAvg", {}),
    Server("FedAvg, vectorised engine", {"engine": "vectorised"}),
    Server("median", {"server": "median"}),
    Server("multi-Krum (one bad, mean of 7)", {"server": "krum", "krum.bad": 1, "krum.keep": 7}),
)


def keys_of(server: Server, faults: str, seed: int) -> dict[str, Any]:
    """The recipe digits with one liar."""
    return {"engine": "reference"} | SETTING | server.keys | {"faults": faults, "seed": seed}


def measure(seeds: list[int], workers: int, only: list[str]) -> list[dict[str, Any]]:
    """Every lie under every server half, and the same without the client that lies."""
    lies = only or [*LOUD, *QUIET]
    wanted = [(server, faults, seed) for server in SERVERS for faults in (SILENT, *lies) for seed in seeds]
    recipes = [load_recipe("digits", keys_of(*one)) for one in wanted]
    results = run_many(recipes, [str(place) for place in range(len(recipes))], workers=workers, listen=_say)
    return [_row(*one, result) for one, result in zip(wanted, results, strict=True)]


def _row(server: Server, faults: str, seed: int, result: Result) -> dict[str, Any]:
    summary = result.summary
    return {
        "server": server.title,
        "faults": faults,
        "seed": seed,
        "accuracy": summary.accuracy,
        "dropped": summary.dropped,
        "failed": summary.failed,
        "recipe_hash": summary.recipe_hash,
    }


def table(found: list[dict[str, Any]]) -> str:
    """Points lost against the run without the liar: mean over the seeds and the worst of them."""
    titles = list(dict.fromkeys(row["server"] for row in found))
    of = {(row["server"], row["faults"], row["seed"]): row for row in found}
    seeds = sorted({row["seed"] for row in found})
    clean = [" ".join(f"{100 * of[title, SILENT, seed]['accuracy']:.1f}" for seed in seeds) for title in titles]
    lines = ["| one of ten lies | " + " | ".join(titles) + " |", "| --- |" + " ---: |" * len(titles)]
    lines.append("| it is silent: accuracy % | " + " | ".join(clean) + " |")
    for faults in dict.fromkeys(row["faults"] for row in found):
        if faults == SILENT:
            continue
        cells = []
        for title in titles:
            change = [
                100 * (of[title, faults, seed]["accuracy"] - of[title, SILENT, seed]["accuracy"]) for seed in seeds
            ]
            cells.append(f"{fmean(change):+.1f} (worst {min(change):+.1f})")
        lines.append(f"| {(LOUD | QUIET).get(faults, faults)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _say(event: Any) -> None:
    if event.note:
        print(event.run, event.note, file=sys.stderr, flush=True)


def main() -> None:
    """Make the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", default="", help="faults, separated by commas; nothing is written then")
    args = parser.parse_args()
    torch.set_num_threads(1)
    only = [name for name in args.only.split(",") if name]
    found = measure([int(seed) for seed in args.seeds.split(",")], args.workers, only)
    if not only:
        OUT.mkdir(parents=True, exist_ok=True)
        content = {"setting": SETTING, "fedssd": fedssd.__version__, "torch": str(torch.__version__), "runs": found}
        (OUT / "lies.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (OUT / "lies.md").write_text(table(found), encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
