"""What one lying client costs: digits, ten clients, one of whom lies in every round.

    python benchmarks/lies.py [--workers 1] [--seeds 0,1,2]

Each lie is compared with the run in which that client is silent, on the same seed and split. Over Flower the server,
the nodes and the bytes of every message are the real ones, in one process, and a client's app lies by itself.
Writes results/reliability/lies.json, prints two tables; docs/reliability.md shows the second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

import fedssd
from fedssd.core.faults import parse_faults
from fedssd.recipe import load_recipe
from fedssd.simulation.events import Event
from fedssd.simulation.result import Summary
from fedssd.sweeps.grid import run_named

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "results" / "reliability"
SETTING: dict[str, Any] = {  # tests/runs/test_spoiled_models.py tells the loud lies to both engines
    "method": "fedavg",
    "partition": "dirichlet:0.1",
    "model": "mlp",
    "rounds": 12,
    "evaluate_every": 12,
    "evaluate_local": False,
    "device": "cpu",
}
HONEST, SILENT = "", "silent=1"
LOUD = {
    "scale=1x1e37": "×10³⁷",
    "scale=1x100": "×100",
    "scale=1x30": "×30",
    "flip=1x30": "flipped ×30",
    "claim=1x1e13": "more than 10¹⁵ samples claimed",
}
QUIET = {"scale=1x10": "×10", "flip=1x10": "flipped ×10", "scale=1x5": "×5", "flip=1x5": "flipped ×5"}
FLOWER, MULTI_KRUM = "FedAvg over Flower, reference engine", "multi-Krum (one bad, mean of 7)"


class Column(NamedTuple):
    """What stands between the replies and the model, and which lies it is told."""

    title: str
    keys: dict[str, Any]
    lies: tuple[str, ...]


COLUMNS = (
    Column("FedAvg", {"engine": "vectorised"}, (*LOUD, *QUIET)),
    Column("median", {"server": "median", "engine": "vectorised"}, tuple(QUIET)),
    Column(MULTI_KRUM, {"server": "krum", "krum.bad": 1, "krum.keep": 7, "engine": "vectorised"}, tuple(QUIET)),
)
Row = dict[str, Any]


def simulated(seeds: list[int], workers: int) -> list[Row]:
    """Every column's lies, the same without the client that lies, and with nobody lying."""
    wanted = [(c, faults, seed) for c in COLUMNS for faults in (HONEST, SILENT, *c.lies) for seed in seeds]
    recipes = [load_recipe("digits", SETTING | c.keys | {"faults": faults, "seed": seed}) for c, faults, seed in wanted]
    results = run_named(recipes, [str(place) for place in range(len(recipes))], workers=workers, listen=_say)
    return [
        _row(column.title, faults, seed, result.summary)
        for (column, faults, seed), result in zip(wanted, results, strict=True)
    ]


def over_flower(seeds: list[int]) -> list[Row]:
    """The loud lies, told by a node, and the node that raises an error in place of every reply."""
    sys.path.insert(0, str(ROOT / "tests" / "flower"))
    from inprocess import InProcessGrid, nodes_for

    from fedssd.flower.samples import deal, read_server
    from fedssd.flower.server import serve
    from fedssd.flower.settings import Settings

    rows = []
    for seed in seeds:
        recipe = load_recipe("digits", SETTING | {"engine": "reference", "seed": seed})
        for faults in (SILENT, *LOUD):
            with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(sys.stderr):
                file = Path(place) / "recipe.toml"
                file.write_text(recipe.to_toml(), encoding="utf-8")
                files, server = deal(recipe, Path(place) / "samples"), Path(place) / "samples" / "server"
                grid = InProcessGrid(nodes_for(file, files))
                tell_lies(grid, faults, seed)
                samples = read_server(server / "samples.npz", recipe)
                served = serve(grid, recipe, samples, Settings(round_timeout=60.0), Path(place) / "run")
                rows.append(_row(FLOWER, faults, seed, served.result().summary))
    return rows


def tell_lies(grid: Any, faults: str, seed: int) -> None:
    """Let the client that the same faults would choose in a simulation lie in each of its replies."""
    from flwr.app import Array

    chosen = parse_faults(faults, len(grid.nodes))
    ((kind, (client,)),) = ((kind, who) for kind, who in chosen.members(seed, len(grid.nodes)).items() if who)
    node = next(n for n in grid.nodes.values() if n.context.node_config["partition-id"] == client)
    honest, times = node.app, getattr(chosen, kind).factor * (-1 if kind == "flip" else 1)

    def app(message: Any, context: Any) -> Any:
        reply = honest(message, context)
        if message.metadata.message_type != "train":
            return reply
        if kind == "silent":
            raise RuntimeError("this client is silent")
        if kind == "claim":
            metrics = reply.content["metrics"]
            metrics["num-examples"] = int(metrics["num-examples"] * times)
            return reply
        weights, sent = reply.content["weights"], message.content["weights"]
        for name, array in weights.items():
            w_i, w = array.numpy(), sent[name].numpy()
            weights[name] = Array(w + w_i.dtype.type(times) * (w_i - w))
        return reply

    node.app = app


def _row(column: str, faults: str, seed: int, summary: Summary) -> Row:
    return {
        "column": column,
        "faults": faults,
        "seed": seed,
        "accuracy": summary.accuracy,
        "dropped": summary.dropped,
        "failed": summary.failed,
        "recipe_hash": summary.recipe_hash,
    }


def tables(rows: list[Row]) -> tuple[str, str]:
    """The loud lies and the quiet ones."""
    loud = table(rows, ["FedAvg", FLOWER], LOUD)
    return loud, table(rows, ["FedAvg", "median", MULTI_KRUM], QUIET)


def table(rows: list[Row], columns: list[str], lies: dict[str, str]) -> str:
    """Final accuracy without the liar, and the points that each lie costs: the mean over the seeds, and the worst."""
    of = {(row["column"], row["faults"], row["seed"]): 100 * row["accuracy"] for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    lines = ["| one of ten clients | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for faults, name in {HONEST: "is honest: accuracy, %", SILENT: "is silent: accuracy, %"}.items():
        found = [[of[c, faults, seed] for seed in seeds] if (c, faults, seeds[0]) in of else [] for c in columns]
        lines.append(f"| {name} | " + " | ".join(f"{fmean(one):.1f}" if one else "–" for one in found) + " |")
    for faults, name in lies.items():
        changes = [[of[c, faults, seed] - of[c, SILENT, seed] for seed in seeds] for c in columns]
        lines.append(f"| {name} | " + " | ".join(f"{fmean(one):+.1f} ({min(one):+.1f})" for one in changes) + " |")
    return "\n".join(lines) + "\n"


def _say(event: Event) -> None:
    if event.round and event.round.number == SETTING["rounds"]:
        print(f"{event.done}/{event.total}", event.round.accuracy, file=sys.stderr, flush=True)


def main() -> None:
    """Make the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--part", choices=("all", "simulated", "flower"), default="all", help="of which to print the rows"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in args.seeds.split(",")]
    rows = [] if args.part == "flower" else simulated(seeds, args.workers)
    rows += [] if args.part == "simulated" else over_flower(seeds)
    if args.part != "all":
        print(json.dumps(rows, ensure_ascii=False))
        return
    OUT.mkdir(parents=True, exist_ok=True)
    content = {"setting": SETTING, "fedssd": fedssd.__version__, "torch": str(torch.__version__), "runs": rows}
    (OUT / "lies.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print("\n".join(tables(rows)))


if __name__ == "__main__":
    main()
