"""Many runs: those that share a program go side by side, the rest queue, on as many processes as there are cores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedssd.core.contract import Local, Server, numbers_of, parts_of
from fedssd.engines import pick_device
from fedssd.errors import UserError
from fedssd.methods.custom import source_hash
from fedssd.methods.registry import local_kinds
from fedssd.recipe import Recipe, check, merge, of, refuse_unused
from fedssd.recipe.resolve import build_method
from fedssd.runs.folder import (
    UnusableError,
    claim,
    explained,
    refuse_taken,
    run_name,
    sealed,
    sync_folder,
    unsealed,
    write_whole,
)
from fedssd.runs.provenance import recipe_difference
from fedssd.simulation.events import Listener, ignore
from fedssd.simulation.machine import choose
from fedssd.simulation.result import Result
from fedssd.simulation.setup import assemble, try_split
from fedssd.sweeps.workers import Runs, in_processes, in_this_process

PLAN = "runs.json"
GIVEN, BY_DATA = "given", "by data"
Asked = dict[str, Any]  # what a command was asked to run, as JSON holds it
VARIED = of("seed", "split", "number")  # what runs of one program may differ in


def compare(
    base: Recipe,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path | None = None,
    workers: int = 0,
    listen: Listener = ignore,
    resume: bool = False,
) -> list[Result]:
    """Every method on every seed, otherwise alike; results in the order methods × seeds.

    With ``resume`` what is finished in ``out`` is not run again, what was interrupted goes on, what is missing runs.
    """
    if not methods or not seeds:
        raise UserError("compare needs at least one method and one seed")
    recipes = [check(replace(base, method=method, seed=seed), methods) for method in methods for seed in seeds]
    if len({(r.method, r.seed) for r in recipes}) < len(recipes):
        raise UserError("compare was given the same method or the same seed twice")
    names = list(map(run_name, recipes))
    asked = {"command": "compare", "base": asdict(base), "methods": list(methods), "seeds": list(seeds)}
    return run_named(recipes, names, out, workers, listen, asked, resume)


def sweep(
    base: Recipe,
    grid: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    out: Path | None = None,
    workers: int = 0,
    listen: Listener = ignore,
    resume: bool = False,
) -> list[Combination]:
    """Every combination of the grid's values on every seed; a key is a recipe key or ``method.option``.

    ``resume`` is as for :func:`compare`.
    """
    if not grid or not seeds or not all(grid.values()):
        raise UserError("sweep needs at least one seed and one key with values, such as fedssd.m_max=0.1,0.3")
    if "seed" in grid:
        raise UserError("sweep takes its seeds apart from the grid: use --seeds (seeds=…)")
    _refuse_equal(base, grid)
    cells = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    for cell in cells:
        refuse_unused(merge(base, {k: v for k, v in cell.items() if "." not in k}, "sweep"), cell)
    recipes = [check(merge(base, {**cell, "seed": seed}, "sweep")) for cell in cells for seed in seeds]
    labels = [",".join(f"{key}={value}" for key, value in cell.items()).replace("/", "-") for cell in cells]
    names = [f"{label}-{seed}" for label in labels for seed in seeds]
    plain = {key: list(values) for key, values in grid.items()}
    asked = {"command": "sweep", "base": asdict(base), "grid": plain, "seeds": list(seeds)}
    results = run_named(recipes, names, out, workers, listen, asked, resume)
    each = len(seeds)
    return [Combination(cell, results[i * each : (i + 1) * each]) for i, cell in enumerate(cells)]


def _refuse_equal(base: Recipe, grid: Mapping[str, Sequence[Any]]) -> None:
    """Two spellings of one value would train the same cells twice."""
    for key, values in grid.items():
        made = [merge(base, {key: value}, "sweep") for value in values]
        for place, one in enumerate(made):
            if one in made[:place]:
                first, second = values[made.index(one)], values[place]
                raise UserError(f"sweep: {first} and {second} are the same value of {key}, and each is run once")


class Combination(NamedTuple):
    """One combination of a sweep's values, and its runs over the seeds."""

    values: dict[str, Any]
    results: list[Result]


