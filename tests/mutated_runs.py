"""What a run leaves, to be changed at random: its folder, its checkpoints, packs."""

from __future__ import annotations

import gzip
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from mutated import Kind, changed

import fedssd
from fedssd.core import tree
from fedssd.recipe import load_recipe
from fedssd.runs.archive import write_pack
from fedssd.runs.checkpoint import last_common
from fedssd.runs.folder import RunFolder
from fedssd.runs.read import collect, packed, read_run
from fedssd.simulation.setup import assemble

RUN: dict[str, Any] = {"clients": 3, "partition": "iid", "auxiliary": 3, "epochs": 1, "batch": 8, "engine": "reference",
                   "rounds": 3, "checkpoint_every": "1", "model": "mlp"}  # fmt: skip


def samples(file: Path) -> None:
    draws, y = np.random.default_rng(5), np.arange(60) % 3
    np.savez(file, x=draws.normal(size=(60, 4)).astype(np.float32), y=y, classes=np.array(["a", "b", "c"]))


def run_folder(folder: Path) -> None:
    os.chdir(folder)  # its recipe names the samples beside it
    samples(folder / "samples.npz")
    fedssd.run("fedssd", **RUN, data="samples.npz", out=folder / "run")


def only_what_is_read(folder: Path) -> None:
    run_folder(folder)
    shutil.rmtree(folder / "run" / "checkpoint")
    (folder / "samples.npz").unlink()


def without_sums(folder: Path) -> None:
    only_what_is_read(folder)
    (folder / "run" / "SHA256SUMS").unlink()


def read_folder(folder: Path) -> Any:
    found = read_run(folder / "run")
    if found.weights is not None:  # they may be gone, to save room
        numbers = {name: leaf.tolist() for name, leaf in tree.flatten(found.weights).items()}
        assert WEIGHTS.setdefault("run", numbers) == numbers, "other weights"
    return found.recipe.hash, [one.to_json() for one in found.rounds], found.summary.to_json()


WEIGHTS: dict[str, Any] = {}


def read_record(folder: Path) -> Any:
    found = read_run(folder / "run")
    return found.recipe.hash, [one.to_json() for one in found.rounds], found.summary.to_json(), found.weights is None


def checkpoints(folder: Path) -> None:
    run_folder(folder)
    for path in (folder / "run").iterdir():
        if path.name not in ("checkpoint", "rounds.jsonl"):
            path.unlink()
    (folder / "samples.npz").unlink()


def read_checkpoints(folder: Path) -> Any:
    """The state that a run would go on from: of round 3, or of round 2 where that one is damaged."""
    if not FEDERATION:
        os.chdir(folder.parent)
        samples(Path("samples.npz"))
        FEDERATION.append(assemble(load_recipe(None, {**RUN, "method": "fedssd", "data": "samples.npz"})))
    found = last_common([RunFolder(folder / "run")], FEDERATION, lambda text: None)
    if found is None:
        return None
    (one,) = found
    if one.state is None:
        return one.round
    numbers = {name: leaf.tolist() for name, leaf in tree.flatten({"w": one.state.weights, "m": one.memories}).items()}
    BY_ROUND.setdefault(one.round, (one.position, numbers))
    assert BY_ROUND[one.round] == (one.position, numbers), "another state"
    return None


FEDERATION: list[Any] = []
BY_ROUND: dict[int, Any] = {}


def a_pack(folder: Path) -> None:
    run_folder(folder)
    write_pack({"one": packed(folder / "run", "all")}, folder / "a.runs.jsonl.gz")
    shutil.rmtree(folder / "run")
    (folder / "samples.npz").unlink()


def read_a_pack(folder: Path) -> Any:
    return [
        (one.recipe.hash, [each.to_json() for each in one.rounds], one.summary.to_json())
        for one in collect([folder / "a.runs.jsonl.gz"])
    ]


def change_unpacked(draw: random.Random, folder: Path) -> None:
    file = folder / "a.runs.jsonl.gz"
    file.write_bytes(gzip.compress(changed(draw, gzip.decompress(file.read_bytes())), 1))


KINDS = {
    "run folder": Kind(only_what_is_read, read_folder, True),
    "old run folder": Kind(without_sums, read_record, False),
    "checkpoints": Kind(checkpoints, read_checkpoints, False),  # which compares for itself
    "pack": Kind(a_pack, read_a_pack, True),
    "pack, inside": Kind(a_pack, read_a_pack, False, change_unpacked),
}
