"""Finished runs, found again wherever they are, by the recipe they were made from."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedssd.errors import UserError
from fedssd.experiment.cells import resolved
from fedssd.experiment.recipe import Recipe, load_recipe
from fedssd.runs.read import is_finished
from fedssd.runs.repeats import newest_last


def finished_cells(folders: Iterable[Path], trusted: str = "") -> dict[str, Path]:
    """Run folders that have all their rounds, by the key of their recipe as this version reads it; repeats count once.

    A damaged run does not count, so that it is run again. To read the recipe of a method in a file is to load that
    file, so of those only the ``trusted`` one counts.
    """
    return {key: runs[-1] for key, runs in finished_runs(folders, trusted).items()}


def finished_runs(folders: Iterable[Path], trusted: str = "") -> dict[str, list[Path]]:
    """The same with all repeats of a run; the last is the one that counts."""
    found: dict[str, list[Path]] = {}
    for recipe, run in recipes_of_finished(folders, trusted):
        found.setdefault(recipe.hash, []).append(run)
    return found


def recipes_of_finished(folders: Iterable[Path], trusted: str = "") -> Iterator[tuple[Recipe, Path]]:
    """Each with its recipe, those that count last."""
    there = dict.fromkeys(summary.parent for folder in folders for summary in folder.rglob("summary.json"))
    for run in newest_last(filter(is_finished, there)):
        recipe = _recipe(run, trusted)
        if recipe is not None:
            yield recipe, run


def _recipe(run: Path, trusted: str) -> Recipe | None:
    try:
        method = tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8")).get("method", "")
        if ".py:" in method and method != trusted:
            return None
        return resolved(load_recipe(run / "recipe.toml", {}))
    except (OSError, ValueError, TypeError, UserError):  # of another version
        return None
