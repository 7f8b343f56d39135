"""What a round of a real federation costs beyond local training: three nodes on this machine, CNN and ResNet-50.

    python benchmarks/federation_overhead.py [ROUNDS]

Random pictures of CIFAR's size, 64 a node, one epoch: local training is short, the rest is the federation. The first
round is left out of the means.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

from fedssd.core import tree
from fedssd.flower.app import write_app
from fedssd.flower.local import LocalFederation
from fedssd.flower.settings import Settings
from fedssd.recipe import load_recipe
from fedssd.runs.signals import terminable
from fedssd.simulation.setup import assemble

NODES, SAMPLES, CLASSES = 3, 64, 10


def pictures(folder: Path) -> Path:
    """Noise in CIFAR's shape, all classes alike."""
    draw = np.random.default_rng(0)
    count = NODES * SAMPLES
    file = folder / "pictures.npz"
    np.savez(
        file,
        x_train=draw.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8),
        y_train=np.arange(count) % CLASSES,
        x_test=draw.integers(0, 256, (20, 3, 32, 32), dtype=np.uint8),
        y_test=np.arange(20) % CLASSES,
    )
    return file


def measure(folder: Path, model: str, rounds: int) -> dict[str, float]:
    """Seconds a round by purpose, over all rounds but the first."""
    given = {"data": str(pictures(folder)), "model": model, "method": "fedavg", "partition": "iid", "auxiliary": 0}
    given |= {"clients": NODES, "rounds": rounds, "epochs": 1, "batch": 32, "device": "cpu", "evaluate_local": False}
    recipe = load_recipe(None, given)
    app = folder / model
    write_app(app, recipe, Settings())
    trial = LocalFederation(app, database=model == "cnn")  # SQLite locks under messages of a hundred megabytes
    trial.up()
    try:
        outcome = trial.run({"out": str(folder / f"run-{model}")})
        assert outcome.completed, outcome
    finally:
        trial.down()
    lines = [json.loads(line) for line in (folder / f"run-{model}" / "rounds.jsonl").read_text().splitlines()[2:]]
    seconds = {key: statistics.mean(line["seconds"][key] for line in lines) for key in lines[0]["seconds"]}
    seconds["megabytes"] = tree.size_in_bytes(assemble(recipe).weights) / 1e6
    return seconds


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print("| model | MB | a round | slowest client's training | server and evaluation | the rest |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for model in ("cnn", "resnet50"):
            s = measure(Path(folder), model, rounds)
            own = s["server"] + s["evaluate"]
            print(
                f"| {model} | {s['megabytes']:.1f} | {s['train'] + own:.1f} s | {s['local']:.1f} s | {own:.1f} s | "
                f"{s['train'] - s['local']:.1f} s |",
                flush=True,
            )
    print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    with terminable():  # whatever ends it, nothing it started stays
        main()
