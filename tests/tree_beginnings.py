"""What the runs of two source trees begin from: splits, initial weights, recipes, and what is committed of results."""

from __future__ import annotations

import gzip
import json
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from two_trees import IMAGES, Case, Flat, Tree, both, flat, weights


def dealt(*words: str) -> Callable[[Tree, Path], Flat]:
    def ask(tree: Tree, folder: Path) -> Flat:
        tree.run(folder, "partition", *words, "--out", "split.json")
        return flat(json.loads((folder / "split.json").read_text()))

    return ask


def initial(model: str) -> Callable[[Tree, Path], Flat]:
    """The weights after one step too small to move anything."""
    still = [*IMAGES, *shlex.split("--clients 1 --rounds 1 --lr 1e-30 --momentum 0 --local fedavg --augment none")]

    def ask(tree: Tree, folder: Path) -> Flat:
        tree.run(folder, "run", *still, "--model", model, "--engine", "reference", "--out", "run", "--quiet")
        return weights(folder / "run" / "weights.safetensors")

    return ask


def read(files: list[Path]) -> Callable[[Tree, Path], Flat]:
    """Hash and content of recipes, as the tree reads them; options a recipe does not say are written out."""

    def ask(tree: Tree, folder: Path) -> Flat:
        (folder / "listed").write_text("\n".join(map(str, files)))
        return flat(tree.drive(folder, "recipes", "listed"))

    return ask


def committed(tree: Tree) -> dict[str, list[tuple[str, str]]]:
    """When committed runs began and what they came to, by the hash of their recipes; from folders and packs."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)

    def add(header: dict[str, Any], summary: dict[str, Any]) -> None:
        end = {key: summary.get(key) for key in ("rounds", "split_hash", "final", "best")}
        found[summary["recipe_hash"]].append((header.get("started", ""), json.dumps(end, sort_keys=True)))

    for file in (tree.path / "results").rglob("summary.json"):
        with file.with_name("rounds.jsonl").open(encoding="utf-8") as record:
            add(json.loads(record.readline()), json.loads(file.read_text(encoding="utf-8")))
    for file in (tree.path / "results").rglob("*.runs.jsonl.gz"):
        with gzip.open(file, "rt", encoding="utf-8") as pack:
            for run in map(json.loads, pack):
                add(run["header"], run["summary"])
    return found


def latest(base: Tree, head: Tree, _: Path) -> Flat:
    """For every recipe the end of the run of the base that began last; the head may have left out the others."""
    ends = {recipe: max(runs)[1] for recipe, runs in committed(base).items()}
    if head == base:
        return ends
    kept = {recipe: [end for _, end in sorted(runs)] for recipe, runs in committed(head).items()}
    return {key: end if end in kept[key] else kept[key][-1] for key, end in ends.items() if key in kept}


def beginnings(base: Tree, head: Tree, _: Path) -> Iterator[Case]:
    case = partial(both, base, head, "b")
    for partition in ("iid", "dirichlet:0.5", "dirichlet-plain:0.5", "classes:3"):
        for seed in range(4):
            words = ["--partition", partition, "--seed", str(seed), "--clients", "7", "--auxiliary", "8"]
            yield case(f"{partition} seed {seed}", dealt(*words))
    for model in ("cnn", "cnn-small", "mlp", "resnet50"):
        yield case(f"initial {model}", initial(model))
    yield case("recipes", read(sorted((base.path / "recipes").glob("*.toml"))))
    committed = sorted((base.path / "results").rglob("recipe.toml"))
    if committed:
        yield case(f"{len(committed)} committed recipes", read(committed))
    yield Case("b", "ends of committed runs", partial(latest, base, base), partial(latest, base, head))
