"""ResNet-50 on the paper's larger datasets: a round of each column that matters, and what all of them would take.

    python benchmarks/large_models.py                      CIFAR-100: FedAvg, FedSSD; TinyImageNet: FedSSD
    python benchmarks/large_models.py --only tiny-imagenet --epochs 1

Each case is a real run of the command line on the prepared dataset, in bf16: ``fedssd run`` over two rounds, ended by
SIGTERM after the first, and ``fedssd resume`` for the second. Images a second are those of training alone, compiling
left aside. The hours are those of three seeds over all rounds and epochs of the recipe. Writes
results/speed/large-models.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fedssd.recipe import FOLDER, load_recipe
from fedssd.runs.provenance import source_commit

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "results" / "speed"
SEEDS = 3
CASES = (("table1-cifar100", "fedavg"), ("table1-cifar100", "fedssd"), ("table1-tiny-imagenet", "fedssd"))
FEDSSD = (sys.executable, "-W", "ignore", "-m", "fedssd")


@dataclass(frozen=True)
class Case:
    """What two rounds showed."""

    recipe: str
    method: str
    epochs: int
    images: int  # that training saw in a round
    prepare_s: float  # compiling, once a process
    train_s: tuple[float, ...]  # of each round, the second after a resume
    evaluate_s: float  # the global model and all clients' own
    server_s: float
    peak_gib: float
    bytes_up: int  # of a round
    bytes_down: int
    ended: int  # the exit status after SIGTERM
    hours: float  # of all rounds and epochs of the recipe, three seeds

    @property
    def images_per_second(self) -> float:
        """The faster of both rounds."""
        return self.images / min(self.train_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="only recipes or methods whose name has this in it")
    parser.add_argument("--epochs", type=int, default=10, help="local epochs of a round (default: the paper's 10)")
    parser.add_argument("--precision", default="bf16")
    args = parser.parse_args()
    wanted = [case for case in CASES if args.only is None or args.only in "/".join(case)]
    stored = _stored()
    for recipe, method in wanted:
        case = measure(recipe, method, args.epochs, args.precision)
        stored[f"{recipe}/{method}"] = (
            asdict(case) | {"images_per_second": case.images_per_second} | _here(args.precision)
        )
        print(json.dumps(stored[f"{recipe}/{method}"]), flush=True)
        _write(stored)


def measure(name: str, method: str, epochs: int, precision: str) -> Case:
    """Two rounds, with an end between them."""
    file = FOLDER / f"{name.removeprefix('table1-')}.toml"
    recipe = load_recipe(file, {"method": method})
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        words = ["--recipe", str(file), "--local", method, "--rounds", "2", "--epochs", str(epochs)]
        run = [*FEDSSD, "run", *words, "--precision", precision, "--checkpoint-every", "1", "--out", str(folder)]
        peak, ended = _until_round(run, folder, 1)
        again, status = _until_round([*FEDSSD, "resume", str(folder)], folder, 3)
        if status:
            raise SystemExit(f"fedssd resume ended with {status}")
        header, *rounds = map(json.loads, (folder / "rounds.jsonl").read_text().splitlines())
    seconds = [line["seconds"] for line in rounds]
    images = epochs * sum(map(sum, header["counts"]))
    one = (
        min(line["train"] for line in seconds) * recipe.epochs / epochs + seconds[1]["evaluate"] + seconds[1]["server"]
    )
    return Case(
        name,
        method,
        epochs,
        images,
        seconds[0].get("prepare", 0.0),
        tuple(line["train"] for line in seconds),
        seconds[1]["evaluate"],
        seconds[1]["server"],
        max(peak, again),
        rounds[0]["bytes_up"],
        rounds[0]["bytes_down"],
        ended,
        SEEDS * recipe.rounds * one / 3600,
    )


def _until_round(command: Sequence[str], folder: Path, rounds: int) -> tuple[float, int]:
    """Run a command, and end it when so many rounds are there; the device's memory at its most, and the status."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ)
    peak = 0.0
    while process.poll() is None:
        time.sleep(0.2)
        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            peak = max(peak, (total - free) / 2**30)
        record = folder / "rounds.jsonl"
        if record.is_file() and record.read_bytes().count(b"\n") > rounds:
            process.send_signal(signal.SIGTERM)
            process.wait()
    return peak, process.returncode


def _stored() -> dict[str, Any]:
    path = OUT / "large-models.json"
    found: dict[str, Any] = json.loads(path.read_text())["cases"] if path.is_file() else {}
    return found


def _here(precision: str) -> dict[str, str]:
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"card": card, "torch": torch.__version__, "commit": source_commit(), "precision": precision}


def _write(cases: dict[str, Any]) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "large-models.json").write_text(json.dumps({"cases": cases}, indent=1) + "\n")
    print(as_markdown(cases))


def as_markdown(cases: dict[str, Any]) -> str:
    """A row for each case, and below where it was measured."""
    heads = "setting | images/s | compiling s | training s, 1st and resumed round | epochs | evaluation s | GiB"
    lines = [f"| {heads} | MB up a round | hours of three seeds | commit |", "|---|" + "---:|" * 8 + "---|"]
    for name, case in cases.items():
        rounds = ", ".join(f"{value:.1f}" for value in case["train_s"])
        lines.append(
            f"| {name} | {case['images_per_second']:,.0f} | {case['prepare_s']:.0f} | {rounds} | {case['epochs']} | "
            f"{case['evaluate_s']:.1f} | {case['peak_gib']:.1f} | {case['bytes_up'] / 1e6:,.0f} | {case['hours']:.1f} "
            f"| {case['commit']} |"
        )
    places = dict.fromkeys(f"{case['card']}, torch {case['torch']}, {case['precision']}" for case in cases.values())
    return "\n".join([*lines, "", f"{'; '.join(places)}. Hours: all rounds and epochs of the recipe.", ""])


if __name__ == "__main__":
    main()
