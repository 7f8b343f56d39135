"""A run on disk: its recipe, its split, one JSON line a round, a summary and the final weights."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import fedssd
from fedssd.core import tree
from fedssd.core.tree import Tree
from fedssd.errors import UserError
from fedssd.experiment.events import Line
from fedssd.experiment.federation import Federation

Summary = dict[str, Any]


class RunFolder:
    """Where a run is written; nothing is created before the run is known to be able to start."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, federation: Federation, header: Line) -> None:
        """Create the folder with recipe, split and the header line."""
        claim(self.path)
        with explained(self.path):
            (self.path / "recipe.toml").write_text(federation.recipe.to_toml(), encoding="utf-8")
            federation.partition.save(self.path / "partition.json")
            (self.path / "rounds.jsonl").write_text(json.dumps(header) + "\n", encoding="utf-8")

    def add(self, line: Line) -> None:
        """One more round, on disk before the next one starts."""
        with explained(self.path), (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def finish(self, summary: Summary, weights: Tree) -> None:
        """The summary and the global weights, each written aside and renamed."""
        with explained(self.path):
            aside = self.path / "weights.safetensors.part"
            save_file({k: v.contiguous().cpu() for k, v in tree.flatten(weights).items()}, aside)
            os.replace(aside, self.path / "weights.safetensors")
            write_json(self.path / "summary.json", summary)


def claim(path: Path) -> None:
    """Create an output folder, or say why it cannot be used."""
    if path.is_dir() and any(path.iterdir()):
        raise UserError(f"output folder {path} already holds something: name another with --out")
    with explained(path):
        path.mkdir(parents=True, exist_ok=True)


def write_json(path: Path, content: Any) -> None:
    """A JSON file that is either whole or absent."""
    aside = path.with_name(path.name + ".part")
    aside.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(aside, path)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a failing disk into one clear line."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror or error}") from None


def header(federation: Federation, engine: str, device: torch.device) -> Line:
    """Line 0 of rounds.jsonl: what the run was made with."""
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "fedssd": fedssd.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "engine": engine,
        "device": str(device),
        "card": card,
        "recipe_hash": federation.recipe.hash,
        "split_hash": federation.partition.hash,
        "data": federation.dataset.fingerprint,
        "parameters": sum(federation.parameters.values()),
    }


def summarise(federation: Federation, lines: list[Line], seconds: float) -> Summary:
    """What a run came to."""
    recipe = federation.recipe
    measured = [line for line in lines if "global" in line]
    summary: Summary = {
        "method": recipe.method,
        "server": recipe.server,
        "data": recipe.data,
        "partition": recipe.partition,
        "seed": recipe.seed,
        "rounds": len(lines),
        "of_rounds": recipe.rounds,
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "seconds": round(seconds, 3),
        "recipe_hash": recipe.hash,
        "split_hash": federation.partition.hash,
    }
    if measured:
        last = measured[-1]
        best = max(measured, key=lambda line: line["global"]["acc"])
        summary["final"] = {"acc": last["global"]["acc"], "loss": last["global"]["loss"]}
        if "local" in last:
            summary["final"] |= {"local_acc": last["local"]["acc_mean"], "forgetting": last["forgetting"]}
        lost = [line["round"] for line in measured if line["global"]["loss"] is None]
        if lost:
            summary["diverged"] = lost[0]
        summary["best"] = {"acc": best["global"]["acc"], "round": best["round"]}
    return summary
