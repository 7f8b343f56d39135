"""What the paper reports: its tables and figures as settings × methods, each setting a recipe.

Figures are percent, as printed: accuracy, its spread where one is given, and T, the rounds to FedAvg's final accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from fedssd.errors import UserError, perhaps
from fedssd.recipe import FOLDER, NAMED, PAPER_METHODS, Recipe, check, load_recipe, merge
from fedssd.recipe.resolve import over, with_printed

ABLATION = ("kl", "mse", "fedssd")
SETTINGS = Path(__file__).parent / "settings"
TABLE1 = {f"table1-{data}": data for data in ("cifar10", "cifar100", "tiny-imagenet")}  # columns that are named recipes
SMALL_ROUNDS = 8
SMALL_CLIENTS = 20  # where the paper has a hundred: digits has 14 samples for each of a hundred


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
    methods: tuple[str, ...] = PAPER_METHODS
    published: Mapping[str, Published] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A table or figure."""

    name: str
    title: str
    columns: tuple[Column, ...]


def _cells(methods: Sequence[str], *rows: tuple[float, float | None, int | None]) -> dict[str, Published]:
    return {method: Published(*row) for method, row in zip(methods, rows, strict=True)}


def _plain(methods: Sequence[str], accuracies: Sequence[float], spreads: Sequence[float] = ()) -> dict[str, Published]:
    found = {method: Published(accuracy) for method, accuracy in zip(methods, accuracies, strict=True)}
    return found | {m: found[m]._replace(spread=s) for m, s in zip(methods, spreads, strict=False)}


def _drawn(column: Column, *methods: str) -> Column:
    """A column of a figure: the paper prints no numbers for it."""
    return replace(column, methods=methods, published={})


CIFAR10 = Column(
    "table1-cifar10",
    "CIFAR-10",
    published=_cells(
        PAPER_METHODS,
        (70.49, 0.23, 100),
        (72.08, 0.58, 55),
        (70.40, 0.74, 99),
        (71.27, 0.14, 62),
        (70.99, 0.24, 51),
        (72.23, 0.23, 35),
        (73.38, 0.46, 33),
    ),
)
CIFAR100 = Column(
    "table1-cifar100",
    "CIFAR-100",
    published=_cells(
        PAPER_METHODS,
        (65.73, 0.31, 100),
        (65.79, 0.05, 100),
        (65.54, 0.41, None),
        (67.32, 0.74, 60),
        (65.23, 0.25, None),
        (65.15, 0.21, None),
        (66.19, 0.28, 48),
    ),
)
TINY = Column(
    "table1-tiny-imagenet",
    "TinyImageNet",
    published=_cells(
        PAPER_METHODS,
        (22.78, 0.28, 30),
        (22.29, 0.69, 25),
        (22.18, 0.53, 16),
        (23.89, 0.27, 16),
        (27.17, 0.42, 13),
        (25.24, 0.26, 12),
        (27.44, 0.19, 10),
    ),
)
TWO_CLASSES = Column(
    "table2-classes-2",
    "#K = 2",
    published=_plain(
        PAPER_METHODS,
        (49.64, 50.31, 50.37, 45.15, 49.16, 50.75, 53.37),
        (1.64, 1.34, 1.54, 0.75, 1.92, 1.19, 1.52),
    ),
)
FIVE_CLASSES = Column(
    "table2-classes-5",
    "#K = 5",
    published=_plain(
        PAPER_METHODS,
        (67.82, 67.39, 68.15, 67.41, 68.17, 68.86, 69.33),
        (0.28, 0.14, 0.46, 0.13, 0.31, 0.37, 0.47),
    ),
)
DIRICHLET_01 = Column(
    "table2-dirichlet-0.1",
    "δ = 0.1",
    published=_plain(
        PAPER_METHODS,
        (62.18, 62.61, 62.09, 62.41, 62.59, 62.74, 62.84),
        (0.54, 0.21, 0.52, 0.26, 0.25, 0.31, 0.38),
    ),
)
DIRICHLET_05 = replace(CIFAR10, title="δ = 0.5")
DIRICHLET_10 = Column(
    "table2-dirichlet-10",
    "δ = 10",
    published=_plain(
        PAPER_METHODS,
        (73.76, 73.29, 73.49, 73.37, 73.82, 74.10, 74.40),
        (0.27, 0.48, 0.68, 0.11, 0.22, 0.55, 0.15),
    ),
)
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment("table1", "Table 1: accuracy and rounds to FedAvg's accuracy", (CIFAR10, CIFAR100, TINY)),
        Experiment(
            "table2",
            "Table 2: accuracy by heterogeneity, CIFAR-10",
            (TWO_CLASSES, FIVE_CLASSES, DIRICHLET_01, DIRICHLET_05, DIRICHLET_10),
        ),
        Experiment(
            "table3",
            "Table 3: accuracy by distillation loss, CIFAR-10",
            (
                Column("table3-alpha-0.01", "α = 0.01", ABLATION, _plain(ABLATION, (71.27, 72.66, 73.47))),
                Column("table3-alpha-0.1", "α = 0.1", ABLATION, _plain(ABLATION, (71.30, 71.44, 71.57))),
                Column("table3-alpha-0.5", "α = 0.5", ABLATION, _plain(ABLATION, (70.61, 69.51, 71.38))),
            ),
        ),
        Experiment(
            "participation",
            "Participation: 100 clients, some of them a round",
            tuple(
                Column(f"participation-{data}-{share}", f"{title}, C = {share}")
                for data, title in (("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100"))
                for share in (0.1, 0.2)
            ),
        ),
        Experiment(
            "epochs",
            "Local epochs, CIFAR-10",
            (
                Column("epochs-1", "E = 1"),
                Column("epochs-5", "E = 5"),
                replace(CIFAR10, title="E = 10"),
                Column("epochs-20", "E = 20"),
                Column("epochs-30", "E = 30"),
            ),
        ),
        Experiment(
            "figure-distribution",
            "Figure: who holds what",
            tuple(_drawn(column) for column in (CIFAR10, CIFAR100, TINY)),
        ),
        Experiment(
            "figure-forgetting",
            "Figure: global against local accuracy by heterogeneity, FedAvg",
            tuple(_drawn(column, "fedavg") for column in (TWO_CLASSES, FIVE_CLASSES, DIRICHLET_05)),
        ),
        Experiment(
            "figure-classes",
            "Figure: accuracy by class of the global model and of client 0, FedAvg",
            (_drawn(DIRICHLET_05, "fedavg"), Column("figure-iid", "iid", ("fedavg",))),
        ),
        Experiment(
            "figure-confusion",
            "Figure: confusion matrices of client 8",
            (_drawn(DIRICHLET_05, "fedavg", "fedssd"),),
        ),
    )
}
EVERYTHING = "all"
STUDY = "study"  # of what the paper leaves open: a name beside these, with a design of its own


