"""Run folders to report on: one made by real runs, and some written by hand with numbers a reader can redo."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedssd

TINY = {"data": "digits", "partition": "dirichlet:0.5", "rounds": 3, "epochs": 1, "batch": 32, "auxiliary": 8}


@pytest.fixture(scope="session")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods over two seeds on digits, and one of them on a second split."""
    out = tmp_path_factory.mktemp("runs")
    fedssd.compare(["fedavg", "fedssd"], [0, 1], **TINY, out=out / "first")
    fedssd.run("fedssd", **{**TINY, "partition": "classes:2"}, out=out / "second")
    return out


@pytest.fixture(scope="session")
def write_run() -> Callable[..., Path]:
    """Writes a run folder as a run would leave it: ``write_run(folder, method, seed, [0.5, 0.6])``."""
    return written


def written(
    folder: Path, method: str, seed: int, accuracies: list[float], recipe: dict[str, Any] | None = None, **more: Any
) -> Path:
    """``more`` goes into every round's line; ``recipe`` holds keys that differ from a small default."""
    folder.mkdir(parents=True)
    keys = {"data": "digits", "partition": "iid", "clients": 2, "rounds": len(accuracies), "epochs": 1, "seed": seed}
    keys |= {"method": method, **(recipe or {})}
    options = keys.pop("options", {})
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    for name, given in options.items():
        lines += [f'[options."{name}"]', *(f"{key} = {json.dumps(value)}" for key, value in given.items())]
    (folder / "recipe.toml").write_text("\n".join(lines) + "\n")
    rounds = [
        {
            "round": number,
            "global": {"acc": acc, "loss": 1.0, "class_acc": [acc, acc]},
            "local": {"acc_mean": acc / 2, "acc": {"0": acc / 2}, "class_acc": [acc / 2, acc / 2]},
            "bytes_up": 1_000_000,
            "bytes_down": 2_000_000,
            "seconds": {"train": 2.0, "evaluate": 5.0, "server": 1.0},
            **more,
        }
        for number, acc in enumerate(accuracies, start=1)
    ]
    header = {"fedssd": "0", "torch": "2", "split_hash": "ab", "recipe_hash": "cd"}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (header, *rounds)))
    final = {"acc": accuracies[-1], "loss": 1.0, "local_acc": accuracies[-1] / 2, "forgetting": accuracies[-1] / 2}
    best = {"acc": max(accuracies), "round": accuracies.index(max(accuracies)) + 1}
    count = len(accuracies)
    summary = {"method": method, "seed": seed, "rounds": count, "of_rounds": keys["rounds"], "final": final}
    summary |= {"best": best, "bytes_up": count * 1_000_000, "bytes_down": count * 2_000_000}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder
