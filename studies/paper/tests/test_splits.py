"""FedAvg on several splits: each beside the one that was picked, on the seeds that both have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from studies.paper.cells import Place, cells_of, places_of
from studies.paper.paper import EXPERIMENTS
from studies.paper.report import splits
from studies.paper.tests.told import T2

pytestmark = pytest.mark.quick


def test_a_split_stands_beside_the_picked_one(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """On split 1 FedAvg ends at 70 on three seeds, on 3 at 67, 68 and 69, 2 ± 4.3 / √3 below; on 2 it ran once."""
    (place,) = places_of(EXPERIMENTS["table1"], {}, dataset="cifar10")
    ends = {1: [0.70, 0.70, 0.70], 3: [0.67, 0.68, 0.69], 2: [0.65]}
    done = {}
    for split, accuracies in ends.items():
        there = Place(place.column, replace(place.base, partition_seed=split))
        for cell, accuracy in zip(cells_of(there, range(len(accuracies)), ("fedavg",)), accuracies, strict=True):
            done[cell.key] = write_run(tmp_path / cell.key, "fedavg", cell.recipe.seed, [0.5, accuracy])
    half = T2 / 3**0.5
    _, _, *rows = splits.section(done, range(3)).splitlines()
    assert rows == [
        "| 1 (picked) | 70.00 ± 0.00 (3) | -0.49 | – |",  # less 70.49
        "| 2 | 65.00 (1) | -5.49 | -5.00 (1) |",
        f"| 3 | 68.00 ± 1.00 (3) | -2.49 | -2.00 [{-2 - half:+.2f}, {-2 + half:+.2f}] (3) |",
    ]
    assert splits.section({}, range(3)) == ""
