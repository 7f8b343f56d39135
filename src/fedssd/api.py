"""The Python entry points: run and compare, by names or with the caller's own model and data."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from fedssd.data.arrays import Samples, Whole, short, whole
from fedssd.errors import UserError
from fedssd.methods.registry import SERVERS, local_kinds
from fedssd.recipe import PAPER_METHODS, Recipe, check, load_recipe, usual
from fedssd.runs.folder import claim, run_name
from fedssd.runs.loop import run_recipe
from fedssd.runs.read import collect
from fedssd.simulation.events import Event, Listener, ignore
from fedssd.simulation.own import bring, with_auxiliary
from fedssd.simulation.result import Result
from fedssd.simulation.setup import Brought, assemble
from fedssd.sweeps.grid import compare as compare_recipes
from fedssd.sweeps.grid import sweep as sweep_recipes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedssd.reports.table import Table


def run(
    method: str | Recipe | None = None,
    *,
    recipe: str | Path | Recipe | None = None,
    model: nn.Module | str | None = None,
    clients: Sequence[Samples] | Whole | None = None,
    test: Samples | None = None,
    auxiliary: Samples | Whole | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    listen: Listener = ignore,
    **keys: Any,
) -> Result:
    """Run one method and give back its rounds, summary and weights.

    By names: ``run("fedssd", data="digits", rounds=5)``; every recipe key is a keyword. ``recipe`` is a
    :class:`Recipe`, which may stand in the method's place, the name of one that comes with fedssd, a TOML file or a
    run's folder; where neither it nor data are named, it is ``"digits"``, and ``listen`` is told. Without ``method``
    the recipe's is taken. With your own: ``model`` is an ``nn.Module`` (it keeps its initial weights), ``clients`` a
    list of (x, y), one pair a client, ``test`` and ``auxiliary`` pairs too. A module returns logits, or (logits,
    features).
    With ``resume`` the run goes on where an earlier one stopped in ``out``, and begins where there is none.
    """
    if isinstance(method, Recipe):
        if recipe is not None:
            raise UserError("run was given two recipes: drop recipe=")
        recipe, method = method, None
    given = keys if method is None else {**keys, "method": method}
    asked, brought = _understand("run", recipe, model, clients, test, auxiliary, given, listen)
    return run_recipe(asked, _folder(out), listen, brought, resume)


def compare(
    methods: Sequence[str] = PAPER_METHODS,
    seeds: Iterable[int] = (0, 1, 2),
    *,
    recipe: str | Path | Recipe | None = None,
    model: nn.Module | str | None = None,
    clients: Sequence[Samples] | Whole | None = None,
    test: Samples | None = None,
    auxiliary: Samples | Whole | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    workers: Whole = 1,
    listen: Listener = ignore,
    **keys: Any,
) -> list[Result]:
    """Run every method on every seed, otherwise alike; results come in the order methods × seeds.

    ``recipe``, ``model``, ``clients``, ``test``, ``auxiliary`` and ``resume`` are as for :func:`run`. With anything of
    your own the runs go one after another in this process, whatever ``workers`` says.
    """
    for key in ("method", "seed"):
        if key in keys:
            raise UserError(f"compare takes seeds=/methods=, got {key}={keys[key]!r}: write {key}s=[…]")
    named, numbers, processes = _methods(methods), _seeds(seeds), whole(workers)
    if processes is None or processes < 0:
        raise UserError(f"compare: workers expects a whole number that is not negative, got {workers!r}")
    asked, brought = _understand("compare", recipe, model, clients, test, auxiliary, dict(keys), listen, named)
    if brought == Brought():
        return compare_recipes(asked, named, numbers, _folder(out), processes, listen, resume)
    return _one_after_another(asked, named, numbers, brought, _folder(out), listen, resume)


def sweep(
    grid: Mapping[str, Sequence[Any]],
    seeds: Iterable[int] = (0, 1, 2),
    *,
    recipe: str | Path | Recipe | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    workers: Whole = 1,
    listen: Listener = ignore,
    **keys: Any,
) -> list[Result]:
    """Run every combination of the grid's values on every seed.

    Args:
        grid: values by recipe key or ``method.option``, such as ``{"fedssd.m_max": [0.1, 0.3]}``
        seeds: of every combination
        recipe: a recipe, its name, a TOML file or a run's folder to start from
        out: a folder for all runs
        resume: go on with what was interrupted in ``out``
        workers: processes
        listen: told of every round
        keys: recipe keys that all runs share

    Returns:
        The results, combination by combination, over the seeds of each.

    Example:
        >>> found = fedssd.sweep({"fedprox.mu": [0.01, 0.1]}, [0], **small, method="fedprox")
        >>> [one.recipe.options["fedprox"]["mu"] for one in found]
        [0.01, 0.1]
    """
    processes = whole(workers)
    if processes is None or processes < 0:
        raise UserError(f"sweep: workers expects a whole number that is not negative, got {workers!r}")
    base, _ = _understand("sweep", recipe, None, None, None, None, dict(keys), listen)
    cells = sweep_recipes(base, grid, _seeds(seeds), _folder(out), processes, listen, resume)
    return [one for cell in cells for one in cell.results]


def table(results: Sequence[Result], *, against: str = "fedavg") -> Table:
    """Compare methods in a table: means over seeds, gains with their intervals, rounds, bytes.

    Args:
        results: runs of one task, any number of methods and seeds
        against: the method that gains are measured over

    Returns:
        A value with ``text()``, ``markdown()``, ``csv()`` and ``latex()``; a notebook shows it.

    Example:
        >>> print(fedssd.table([fedssd.run("fedavg", **small)]).markdown().splitlines()[0][:8])
        | method
    """
    from fedssd.reports.comparison import tabulate

    methods = {one.summary.method for one in results}
    if not results:
        raise UserError("table expects at least one result, got none")
    return tabulate(results, dict.fromkeys(methods, against), against)


def plot(results: Sequence[Result], what: str = "accuracy", file: str | Path | None = None) -> Figure:
    """Draw what runs of one task have to show; needs ``fedssd[figures]``.

    Args:
        results: the runs
        what: accuracy, forgetting, classes, confusion, credibility or partition
        file: where to write it, .svg, .png or .pdf; nowhere if None

    Returns:
        A matplotlib figure.

    Example:
        >>> figure = fedssd.plot([fedssd.run("fedavg", **small)], file=folder / "curve.png")
    """
    from fedssd.reports.plots import draw

    return draw(results, what, None if file is None else Path(file))


def report(runs: Sequence[Result] | Sequence[str | Path], file: str | Path, title: str = "fedssd report") -> Path:
    """Write a page with curves, matrices and tables that opens offline.

    Args:
        runs: results, or folders and packs that hold them
        file: the page
        title: its heading

    Returns:
        The file.

    Example:
        >>> fedssd.report([fedssd.run("fedavg", **small)], folder / "page.html").name
        'page.html'
    """
    from fedssd.reports.page import report as written
    from fedssd.runs.folder import write_whole

    places = [Path(one) for one in runs if isinstance(one, (str, Path))]
    found = [one for one in runs if isinstance(one, Result)] + (collect(places) if places else [])
    if not found:
        raise UserError("report expects results, or folders that hold runs, got none")
    target = Path(file)
    write_whole(target, written(found, title).encode())
    return target


def _one_after_another(
    base: Recipe,
    methods: Sequence[str],
    seeds: Sequence[int],
    brought: Brought,
    out: Path | None,
    listen: Listener,
    resume: bool,
) -> list[Result]:
    """Own models and arrays stay in this process: they need not survive a trip to another."""
    recipes = [check(replace(base, method=method, seed=seed), methods) for method in methods for seed in seeds]
    names = list(map(run_name, recipes))
    if len(set(names)) < len(names):
        raise UserError("compare was given the same method or the same seed twice")
    for first in recipes[:: len(seeds)]:
        assemble(first, brought)  # whatever is wrong is said before anything is written
    if out is not None and not resume:
        claim(out)
    total, results = sum(recipe.rounds for recipe in recipes), list[Result]()
    for name, recipe in zip(names, recipes, strict=True):
        before = sum(done.recipe.rounds for done in results)

        def shifted(event: Event, before: int = before) -> None:
            listen(event._replace(done=before + event.done, total=total))

        results.append(run_recipe(recipe, out / name if out is not None else None, shifted, brought, resume))
    return results


def _understand(
    caller: str,
    source: str | Path | Recipe | None,
    model: nn.Module | str | None,
    clients: Sequence[Samples] | Whole | None,
    test: Samples | None,
    auxiliary: Samples | Whole | None,
    keys: dict[str, Any],
    listen: Listener,
    others: Sequence[str] = (),
) -> tuple[Recipe, Brought]:
    """The recipe the arguments amount to, and what of them no recipe can hold."""
    own, brought = bring(caller, model, clients, test, auxiliary)
    if own.get("data") and "data" in keys:
        raise UserError(f"{caller} was given data={keys['data']!r} and its own clients: drop data= or clients=")
    if own.get("data") and keys.get("label"):
        raise UserError(f"{caller} was given label={keys['label']!r}, a column of a .csv, and its own clients")
    if source is not None and not isinstance(source, (str, Path, Recipe)):
        raise UserError(f"recipe expects a Recipe, a name, a TOML file or a run's folder, got {short(source)}")
    keys = {**keys, **own}
    if own.get("data") and source is None and "auxiliary" not in keys and not _auxiliary_needed(keys, others):
        keys["auxiliary"] = 0  # it would be taken from the clients, and nobody would use it
    begin = source if isinstance(source, Recipe) else usual(source, keys)
    if begin != source:
        listen(Event("", 0, 1, note=f"neither recipe= nor data=: the recipe {begin!r}"))
    recipe = load_recipe(begin, _plain(keys), others, caller)
    return recipe, with_auxiliary(brought, recipe)


def _auxiliary_needed(keys: Mapping[str, Any], methods: Sequence[str]) -> bool:
    """Whether a method that is asked for works with samples at the server."""
    kinds = [kind for spec in methods or [keys["method"]] for kind in local_kinds(spec)]
    server = SERVERS.get(keys.get("server", "fedavg"))
    return any(kind.needs_auxiliary or kind.needs_public for kind in kinds) or bool(server and server.needs_auxiliary)


def _plain(value: Any) -> Any:
    """numpy's scalars as Python's, also inside options."""
    if isinstance(value, np.generic):
        return value.item()
    return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


def _folder(out: str | Path | None) -> Path | None:
    if out is not None and not isinstance(out, (str, Path)):
        raise UserError(f"out expects a folder's path, got {short(out)}")
    return None if out is None else Path(out)


def _methods(methods: Sequence[str]) -> list[str]:
    found = [methods] if isinstance(methods, str) else list(methods) if isinstance(methods, Iterable) else [None]
    if not found or not all(isinstance(name, str) for name in found):
        raise UserError(f"compare: methods expects a list of names, at least one, got {short(methods)}")
    return [str(name) for name in found]


def _seeds(seeds: Iterable[int]) -> list[int]:
    found: list[int] = []
    try:
        for seed in seeds:
            if isinstance(seed, bool):
                raise TypeError
            found.append(operator.index(seed))
    except TypeError:
        raise UserError(f"compare: seeds expects whole numbers such as [0, 1, 2], got {short(seeds)}") from None
    if not found:
        raise UserError("compare: seeds expects at least one whole number, got none")
    return found
