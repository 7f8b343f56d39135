"""Finished runs, found again wherever they are, by the recipe they were made from."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedssd.errors import UserError
from fedssd.recipe import Recipe, check, load_recipe, merge
from fedssd.recipe.resolve import resolved
from fedssd.runs.archive import is_packed, packed_run, runs_below
from fedssd.runs.read import header_of, is_finished, newest_last
from fedssd.runs.rules import still_valid


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
    there = dict.fromkeys(run for folder in folders for run in runs_in(folder))
    for run in newest_last(filter(is_finished, there)):
        recipe = _recipe(run, trusted)
        if recipe is not None and still_valid(header_of(run), recipe):
            yield recipe, run


def runs_in(folder: Path) -> Iterator[Path]:
    """Every run in or below a folder that has come to something, in a folder of its own or packed."""
    yield from (summary.parent for summary in folder.rglob("summary.json"))
    yield from runs_below(folder)


def recipe_of(run: Path) -> Recipe:
    """The recipe that a run wrote down, as this version reads it."""
    if is_packed(run):
        return check(merge(Recipe(), packed_run(run).recipe, f"recipe of {run}"))
    return load_recipe(run / "recipe.toml", {})


def _recipe(run: Path, trusted: str) -> Recipe | None:
    try:
        method = _written(run).get("method", "")
        if ".py:" in method and method != trusted:
            return None
        return resolved(recipe_of(run))
    except (OSError, ValueError, TypeError, UserError):  # of another version
        return None


def _written(run: Path) -> dict[str, Any]:
    return (
        packed_run(run).recipe if is_packed(run) else tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))
    )
