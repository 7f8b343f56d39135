"""A user's method on the settings of committed runs: which runs are its rivals, and whether they are comparable."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from fedssd.errors import UserError, perhaps
from fedssd.methods.custom import source_hash
from fedssd.methods.registry import local_kinds
from fedssd.recipe import NAMED, PAPER_METHODS, Recipe, load_recipe
from fedssd.recipe.resolve import resolved, with_printed
from fedssd.runs.read import header_of
from fedssd.simulation.setup import assemble_all
from fedssd.sweeps.cache import recipes_of_finished
from fedssd.sweeps.cells import Cell

CHECKOUT, PACKAGE = Path(__file__).parents[3] / "results", Path(__file__).parents[1] / "results"
COMMITTED = CHECKOUT if (CHECKOUT / "digits.runs.jsonl.gz").is_file() else PACKAGE
Runs = dict[str, dict[int, Path]]  # method -> seed -> run folder
Origin = tuple[str, str]  # who holds what, and of which data


def base_recipe(dataset: str, method: str, changes: Mapping[str, str]) -> Recipe:
    """The setting of the committed runs on a dataset, for this method."""
    if dataset not in NAMED:
        raise UserError(f"unknown dataset {dataset!r}: expected one of {', '.join(NAMED)}{perhaps(dataset, NAMED)}")
    methods = (*PAPER_METHODS, method)
    recipe = load_recipe(dataset, {**changes, "method": method}, methods)
    return recipe if dataset == "digits" else with_printed(recipe, methods)


def own_cells(base: Recipe, seeds: Sequence[int]) -> list[Cell]:
    """The user's cells."""
    return [Cell(base.data, resolved(replace(base, seed=seed))) for seed in seeds]


def fingerprint(method: str) -> str:
    """Names the content of a method's files and of what they import: once changed, it is another method."""
    content = [method, *(source_hash(kind) or "" for kind in local_kinds(method))]
    return sha256("\n".join(content).encode()).hexdigest()[:12]


def holds_another(folder: Path, method: str) -> bool:
    """Whether a folder has runs of another method than this, such as another file's class of the same name."""
    for file in folder.rglob("recipe.toml"):
        with suppress(OSError, ValueError, RecursionError):
            if tomllib.loads(file.read_text(encoding="utf-8")).get("method") != method:
                return True
    return False


def rivals(base: Recipe, seeds: Sequence[int], folder: Path, wanted: Sequence[str] | None = None) -> Runs:
    """Committed runs of other methods on exactly this setting, FedAvg first."""
    there = list(recipes_of_finished([folder])) if folder.exists() else []
    done = {recipe.hash: run for recipe, run in there}  # of repeats the last
    known = dict.fromkeys((*PAPER_METHODS, *sorted({recipe.method for recipe, _ in there})))
    found: Runs = {}
    for method in known if wanted is None else wanted:
        if ".py:" in method:  # another user's file, which may no longer be there
            continue
        keys = {seed: resolved(replace(base, method=method, seed=seed)).hash for seed in seeds}
        runs = {seed: done[key] for seed, key in keys.items() if key in done}
        if runs:
            found[method] = runs
        elif wanted is not None:
            raise UserError(f"{folder} holds no finished run of {method} on this setting: leave it out of --against")
    if not found:
        raise UserError(
            f"{folder} holds no finished run on the setting of {base.data}.toml: name another with --results"
        )
    return found


def refuse_other_splits(own: Mapping[int, Origin], others: Runs) -> None:
    """Paired differences need the same data dealt out the same way."""
    for method, runs in others.items():
        for seed, run in runs.items():
            mine, theirs = own[seed], origin(run)
            if mine != theirs:
                raise UserError(
                    f"{method} seed {seed} in {run} had another split or other data: {theirs}, yours {mine}"
                )


def origins(cells: Sequence[Cell]) -> dict[int, Origin]:
    """What the user's cells will be trained on, by seed; nothing trains yet, and the method is tried."""
    federations = assemble_all([cell.recipe for cell in cells])
    return {one.recipe.seed: (one.partition.hash, one.dataset.fingerprint) for one in federations}


def origin(run: Path) -> Origin:
    """What a run was trained on."""
    header = header_of(run)
    try:
        return header["split_hash"], header["data"]
    except KeyError as key:
        raise UserError(f"expected a first line with {key} in {run / 'rounds.jsonl'}, which has none") from None