def run_named(
    recipes: Sequence[Recipe],
    names: Sequence[str],
    out: Path | None = None,
    workers: int = 0,
    listen: Listener = ignore,
    asked: Asked | None = None,
    resume: bool = False,
) -> list[Result]:
    """Run all recipes and give their results in the same order; ``names`` are their folders under ``out``.

    ``asked`` is written down there too, so that the whole can be resumed.
    """
    if len(set(names)) < len(names):
        raise UserError("two runs would have the same name: the same seed or value was given twice")
    device = pick_device(recipes[0].device)
    workers = workers or (1 if device.type == "cuda" else os.cpu_count() or 1)
    if out is not None:
        refuse_taken(out, resume)
    plan = read_plan(out) if out is not None and resume and (out / PLAN).exists() else None
    sources = _sources(recipes)
    if plan is None:
        groups = _groups(recipes, workers, device)  # assembles, so whatever is wrong is said before anything is written
        used = min(workers, len(groups))
        threads = torch.get_num_threads() if used == 1 else max(1, (os.cpu_count() or 1) // used)
        plan = Grouping(asked or {}, groups, threads, sources, GIVEN)
    else:
        _refuse_changed(plan, asked or {}, sources, out)
        plan = plan._replace(asked=asked or {})  # more rounds may be wanted now
    if out is not None:
        claim(out, resume)
        with explained(out):
            write_whole(out / PLAN, sealed(plan._asdict()), durable=True)
            sync_folder(out)
    job = Runs(recipes, [out / name if out is not None else None for name in names], plan.threads, resume)
    found = job.finished() if resume else {}
    left = [group for group in plan.groups if not all(place in found for place in group)]
    total = sum(recipe.rounds for recipe in recipes)
    before = total - sum(recipes[place].rounds for group in left for place in group)
    if min(workers, len(left)) <= 1:
        found |= in_this_process(job, left, before, total, listen)
    else:
        found |= in_processes(job, left, min(workers, len(left)), before, total, listen)
    return [found[place] for place in range(len(recipes))]


class Grouping(NamedTuple):
    """What was asked for, and how it was laid out: runs that go side by side share their rounding."""

    asked: Asked
    groups: list[list[int]]
    threads: int
    sources: dict[str, str] | None = None  # by method the content of the files it is from; not known of older plans
    strengths: str = BY_DATA  # what is begun now has them given; of older plans they followed from the data's name


# Those strengths, as they were: what was begun with them goes on with them.
OLD_STRENGTHS: dict[str, dict[str, dict[str, float]]] = {
    "cifar10": {
        "fedprox": {"mu": 0.001},
        "fedcurv": {"lam": 0.01},
        "moon": {"mu": 5.0},
        "fedntd": {"beta": 0.3},
        "fedcad": {"lam": 0.3},
        "fedssd": {"m_max": 0.01},
    },
    "cifar100": {"fedprox": {"mu": 1e-3}, "fedcurv": {"lam": 1e-4}, "moon": {"mu": 1.0}, "fedssd": {"m_max": 1e-3}},
    "tiny-imagenet": {
        "fedprox": {"mu": 1e-3},
        "fedcurv": {"lam": 1e-5},
        "moon": {"mu": 1.0},
        "fedssd": {"m_max": 1e-3},
    },
}


def read_plan(out: Path) -> Grouping:
    """What was asked for in a folder of many runs."""
    try:
        plan = Grouping(**unsealed(out / PLAN))
    except (UnusableError, TypeError) as why:
        raise UserError(f"{out / PLAN} cannot be used: {why}") from None
    return plan if plan.strengths == GIVEN or not plan.asked else plan._replace(asked=_with_strengths(plan.asked))


def _with_strengths(asked: Asked) -> Asked:
    """What was asked of a version that took strengths by the data's name, with those strengths given."""
    base = asked["base"]
    old, given = OLD_STRENGTHS.get(base["data"], {}), base.get("options", {})
    options = {method: old.get(method, {}) | given.get(method, {}) for method in old | given}
    return {**asked, "base": {**base, "options": options}}


def _sources(recipes: Sequence[Recipe]) -> dict[str, str]:
    """By method a hash of the users' files behind it; nothing for methods of ours."""
    found = {recipe.method: [source_hash(kind) for kind in local_kinds(recipe.method)] for recipe in recipes}
    return {method: " ".join(filter(None, hashes)) for method, hashes in found.items() if any(hashes)}


def _refuse_changed(plan: Grouping, now: Asked, sources: dict[str, str], out: Path | None) -> None:
    then = plan.asked
    changed = recipe_difference(then["base"], now["base"]) if then and now else ""
    if not changed and then and now and now["base"]["rounds"] < then["base"]["rounds"]:
        changed = f"rounds was {then['base']['rounds']} and {now['base']['rounds']} is fewer"
    for key in ("command", "methods", "grid", "seeds"):
        if not changed and then.get(key) != now.get(key):
            changed = f"{key} was {then.get(key)} and is {now.get(key)}"
    known = sources if plan.sources is None else plan.sources
    edited = [method for method, source in sources.items() if source != known.get(method)]
    if edited and not changed:
        changed = f"{edited[0]} (its file or what it imports) has changed since"
    if changed:
        raise UserError(f"cannot go on with {out}: {changed}; put it back, or start anew in another folder")


def program(recipe: Recipe) -> str:
    """Recipes with the same key differ in seeds, splits and numbers only, so their runs share one batched program."""
    fixed = {key: value for key, value in asdict(recipe).items() if key not in (*VARIED, "options")}
    method = build_method(recipe)
    halves: list[Local | Server] = [*parts_of(method.local), method.server]
    static = [{k: v for k, v in asdict(half).items() if k not in numbers_of(half)} for half in halves]
    return repr((sorted(fixed.items()), static))


def _groups(recipes: Sequence[Recipe], workers: int, device: torch.device) -> list[list[int]]:
    """Which recipes go together: all of one program on the vectorised engine, one run alone on the reference engine."""
    together: dict[str, list[int]] = {}
    for place, recipe in enumerate(recipes):
        together.setdefault(program(recipe), []).append(place)
    groups: list[list[int]] = []
    for group in together.values():
        federation = assemble(recipes[group[0]])
        for place in group[1:]:
            try_split(recipes[place], federation)
        chosen, _ = choose(federation, device, len(group))
        groups += [group] if chosen == "vectorised" else [[place] for place in group]
    while len(groups) < workers and max(map(len, groups)) > 1:  # leave no worker without work
        largest = max(groups, key=len)
        groups.remove(largest)
        middle = len(largest) // 2
        groups += [largest[:middle], largest[middle:]]
    return groups
