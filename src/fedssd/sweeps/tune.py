"""A fair comparison: as many values for every method, chosen on some seeds and reported on others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fedssd.core.contract import parts_of
from fedssd.errors import UserError
from fedssd.methods.registry import build_local
from fedssd.recipe import Recipe
from fedssd.simulation.events import Listener, ignore
from fedssd.simulation.result import Result
from fedssd.sweeps.cache import run_many

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of a strength's default, where nobody names values
Values = dict[str, Any]


class Tried(NamedTuple):
    """One method with one combination of values, on the tuning seeds."""

    method: str
    values: Values
    accuracy: float  # of the last round, the mean over the seeds


class Tuned(NamedTuple):
    """What was tried, what was chosen, and how the chosen do on seeds that nothing was chosen on."""

    tried: list[Tried]
    chosen: dict[str, Values]
    results: list[Result]


def grids(methods: Sequence[str], recipe: Recipe, given: Mapping[str, Sequence[Any]]) -> dict[str, list[Values]]:
    """Every method's combinations: values of its strengths, and of the keys that all methods are given alike.

    Args:
        methods: names of local halves, or sums of them
        recipe: what they share
        given: values by key or ``method.option``; a strength that is not named gets five around its default
    """
    shared = {key: list(values) for key, values in given.items() if "." not in key}
    named = {key.partition(".")[0] for key in given if "." in key}
    found: dict[str, list[Values]] = {}
    for method in methods:
        axes = dict(shared)
        for part in parts_of(build_local(method, recipe.options)):
            own = {key: list(values) for key, values in given.items() if key.partition(".")[0] == part.name}
            if not own and part.strength:
                default = getattr(part, part.strength)
                own = {f"{part.name}.{part.strength}": [float(f"{default * factor:.3g}") for factor in FACTORS]}
            axes |= own
            named.discard(part.name)
        found[method] = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    if named:
        known = ", ".join(methods)
        raise UserError(f"--grid names an option of {sorted(named)[0]!r}, which is none of the methods: {known}")
    sizes = {method: len(cells) for method, cells in found.items() if len(cells) > 1}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{method} {size}" for method, size in sizes.items())
        raise UserError(f"a fair comparison tries as many values of every method, got {counts}: name equally many")
    return found


def tune(
    recipe: Recipe,
    cells: Mapping[str, Sequence[Values]],
    tuning_seeds: Sequence[int],
    seeds: Sequence[int],
    cache: Path,
    workers: int = 0,
    listen: Listener = ignore,
) -> Tuned:
    """Choose each method's values by the mean final accuracy on the tuning seeds, and run them on the others.

    What ``cache`` holds finished is read, so that a call which was interrupted goes on when it is made again.
    """
    if both := sorted(set(tuning_seeds) & set(seeds)):
        raise UserError(f"nothing is chosen on the seeds that are reported, got seed {both[0]} in both")
    asked = [(method, values) for method, found in cells.items() if len(found) > 1 for values in found]
    runs = [_with(recipe, method, values, seed) for method, values in asked for seed in tuning_seeds]
    ended = run_many(runs, cache=cache, workers=workers, listen=listen)
    each = len(tuning_seeds)
    tried = [
        Tried(method, values, fmean(one.summary.accuracy or 0.0 for one in ended[place * each : (place + 1) * each]))
        for place, (method, values) in enumerate(asked)
    ]
    chosen = {method: found[0] for method, found in cells.items()}
    for method in {one.method for one in tried}:
        chosen[method] = max((one for one in tried if one.method == method), key=lambda one: one.accuracy).values
    reported = [_with(recipe, method, values, seed) for method, values in chosen.items() for seed in seeds]
    return Tuned(tried, chosen, run_many(reported, cache=cache, workers=workers, listen=listen))


def _with(recipe: Recipe, method: str, values: Values, seed: int) -> Recipe:
    return recipe.replace(method=method, seed=seed, **values)
