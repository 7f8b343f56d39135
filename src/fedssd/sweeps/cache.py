"""Finished runs, found again wherever they are, by the recipe they were made from."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedssd.errors import UserError
from fedssd.recipe import Recipe, check, load_recipe, merge
from fedssd.recipe.resolve import resolved
from fedssd.runs.archive import is_packed, packed_run, runs_below
from fedssd.runs.folder import RunFolder, explained
from fedssd.runs.read import header_of, is_finished, newest_last, read_run
from fedssd.runs.rules import still_valid
from fedssd.simulation.events import Listener, ignore
from fedssd.simulation.result import Result
from fedssd.sweeps.grid import read_plan, run_named

UNDER_WAY = "under-way"  # in a cache, where runs are until they are finished
COMMAND = "run_many"


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


def run_many(
    recipes: Sequence[Recipe],
    *,
    cache: str | Path | None = None,
    reuse: Sequence[str | Path] = (),
    workers: int = 0,
    listen: Listener = ignore,
) -> list[Result]:
    """Run many recipes, side by side where they share a program; what is finished already is read, not run.

    Args:
        recipes: what to run; equal ones run once
        cache: a folder for the runs, each in METHOD-SEED-HASH; what an earlier call was interrupted in goes on there
        reuse: further folders or packs whose finished runs count
        workers: processes; 0 for one a core, or one on a GPU
        listen: told of every round

    Returns:
        The results in the order of the recipes.

    Example:
        >>> recipes = [fedssd.Recipe(**small, method=method) for method in ("fedavg", "fedprox")]
        >>> results = fedssd.run_many(recipes, cache=folder / "cache", workers=1)
        >>> again = fedssd.run_many(recipes, cache=folder / "cache", workers=1)  # reads them
        >>> [one.summary for one in again] == [one.summary for one in results]
        True
    """
    wanted = {one.hash: one for one in (resolved(check(recipe)) for recipe in recipes)}
    order = [resolved(recipe).hash for recipe in recipes]
    if not wanted:
        return []
    if cache is None:
        done = finished_cells([Path(place) for place in reuse])
        left = {key: one for key, one in wanted.items() if key not in done}
        made = run_named(list(left.values()), list(left), None, workers, listen) if left else []
        found = {key: read_run(place) for key, place in done.items() if key in wanted}
        found |= dict(zip(left, made, strict=True))
        return [found[key] for key in order]
    home = Path(cache)
    with _held(home):
        for place in sorted((home / UNDER_WAY).glob("*")):
            _go_on(place, home, wanted, workers, listen)
        done = finished_cells([home, *(Path(place) for place in reuse)])
        left = {_folder_name(one): one for key, one in wanted.items() if key not in done}
        if left:
            place = home / UNDER_WAY / next(iter(left.values())).hash
            asked = {"command": COMMAND, "base": asdict(next(iter(left.values()))), "names": list(left)}
            run_named(list(left.values()), list(left), place, workers, listen, asked)
            _take_out(place, home)
        done = finished_cells([home, *(Path(place) for place in reuse)])
        return [read_run(done[key]) for key in order]


def _go_on(place: Path, home: Path, wanted: Mapping[str, Recipe], workers: int, listen: Listener) -> None:
    """Go on with runs as they were laid out, so that they get the same bits, if all of them are wanted still."""
    by_name = {_folder_name(one): one for one in wanted.values()}
    try:
        asked = read_plan(place).asked
    except UserError:  # interrupted before it could say what it is
        asked = {}
    names = asked.get("names", [])
    if asked.get("command") == COMMAND and names and all(name in by_name for name in names):
        run_named([by_name[name] for name in names], names, place, workers, listen, asked, resume=True)
    _take_out(place, home)


def _take_out(place: Path, home: Path) -> None:
    """Move finished runs to where they stay, and forget the rest."""
    for run in sorted(file.parent for file in place.glob("*/summary.json")):
        target = home / run.name
        if is_finished(run) and not target.exists():
            run.rename(target)
    shutil.rmtree(place)


def _folder_name(recipe: Recipe) -> str:
    method = "".join(letter if letter.isalnum() or letter in "+-_" else "-" for letter in recipe.method)
    return f"{method}-{recipe.seed}-{recipe.hash[:8]}"


@contextmanager
def _held(home: Path) -> Iterator[None]:
    """Let one process at a time work in a cache."""
    with explained(home):
        home.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(home)
    folder.hold()
    try:
        yield
    finally:
        folder.release()