def experiments(name: str) -> list[Experiment]:
    """The table or figure of that name, or all of them."""
    if name == EVERYTHING:
        return list(EXPERIMENTS.values())
    if name not in EXPERIMENTS:
        known = [*EXPERIMENTS, EVERYTHING, STUDY]
        raise UserError(f"unknown table or figure {name!r}: expected one of {', '.join(known)}{perhaps(name, known)}")
    return [EXPERIMENTS[name]]


def recipe_file(name: str) -> Path:
    """The file of a column's recipe."""
    name = TABLE1.get(name, name)
    path = (FOLDER if name in NAMED else SETTINGS) / f"{name}.toml"
    if not path.is_file():
        raise UserError(f"the recipe {path.name} is missing (looked in {path.parent})")
    return path


def setting(column: Column, changes: Mapping[str, str], small: bool = False) -> Recipe:
    """A column's recipe with the strengths the paper prints, on digits where ``small``, and what the caller changes."""
    recipe = load_recipe(recipe_file(column.recipe), {}, column.methods)
    if small and column.recipe in TABLE1:  # its strengths are for its own data
        recipe = replace(recipe, options={})
    recipe = _on_digits(recipe) if small else with_printed(recipe, column.methods)
    return check(merge(recipe, changes, "studies.paper"), column.methods)


def _on_digits(recipe: Recipe) -> Recipe:
    """The same comparison on digits: its recipe and strengths, the column's split, participation and options.

    Local epochs go by E^0.6, which keeps 1, 5, 10, 20 and 30 apart: 1, 3, 4, 6 and 8.
    """
    digits = load_recipe(recipe_file("digits"), {})
    return replace(
        digits,
        partition=recipe.partition,
        clients=min(recipe.clients, SMALL_CLIENTS),
        participation=recipe.participation,
        epochs=round(recipe.epochs**0.6),
        rounds=SMALL_ROUNDS,
        options=over(digits.options, recipe.options),
    )
