"""The cells of the paper's tables: one method on one setting and seed, and which of them are one run."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fedssd.experiment.paper import Column, Experiment, setting
from fedssd.recipe import Recipe
from fedssd.recipe.resolve import resolved
from fedssd.simulation.setup import assemble
from fedssd.sweeps.grid import program

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


def cells_of(place: Place, seeds: Sequence[int], methods: Sequence[str] | None = None) -> list[Cell]:
    """The cells of a column, methods × seeds; with ``methods`` only those."""
    column, base = place
    chosen = [method for method in column.methods if methods is None or method in methods]
    return [
        Cell(column.recipe, resolved(replace(base, method=method, seed=seed))) for method in chosen for seed in seeds
    ]


def fedavg_of(place: Place, seeds: Sequence[int]) -> list[Cell]:
    """FedAvg's cells in a column, whether it lists them or not: gains and T are measured against them."""
    return cells_of(Place(replace(place.column, methods=("fedavg",)), place.base), seeds)


def by_program(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """Cells that can run side by side as one batched program."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(program(cell.recipe), []).append(cell)
    return found


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
