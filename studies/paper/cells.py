"""The cells of the paper's tables: one method on one setting and seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from fedssd.recipe import Recipe
from fedssd.recipe.resolve import resolved
from fedssd.simulation.setup import assemble
from studies.paper.cell import Cell
from studies.paper.paper import Column, Experiment, setting


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


def split_counts(recipe: Recipe) -> list[list[int]]:
    """Who holds how many samples of each class in a setting; nothing trains."""
    federation = assemble(recipe)
    labels, classes = federation.dataset.y_train, federation.dataset.num_classes
    counts: list[list[int]] = federation.partition.counts(labels, classes).tolist()
    return counts
