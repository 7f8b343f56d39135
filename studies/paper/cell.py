"""Runs that a command wants: the folder of each, which can go side by side, and what is left to run."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from fedssd.recipe import Recipe
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
