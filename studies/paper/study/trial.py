"""One row of the study, and how much work a recipe of it is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedssd.recipe import Recipe
from fedssd.recipe.resolve import resolved
from studies.paper.cell import Cell

SAMPLES = {"cifar10": 50_000, "cifar100": 50_000, "tiny-imagenet": 100_000, "digits": 1_438}


@dataclass(frozen=True)
class Trial:
    """One row of the study: a recipe, seed aside, and where it belongs."""

    part: str
    group: str  # the choice, setting or composition it belongs to
    label: str  # what differs there
    arm: str
    recipe: Recipe
    pipeline: str = ""  # where that is chosen or named, not the base's

    def cell(self, seed: int) -> Cell:
        """The run of one seed."""
        names = (self.part, self.pipeline, self.group, self.label.replace("/", "-"), self.arm)
        folder = "/".join(name for name in dict.fromkeys(names) if name)
        return Cell(folder, resolved(replace(self.recipe, seed=seed)))


def model_steps(recipe: Recipe) -> float:
    """SGD steps of all clients over all rounds, about: half a batch more for every client that keeps its last."""
    held = SAMPLES[recipe.data] - (10 * recipe.auxiliary if recipe.auxiliary_mode == "heldout" else 0)
    partial = recipe.clients / 2 if recipe.partial_batch != "drop" else -recipe.clients / 2
    return recipe.rounds * recipe.epochs * recipe.participation * (held / recipe.batch + partial)
