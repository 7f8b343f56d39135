"""Named sets of values around a recipe: what the paper prints, and what the study found to be the paper's pipeline."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from fedssd.errors import UserError, perhaps
from fedssd.experiment.paper import CIFAR10, CIFAR100, TINY, recipe_file
from fedssd.experiment.recipe import Recipe
from fedssd.experiment.study.chosen import load_chosen
from fedssd.methods.registry import LOCALS, local_kinds
from fedssd.methods.shipped import shipped_options

PRINTED, PAPER = "paper-printed", "paper"
NAMES = (PRINTED, PAPER)
COLUMNS = {"cifar10": CIFAR10, "cifar100": CIFAR100, "tiny-imagenet": TINY}


def printed_strengths(data: str, methods: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Every option of these methods, the paper's value where it prints one for the dataset and the default elsewhere.

    None is left to what the study found: what follows from this stays the same whatever comes with fedssd.
    """
    kinds = [kind for method in methods for kind in local_kinds(method) if kind.name in LOCALS]
    return {
        kind.name: {one.name: one.default for one in fields(kind)} | dict(kind.published.get(data, {}))
        for kind in kinds
        if fields(kind)
    }


def tuned_strengths(data: str, methods: Sequence[str], given: Collection[str] = ()) -> dict[str, tuple[Any, Any]]:
    """The study's strengths that are in force, by ``method.option``, each with the value it has in place of.

    That is the paper's for the dataset, or the default; where they agree, or where an option is ``given``, none is.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for kind in (kind for method in methods for kind in local_kinds(method)):
        printed = {one.name: one.default for one in fields(kind)} | dict(kind.published.get(data, {}))
        for option, value in shipped_options(kind.name, data).items():
            if f"{kind.name}.{option}" not in given and value != printed[option]:
                found[f"{kind.name}.{option}"] = value, printed[option]
    return found


def remark_on_strengths(recipe: Recipe, methods: Sequence[str], given: Collection[str] = ()) -> str:
    """One line where strengths are the study's; ``given`` are options that come beside the recipe's own."""
    own = [f"{method}.{option}" for method, options in recipe.options.items() for option in options]
    found = tuned_strengths(recipe.data, methods, {*own, *given})
    values = ", ".join(f"{key} = {value:g} (else {printed:g})" for key, (value, printed) in found.items())
    return f"tuned by the study for {recipe.data}: {values}; --profile paper-printed takes the paper's" if found else ""


def profile_values(name: str, data: str, methods: Sequence[str]) -> dict[str, Any]:
    """What a profile says below a recipe: Table 1's file for the dataset, and these methods' printed strengths."""
    if name not in NAMES:
        raise UserError(f"unknown profile {name!r}: expected one of {', '.join(NAMES)}{perhaps(name, NAMES)}")
    if data not in COLUMNS:
        raise UserError(f"profile {name!r} has values for {', '.join(COLUMNS)}, got data = {data!r}")
    values = tomllib.loads(recipe_file(COLUMNS[data].recipe).read_text(encoding="utf-8"))
    return {**values, "options": printed_strengths(data, methods)}


def pipeline(name: str, data: str) -> dict[str, Any]:
    """What a profile says above a recipe's file: of ``paper`` the pipeline that comes closest to the published FedAvg.

    It was found as a whole, on FedAvg alone, and a file that had some of its keys would leave a mix that nobody chose.
    """
    if name != PAPER:
        return {}
    found = load_chosen().paper
    if found is None or data != "cifar10":
        known = "cifar10 alone" if found else "no dataset yet (fedssd reproduce study --part profile)"
        raise UserError(f"profile {name!r} has been found for {known}: use {PRINTED!r}")
    return dict(found)
