"""What the paper reports: its tables and figures as settings × methods, each setting a recipe.

Figures are percent, as printed: accuracy, its spread where one is given, and T, the rounds to FedAvg's final accuracy.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedssd import Recipe, UserError

HERE = Path(__file__).parent
NAMES = {"fedavg": "FedAvg", "fedprox": "FedProx", "fedcurv": "FedCurv", "moon": "MOON", "fedntd": "FedNTD"}
NAMES |= {"fedcad": "FedCAD", "fedssd": "FedSSD", "kl": "KL", "mse": "MSE"}  # the last two are of its ablation
METHODS = tuple(NAMES)[:7]
OURS, THEIRS = "fedssd", "fedavg"
SMALL_ROUNDS = 8
SMALL_CLIENTS = 20  # where the paper has a hundred: digits has 14 samples for each of a hundred
PUBLISHED = tomllib.loads((HERE / "published.toml").read_text(encoding="utf-8"))


class Published(NamedTuple):
    """One cell of the paper."""

    accuracy: float
    spread: float | None = None
    rounds: int | None = None  # T


@dataclass(frozen=True)
class Column:
    """One setting of a table or figure: a recipe, the methods that run on it, and what the paper prints for them."""

    recipe: str
    title: str
    methods: tuple[str, ...]
    published: Mapping[str, Published]

    def setting(self, small: bool = False, **changes: Any) -> Recipe:
        """Return its recipe with the strengths the paper prints; where ``small``, the same comparison on digits."""
        return _setting(self.recipe, small).replace(**changes)


@dataclass(frozen=True)
class Experiment:
    """A table or figure."""

    name: str
    title: str
    columns: tuple[Column, ...]


def _experiment(given: Mapping[str, Any]) -> Experiment:
    methods = tuple(given.get("methods", METHODS))
    columns = (_column(recipe, title, methods) for recipe, title in given["columns"])
    return Experiment(given["name"], given["title"], tuple(columns))


def _column(recipe: str, title: str, methods: tuple[str, ...]) -> Column:
    printed = PUBLISHED["printed"].get(recipe, {})
    return Column(recipe, title, methods, {name: Published(*printed[name]) for name in methods if name in printed})


EXPERIMENTS = {one["name"]: _experiment(one) for one in PUBLISHED["experiment"]}
CIFAR10 = EXPERIMENTS["table1"].columns[0]
SPLITS = EXPERIMENTS["table2"].columns  # Table 1's CIFAR-10 among them


def experiment(name: str) -> Experiment:
    """Return the table or figure of that name."""
    if name not in EXPERIMENTS:
        raise UserError(f"unknown table or figure {name!r}: expected one of {', '.join(EXPERIMENTS)}, all or study")
    return EXPERIMENTS[name]


def split(recipe: str) -> Column:
    """Return the column of Table 2 with that setting."""
    return next(column for column in SPLITS if column.recipe == recipe)


@cache
def _setting(name: str, small: bool) -> Recipe:
    known = PUBLISHED["recipes"].get(name)
    recipe = Recipe.load(known or HERE / "settings" / f"{name}.toml")
    if small:
        return _on_digits(recipe if known is None else recipe.replace(options={}), bool(known))
    given = {f"{method}.{option}" for method, options in recipe.options.items() for option in options}
    strengths = PUBLISHED["strengths"].get(recipe.data, {})
    return recipe.replace(**{key: value for key, value in strengths.items() if key not in given})


def _on_digits(recipe: Recipe, known: bool) -> Recipe:
    """The same comparison on digits: its recipe and strengths, the column's split, participation and options.

    Local epochs go by E^0.6, which keeps 1, 5, 10, 20 and 30 apart: 1, 3, 4, 6 and 8.
    """
    return Recipe.load("digits").replace(
        partition=recipe.partition,
        clients=min(recipe.clients, SMALL_CLIENTS),
        participation=recipe.participation,
        epochs=round(recipe.epochs**0.6),
        rounds=SMALL_ROUNDS,
        **({} if known else {"options": recipe.options}),  # the strengths of a known recipe are for its own data
    )
