"""Runs what is missing of the paper's tables, in batches: whatever interrupts one, nothing is lost."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from fedssd.engines import pick_device
from fedssd.errors import UserError
from fedssd.recipe import Recipe
from fedssd.runs.folder import explained
from fedssd.runs.read import is_finished
from fedssd.simulation.events import Line, Listener, ignore
from fedssd.sweeps.cache import recipes_of_finished
from fedssd.sweeps.grid import read_plan, run_named
from studies.paper.cell import Cell, by_program

UNDER_WAY = "under-way"  # where a batch runs; what is finished there moves out of it
COMMAND = "reproduce"
RECORD = ("recipe.toml", "rounds.jsonl", "summary.json")


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """One program at a time fills a folder; the lock goes with the process that holds it."""
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another fedssd is at work in {out}: wait for it, or name another folder") from None
        except OSError:  # some network file systems know no locks
            pass
        yield
    finally:
        os.close(handle)
        with suppress(OSError):  # where nothing came of it, nothing is left behind
            for folder in new:
                folder.rmdir()


def made(recipe: Recipe) -> tuple[str, str]:
    """What a run is, and by which kernels it is made: with others the same recipe ends elsewhere."""
    return recipe.hash, recipe.kernels


Places = Mapping[str, Path]  # cells' names to the folders they run in
Batch = tuple[Path, list[Cell]]  # where it runs; without cells where all of them are finished, here or elsewhere


def run_cells(
    cells: Sequence[Cell],
    out: Path,
    workers: int = 0,
    listen: Callable[[Places], Listener] = lambda _: ignore,
    begun: Sequence[Batch] = (),
    lean: bool = False,
) -> None:
    """Run these cells below ``out``, and first go on with the batches ``begun``; whatever ends it, nothing is lost.

    On a GPU the cells that share a program are a batch, so that its results are in place before the next begins;
    elsewhere all cells of the same kernels are one batch, which keeps every core busy to the end. ``listen`` is told
    where a batch's runs are and gives their listener. What ``lean`` means is said by :func:`gather`.
    """
    again = {made(cell.recipe) for _, batch in begun for cell in batch}
    fresh = [(None, batch) for batch in _batches([cell for cell in cells if made(cell.recipe) not in again])]
    for there, batch in [*((place, batch) for place, batch in begun if batch), *fresh]:
        _run_batch(batch, out, there, workers, listen, lean)
    for place, _ in interrupted(out, []):  # a batch whose rest has been run in others by now
        gather(out, place, lean)


def _run_batch(
    batch: Sequence[Cell],
    out: Path,
    there: Path | None,
    workers: int,
    listen: Callable[[Places], Listener],
    lean: bool,
) -> None:
    """The one place that trains: in the folder of an interrupted batch, or in one of its own."""
    names, place = [cell.name for cell in batch], there or _free(out / UNDER_WAY / "batch")
    asked = {
        "command": COMMAND,
        "base": asdict(batch[0].recipe),
        "cells": {cell.name: cell.key for cell in batch},
    }
    listener = listen({name: place / name for name in names})
    run_named([cell.recipe for cell in batch], names, place, workers, listener, asked, resume=there is not None)
    gather(out, place, lean)


def interrupted(out: Path, wanted: Iterable[Cell]) -> list[Batch]:
    """Batches that were cut short in ``out`` and can go on as they were: what is not finished of them is all wanted.

    The folders in them keep their names, by whatever other name the same run is wanted now. A batch of which all is
    finished by now comes without cells: it has only to be gathered. What was cut short before it could say what it is,
    is gathered here; other batches stay for when they are wanted, those of other kernels among them.
    """
    recipes = {made(cell.recipe): cell.recipe for cell in wanted}
    places = sorted(out.glob(f"{UNDER_WAY}/*"))
    done = {made(recipe) for recipe, _ in recipes_of_finished([out])} if places else set()
    found: list[Batch] = []
    for place in places:
        try:
            asked = read_plan(place).asked
        except UserError:
            gather(out, place)
            continue
        kernels = asked.get("base", {}).get("kernels", Recipe.kernels)  # which all of a batch share
        runs = {name: (key, kernels) for name, key in asked.get("cells", {}).items()}
        known = {made(recipe): recipe for recipe, _ in recipes_of_finished([place])} | recipes
        if runs and all(one in done for one in runs.values()):
            found.append((place, []))
        elif runs and all(one in known for one in runs.values()):
            found.append((place, [Cell(name.rpartition("/")[0], known[one]) for name, one in runs.items()]))
    return found


def _batches(cells: Sequence[Cell]) -> list[list[Cell]]:
    if not cells:
        return []
    if pick_device(cells[0].recipe.device).type != "cuda":
        by_kernels: dict[str, list[Cell]] = {}
        for cell in cells:
            by_kernels.setdefault(cell.recipe.kernels, []).append(cell)
        return list(by_kernels.values())
    return list(by_program(cells).values())


def gather(out: Path, place: Path, lean: bool = False) -> None:
    """Move a batch's finished runs out of where it ran and remove what was interrupted there.

    ``lean`` leaves of a run what tables are made from: its recipe, its summary and its rounds, of all but the last of
    which without matrices and without what concerns single clients.
    """
    with explained(out):
        for summary in sorted(place.rglob("summary.json")):
            if is_finished(summary.parent):
                if lean:
                    _strip(summary.parent)
                home = _free(out / summary.parent.relative_to(place))
                home.parent.mkdir(parents=True, exist_ok=True)
                summary.parent.rename(home)
        if place.exists():
            shutil.rmtree(place)
        with suppress(OSError):  # other batches may be there
            place.parent.rmdir()


def _strip(run: Path) -> None:
    for entry in run.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name not in RECORD:
            entry.unlink()
    rounds = run / "rounds.jsonl"
    header, *lines = rounds.read_text(encoding="utf-8").splitlines()
    slim = [header, *(json.dumps(_slim(json.loads(line))) for line in lines[:-1]), *lines[-1:]]
    rounds.write_text("\n".join([*slim, ""]), encoding="utf-8")


def _slim(line: Line) -> Line:
    """A round as tables need it: matrices and single clients are most of a record."""
    kept = {key: value for key, value in line.items() if key not in ("credibility", "confusion", "client_0")}
    if "local" in kept:
        kept["local"] = {key: value for key, value in kept["local"].items() if key != "acc"}
    return kept


def _free(place: Path) -> Path:
    """That folder, numbered where another recipe's run (other rounds, say) has its name."""
    number, free = 2, place
    while free.exists():
        free, number = place.with_name(f"{place.name}-{number}"), number + 1
    return free
