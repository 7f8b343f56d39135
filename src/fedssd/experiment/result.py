"""What a run leaves, in memory and read back from its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedssd.core import tree
from fedssd.core.tree import Tree
from fedssd.experiment.events import Line
from fedssd.experiment.recipe import Recipe, load_recipe
from fedssd.experiment.record import Summary


@dataclass(frozen=True)
class Result:
    """What a run leaves: its recipe, a line per round, a summary, the global weights and where they are on disk."""

    recipe: Recipe
    rounds: list[Line]
    summary: Summary
    weights: Tree
    folder: Path | None = None


def read_result(folder: Path, recipe: Recipe) -> Result | None:
    """What a run left that has done all its rounds; None if it has not, or cannot be read."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
        if not (summary["rounds"] == summary["of_rounds"] == recipe.rounds == len(lines)):
            return None
        weights = tree.unflatten(load_file(folder / "weights.safetensors"))
        if "," not in recipe.model:  # an empty branch is not written
            weights = {"params": {}, "buffers": {}, **weights}
        ran = load_recipe(folder / "recipe.toml", {})
        if ran.hash != summary["recipe_hash"]:
            return None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None
    return Result(ran, lines, summary, weights, folder)
