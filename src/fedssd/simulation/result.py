"""What a run leaves, in memory and read back from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedssd.core import tree
from fedssd.core.tree import Tree
from fedssd.errors import DamagedError
from fedssd.experiment.recipe import Recipe, load_recipe
from fedssd.runs.folder import Summary
from fedssd.runs.read import read_files
from fedssd.runs.rules import still_valid
from fedssd.simulation.events import Line


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
        _, header, lines, summary = read_files(folder)
        if not (summary["rounds"] == summary["of_rounds"] == recipe.rounds == len(lines)):
            return None
        weights = tree.unflatten(load_file(folder / "weights.safetensors"))
        if "," not in recipe.model:  # an empty branch is not written
            weights = {"params": {}, "buffers": {}, **weights}
        ran = load_recipe(folder / "recipe.toml", {})
        if ran.hash != summary["recipe_hash"] or not still_valid(header, ran):
            return None
    except (DamagedError, OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None
    return Result(ran, lines, summary, weights, folder)
