"""Runs what is missing of the paper's tables: cells that are finished are found again and never run twice."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fedssd.engines import pick_device
from fedssd.errors import UserError
from fedssd.experiment.events import Event, Listener, ignore
from fedssd.experiment.federation import assemble, build_method, options_in_force
from fedssd.experiment.many import program, read_plan, run_many
from fedssd.experiment.paper import Column, Experiment, setting
from fedssd.experiment.recipe import Recipe, load_recipe
from fedssd.experiment.record import explained
from fedssd.experiment.repeats import newest_last
from fedssd.experiment.run import run_together

UNDER_WAY = "under-way"  # where a batch runs; what is finished there moves out of it
COMMAND = "reproduce"
RECORD = ("recipe.toml", "rounds.jsonl", "summary.json")
PROBED_ROUNDS = 2  # the first pays for starting up
MOST_PROBED = {"cuda": 8, "cpu": 2}  # runs side by side; wider batches are hardly faster a run
# Seconds of a round against FedAvg's, roughly: teachers run beside the model, FedCurv squares gradients.
RELATIVE_COST = {"fedavg": 1.0, "fedprox": 1.1, "moon": 1.9}
TYPICAL_COST = 1.3


@dataclass(frozen=True)
class Cell:
    """One method on one setting and seed."""

    column: str  # its recipe's name
    recipe: Recipe  # resolved

    @property
    def key(self) -> str:
        """Names the numbers the cell leads to."""
        return self.recipe.hash

    @property
    def name(self) -> str:
        """Its folder: the column's, and the method and seed in it."""
        method = "".join(c if c.isalnum() or c in "+-_" else "-" for c in self.recipe.method)
        return f"{self.column}/{method}-{self.recipe.seed}"

    @property
    def work(self) -> float:
        """How much of it there is, in passes over the data as FedAvg makes them."""
        recipe = self.recipe
        return RELATIVE_COST.get(recipe.method, TYPICAL_COST) * recipe.rounds * recipe.epochs * recipe.participation


def resolved(recipe: Recipe) -> Recipe:
    """The recipe as a run of it writes it down, found without loading data, so that equal numbers have equal recipes.

    Recipes of this project leave neither model, augmentation nor partial batches on ``auto``.
    """
    method = build_method(recipe)
    head = ("on" if method.needs_head else "off") if recipe.head == "auto" else recipe.head
    seed = recipe.seed if recipe.partition_seed < 0 else recipe.partition_seed
    return replace(recipe, head=head, partition_seed=seed, options=options_in_force(method))


def cells_of(place: Place, seeds: Sequence[int], methods: Sequence[str] | None = None) -> list[Cell]:
    """The cells of a column, methods × seeds; with ``methods`` only those."""
    column, base = place
    chosen = [method for method in column.methods if methods is None or method in methods]
    return [
        Cell(column.recipe, resolved(replace(base, method=method, seed=seed))) for method in chosen for seed in seeds
    ]


class Place(NamedTuple):
    """A column of a table or figure with the recipe its cells share."""

    column: Column
    base: Recipe


def places_of(
    experiment: Experiment, changes: Mapping[str, str], small: bool = False, dataset: str | None = None
) -> list[Place]:
    """The columns on this dataset; where small, columns that differ in nothing but the dataset are one."""
    found: list[Place] = []
    for column in experiment.columns:
        base = setting(column, changes, small)
        wanted = dataset is None or dataset == setting(column, {}).data
        if wanted and not any(base == place.base for place in found):
            found.append(Place(column, base))
    return found


def finished_cells(folders: Iterable[Path], trusted: str = "") -> dict[str, Path]:
    """Run folders that have all their rounds, by the key of their recipe as this version reads it; repeats count once.

    To read the recipe of a method in a file is to load that file, so of those only the ``trusted`` one counts.
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


def is_finished(run: Path) -> bool:
    """Whether a run folder has all its rounds."""
    try:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        return bool(summary["rounds"] == summary["of_rounds"] and "final" in summary)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _recipe(run: Path, trusted: str) -> Recipe | None:
    try:
        method = tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8")).get("method", "")
        if ".py:" in method and method != trusted:
            return None
        return resolved(load_recipe(run / "recipe.toml", {}))
    except (OSError, ValueError, TypeError, UserError):  # of another version
        return None


def missing(cells: Iterable[Cell], done: Container[str]) -> list[Cell]:
    """What is yet to run, each once, in order; where two cells are one run, the first has it."""
    found: dict[str, Cell] = {}
    for cell in cells:
        if (key := cell.key) not in done:
            found.setdefault(key, cell)
    return list(found.values())


def split_counts(recipe: Recipe) -> list[list[int]]:
    """Who holds how many samples of each class in a setting; nothing trains."""
    federation = assemble(recipe)
    labels, classes = federation.dataset.y_train, federation.dataset.num_classes
    counts: list[list[int]] = federation.partition.counts(labels, classes).tolist()
    return counts


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """One program at a time fills a folder; the lock goes with the process that holds it."""
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
            out.rmdir()


Places = Mapping[str, Path]  # cells' names to the folders they run in
Batch = tuple[Path, list[Cell]]


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
    elsewhere all cells are one batch, which keeps every core busy to the end. ``listen`` is told where a batch's runs
    are and gives their listener. What ``lean`` means is said by :func:`gather`.
    """
    again = {cell.key for _, batch in begun for cell in batch}
    fresh = [(None, batch) for batch in _batches([cell for cell in cells if cell.key not in again])]
    for there, batch in [*begun, *fresh]:
        _run_batch(batch, out, there, workers, listen, lean)


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
    run_many([cell.recipe for cell in batch], names, place, workers, listener, asked, resume=there is not None)
    gather(out, place, lean)


