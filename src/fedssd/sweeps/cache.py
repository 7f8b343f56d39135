"""Finished runs, found again wherever they are, by the recipe they were made from."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path

from fedssd.errors import UserError
from fedssd.methods.custom import source_hash
from fedssd.methods.registry import local_kinds
from fedssd.recipe import Recipe, check, merge
from fedssd.recipe.resolve import resolved
from fedssd.runs.archive import is_packed, packed_run, runs_below
from fedssd.runs.folder import UNDER_WAY, RunFolder, explained, run_name
from fedssd.runs.read import header_of, is_finished, newest_last, read_run
from fedssd.runs.rules import still_valid
from fedssd.simulation.events import Listener, ignore
from fedssd.simulation.result import Result
from fedssd.sweeps.grid import read_plan, run_named

COMMAND = "run_many"


def finished_cells(folders: Iterable[Path]) -> dict[str, Path]:
    """Runs that have all their rounds, by the hash of their recipe as this version reads it; of repeats the last."""
    return {recipe.hash: run for recipe, run in recipes_of_finished(folders)}


def recipes_of_finished(folders: Iterable[Path]) -> Iterator[tuple[Recipe, Path]]:
    """Whole runs in or below these folders or in packs, with their recipes; of repeats the one that counts comes last.

    To read the recipe of a method in a file is to load that file, so those are left out.
    """
    there: dict[Path, None] = {}
    for folder in folders:
        there |= dict.fromkeys([*(summary.parent for summary in folder.rglob("summary.json")), *runs_below(folder)])
    for run in newest_last(filter(is_finished, there)):
        recipe = _recipe(run)
        if recipe is not None and still_valid(header_of(run), recipe):
            yield recipe, run


def _recipe(run: Path) -> Recipe | None:
    """The recipe that a run wrote down, as this version reads it; None for a method in a file."""
    try:
        content = packed_run(run).recipe if is_packed(run) else tomllib.loads((run / "recipe.toml").read_text("utf-8"))
        if ".py:" in content.get("method", ""):
            return None
        return resolved(check(merge(Recipe(), content, f"recipe of {run}")))
    except (OSError, ValueError, TypeError, UserError, RecursionError):  # of another version
        return None


def run_many(
    recipes: Sequence[Recipe],
    *,
    cache: str | Path | None = None,
    reuse: Sequence[str | Path] = (),
    workers: int = 1,
    listen: Listener = ignore,
) -> list[Result]:
    """Run many recipes, side by side where they share a program; what is finished already is read, not run.

    Args:
        recipes: what to run; equal ones run once
        cache: a folder for the runs, each in METHOD-SEED-HASH; what an earlier call was interrupted in goes on there
        reuse: further folders or packs whose finished runs count, but for those of methods in files
        workers: processes; 0 for one a core, or one on a GPU. A script needs ``if __name__ == "__main__":`` for several
        listen: told of every round

    Returns:
        The results in the order of the recipes. A method whose file has changed is another method.

    Example:
        >>> recipes = [fedssd.Recipe(**small, method=method) for method in ("fedavg", "fedprox")]
        >>> results = fedssd.run_many(recipes, cache=folder / "cache", workers=1)
        >>> again = fedssd.run_many(recipes, cache=folder / "cache", workers=1)  # reads them
        >>> [one.summary for one in again] == [one.summary for one in results]
        True
    """
    order = [resolved(check(recipe)) for recipe in recipes]
    if not order:
        return []
    others = [Path(place) for place in reuse]
    if cache is None:
        done = finished(order, None, others)
        left = {one.hash: one for one in order if one.hash not in done}
        made = run_named(list(left.values()), list(left), None, workers, listen) if left else []
        found = {key: read_run(place) for key, place in done.items()} | dict(zip(left, made, strict=True))
        return [found[one.hash] for one in order]
    home = Path(cache)
    with _held(home):
        for place in sorted((home / UNDER_WAY).glob("*")):
            _go_on(place, home, order, workers, listen)
        done = finished(order, home, others)
        left = {folder_name(one): one for one in order if one.hash not in done}
        failed: dict[str, Result] = {}
        if left:
            first = next(iter(left.values()))
            place = home / UNDER_WAY / first.hash
            asked = {"command": COMMAND, "base": asdict(first), "names": list(left)}
            made = run_named(list(left.values()), list(left), place, workers, listen, asked)
            failed = {one.recipe.hash: replace(one, folder=None) for one in made if one.summary.failed}
            _take_out(place, home)
            done = finished(order, home, others)
        return [failed.get(one.hash) or read_run(done[one.hash]) for one in order]


def finished(recipes: Iterable[Recipe], cache: Path | None, reuse: Sequence[Path] = ()) -> dict[str, Path]:
    """Where the runs of these resolved recipes are that need not run again, by hash.

    A run of a method in a file counts only in a cache, where the name of its folder has the content of the file.
    """
    there = finished_cells([*([cache] if cache else []), *reuse])
    found: dict[str, Path] = {}
    for one in recipes:
        if ".py:" not in one.method and one.hash in there:
            found[one.hash] = there[one.hash]
        elif ".py:" in one.method and cache is not None and is_finished(cache / folder_name(one)):
            found[one.hash] = cache / folder_name(one)
    return found


def folder_name(recipe: Recipe) -> str:
    """The folder of a recipe's run in a cache; that of a method in a file changes with what is in the file."""
    sources = [source for kind in local_kinds(recipe.method) if (source := source_hash(kind))]
    key = sha256(" ".join([recipe.hash, *sources]).encode()).hexdigest() if sources else recipe.hash
    return f"{run_name(recipe)}-{key[:8]}"


def _go_on(place: Path, home: Path, wanted: Sequence[Recipe], workers: int, listen: Listener) -> None:
    """Go on with runs as they were laid out, so that they get the same bits, if all of them are wanted still."""
    by_name = {folder_name(one): one for one in wanted}
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
