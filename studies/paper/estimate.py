"""How long cells will take on this device, by a short probe."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from fedssd.engines import pick_device
from fedssd.runs.loop import run_together
from fedssd.simulation.events import Event, Listener, ignore
from studies.paper.cell import Cell, by_program

PROBED_ROUNDS = 2  # the first pays for starting up
MOST_PROBED = {"cuda": 8, "cpu": 2}  # runs side by side; wider batches are hardly faster a run


@dataclass(frozen=True)
class Speed:
    """How fast this device is at one model and dataset, in seconds: all for one run among those side by side."""

    a_pass: float  # training on all data once
    a_round: float  # what comes with every round: evaluation, the server
    start: float  # getting ready, once a program

    def of(self, cell: Cell) -> float:
        """What a cell takes, its start left aside."""
        return self.a_pass * cell.work + self.a_round * cell.recipe.rounds


def probe(cell: Cell, count: int) -> Speed:
    """Two rounds of FedAvg, each one pass over all data, so many runs side by side, as the real runs will be.

    Where few take part that is several epochs of theirs: one alone would be mostly what every round costs anyway.
    """
    recipe = cell.recipe
    epochs = max(1, min(recipe.epochs, round(1 / recipe.participation)))
    short = replace(
        recipe, method="fedavg", server="fedavg", head="off", rounds=PROBED_ROUNDS, epochs=epochs, options={}
    )
    recipes = [replace(short, seed=seed, partition_seed=seed) for seed in range(count)]
    results = run_together(recipes, [None] * len(recipes))
    first, last = (results[0].rounds[place].seconds for place in (0, -1))  # already shared out between the runs
    train = float(last["train"])
    start = len(recipes) * (sum(first.values()) - sum(last.values()))
    return Speed(train / (epochs * recipe.participation), sum(last.values()) - train, max(0.0, start))


def estimate(
    cells: Sequence[Cell],
    workers: int = 0,
    listen: Listener = ignore,
    done: Mapping[str, float] = MappingProxyType({}),
) -> float:
    """Seconds these cells will take here, by a short probe for every model and dataset among them.

    ``done`` has the share of its rounds that a cell brings from before it was interrupted, by the cell's key.
    """
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.recipe.data, cell.recipe.model), []).append(cell)
    total = 0.0
    for (data, model), group in groups.items():
        listen(Event("probe", 0, 1, note=f"measuring the speed of {model} on {data}"))
        programs = by_program(group)
        widest = max(map(len, programs.values()))
        speed = probe(group[0], min(widest, MOST_PROBED[pick_device(group[0].recipe.device).type]))
        total += sum(speed.of(cell) * (1 - done.get(cell.key, 0.0)) for cell in group) + speed.start * len(programs)
    side_by_side = 1 if pick_device(cells[0].recipe.device).type == "cuda" else workers or os.cpu_count() or 1
    return total / side_by_side