def interrupted(out: Path, wanted: Iterable[Cell]) -> list[Batch]:
    """Batches that were cut short in ``out`` and are all wanted, each in its order: they can go on as they were.

    What was cut short before it could say what it is, is gathered; other batches stay for when they are wanted.
    """
    by_key = {cell.key: cell for cell in wanted}
    found = []
    for place in sorted(out.glob(f"{UNDER_WAY}/*")):
        try:
            asked = read_plan(place).asked
        except UserError:
            gather(out, place)
            continue
        batch = [by_key[key] for key in asked.get("cells", {}).values() if key in by_key]
        if batch and [cell.name for cell in batch] == list(asked["cells"]):
            found.append((place, batch))
    return found


def _batches(cells: Sequence[Cell]) -> list[list[Cell]]:
    if not cells:
        return []
    if pick_device(cells[0].recipe.device).type != "cuda":
        return [list(cells)]
    return list(by_program(cells).values())


def by_program(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """Cells that can run side by side as one batched program."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(program(cell.recipe), []).append(cell)
    return found


def gather(out: Path, place: Path, lean: bool = False) -> None:
    """Move a batch's finished runs out of where it ran and remove what was interrupted there.

    ``lean`` leaves of a run what tables are made from: its recipe, its rounds and its summary.
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


def _free(place: Path) -> Path:
    """That folder, numbered where another recipe's run (other rounds, say) has its name."""
    number, free = 2, place
    while free.exists():
        free, number = place.with_name(f"{place.name}-{number}"), number + 1
    return free


@dataclass(frozen=True)
class Speed:
    """How fast this device is at one model and dataset, in seconds: all for one run among those side by side."""

    a_pass: float  # training on all data once
    a_round: float  # what comes with every round: evaluation, the server
    start: float  # getting ready, once a program

    def of(self, cell: Cell) -> float:
        """What a cell takes, its start left aside."""
        return self.a_pass * cell.work + self.a_round * cell.recipe.rounds


def probe(cell: Cell, count: int) -> Speed:
    """Two rounds of one epoch of FedAvg, so many runs side by side, as the real runs will be."""
    short = replace(
        cell.recipe, method="fedavg", server="fedavg", head="off", rounds=PROBED_ROUNDS, epochs=1, options={}
    )
    recipes = [replace(short, seed=seed, partition_seed=seed) for seed in range(count)]
    results = run_together(recipes, [None] * len(recipes))
    first, last = (results[0].rounds[place]["seconds"] for place in (0, -1))  # already shared out between the runs
    train = float(last["train"])
    start = len(recipes) * (sum(first.values()) - sum(last.values()))
    return Speed(train / cell.recipe.participation, sum(last.values()) - train, max(0.0, start))


def estimate(
    cells: Sequence[Cell],
    workers: int = 0,
    listen: Listener = ignore,
    done: Mapping[str, float] = MappingProxyType({}),
) -> float:
    """Seconds these cells will take here, by a short probe for every model and dataset among them.

    ``done`` has the share of its rounds that a cell brings from before it was interrupted, by the cell's key.
    """
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.recipe.data, cell.recipe.model), []).append(cell)
    total = 0.0
    for (data, model), group in groups.items():
        listen(Event("probe", 0, 1, note=f"measuring the speed of {model} on {data}"))
        programs = by_program(group)
        widest = max(map(len, programs.values()))
        speed = probe(group[0], min(widest, MOST_PROBED[pick_device(group[0].recipe.device).type]))
        total += sum(speed.of(cell) * (1 - done.get(cell.key, 0.0)) for cell in group) + speed.start * len(programs)
    side_by_side = 1 if pick_device(cells[0].recipe.device).type == "cuda" else workers or os.cpu_count() or 1
    return total / side_by_side
