"""A user's method on the settings of committed runs: which runs are its rivals, and whether they are comparable."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from fedssd.errors import UserError, perhaps
from fedssd.experiment import glance
from fedssd.experiment.cells import Cell, resolved
from fedssd.experiment.finished import finished_cells
from fedssd.experiment.paper import recipe_file
from fedssd.experiment.recipe import PAPER_METHODS, Recipe, load_recipe
from fedssd.methods.registry import summands

SETTINGS = {
    "digits": "digits",
    "cifar10": "table1-cifar10",
    "cifar100": "table1-cifar100",
    "tiny-imagenet": "table1-tiny-imagenet",
}
COMMITTED = Path(__file__).parents[3] / "results"  # of a checkout
Runs = dict[str, dict[int, Path]]  # method -> seed -> run folder


def base_recipe(dataset: str, method: str, changes: Mapping[str, str]) -> Recipe:
    """The setting of the committed runs on a dataset, for this method."""
    if dataset not in SETTINGS:
        known = list(SETTINGS)
        raise UserError(f"unknown dataset {dataset!r}: expected one of {', '.join(known)}{perhaps(dataset, known)}")
    profile = "" if dataset == "digits" else "paper-printed"
    return load_recipe(recipe_file(SETTINGS[dataset]), {**changes, "method": method}, (*PAPER_METHODS, method), profile)


def own_cells(base: Recipe, seeds: Sequence[int]) -> list[Cell]:
    """The user's cells, in a folder that names the content of the method's files: a changed file is another method."""
    return [Cell(f"{base.data}-{_fingerprint(base.method)}", resolved(replace(base, seed=seed))) for seed in seeds]


def _fingerprint(method: str) -> str:
    files = [part.strip().rpartition(":")[0] for part in summands(method) if ".py:" in part]
    content = b"".join(Path(file).expanduser().read_bytes() for file in files)
    return sha256(method.encode() + content).hexdigest()[:12]


def rivals(base: Recipe, seeds: Sequence[int], folder: Path, wanted: Sequence[str] | None = None) -> Runs:
    """Committed runs of other methods on exactly this setting, FedAvg first."""
    done = finished_cells([folder]) if folder.is_dir() else {}
    known = dict.fromkeys((*PAPER_METHODS, *sorted({_method(run) for run in done.values()})))
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
            f"{folder} holds no finished run on the setting of {SETTINGS[base.data]}.toml: name another with --results"
        )
    return found


def _method(run: Path) -> str:
    return str(json.loads((run / "summary.json").read_text(encoding="utf-8"))["method"])


def refuse_other_splits(own: Mapping[int, Path], others: Runs) -> None:
    """Paired differences need the same data dealt out the same way."""
    for method, runs in others.items():
        for seed, run in runs.items():
            mine, theirs = (_origin(folder) for folder in (own[seed], run))
            if mine != theirs:
                raise UserError(
                    f"{method} seed {seed} in {run} had another split or other data: {theirs}, yours {mine}"
                )


def _origin(run: Path) -> tuple[str, str]:
    header = glance.header(run)
    try:
        return header["split_hash"], header["data"]
    except KeyError as key:
        raise UserError(f"expected a first line with {key} in {run / 'rounds.jsonl'}, which has none") from None
