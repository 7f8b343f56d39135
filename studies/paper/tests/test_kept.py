"""What client 8 keeps, from confusion matrices written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from studies.paper.cells import cells_of, places_of
from studies.paper.paper import EXPERIMENTS
from studies.paper.report import kept

pytestmark = pytest.mark.quick


def matrix(missing: int, held: int) -> list[list[int]]:
    """Of ten samples a class so many right of 1, 2, 6, 7, and so many of the others; the rest is called the next."""
    right = [missing if k in (1, 2, 6, 7) else held for k in range(10)]
    return [[n if k == c else 10 - n if c == (k + 1) % 10 else 0 for c in range(10)] for k, n in enumerate(right)]


def test_recall_of_what_client_8_has_and_of_what_it_has_not(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """FedAvg keeps 1 and 3 of ten on two seeds: 20 ± 14.14 %; FedSSD, of which a run records none, is left out."""
    (place,) = places_of(EXPERIMENTS["table1"], {}, dataset="cifar10")
    done = {}
    for cell, missing in zip(cells_of(place, [0, 1], ("fedavg",)), (1, 3), strict=True):
        confusion: dict[str, Any] = {"global": matrix(8, 6), "local": {"0": matrix(0, 0), "8": matrix(missing, 9)}}
        done[cell.key] = write_run(tmp_path / cell.key, "fedavg", cell.recipe.seed, [0.5, 0.6], confusion=confusion)
    (lean,) = cells_of(place, [0], ("fedssd",))
    done[lean.key] = write_run(tmp_path / lean.key, "fedssd", 0, [0.5, 0.6])
    ablation, *_ = places_of(EXPERIMENTS["table3"], {})
    (mse,) = cells_of(ablation, [0], ("mse",))
    done[mse.key] = write_run(
        tmp_path / mse.key, "mse", 0, [0.5, 0.6], confusion={"global": matrix(8, 6), "local": {"8": matrix(7, 6)}}
    )
    heads, _, *rows = kept.section(done, range(3)).splitlines()
    assert heads.startswith(
        "| method | client 8 keeps of 1, 2, 6, 7, % | less FedAvg's [95 %] | knows of 0, 3, 4, 5, 8, % |"
    )
    assert rows == [
        "| FedAvg | 20.00 ± 14.14 (2) | – | 90.00 ± 0.00 (2) | 80.00 ± 0.00 (2) | 60.00 ± 0.00 (2) |",
        "| MSE, α = 0.01 | 70.00 (1) | +60.00 | 60.00 (1) | 80.00 (1) | 60.00 (1) |",
    ]


def test_a_lean_run_counts_for_what_it_holds(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """Three seeds keep 1, 3 and 5 of ten, 30 ± 20 %; the last holds its last round's matrices alone.

    What it was sent is then known by the accuracy of every class in the round before, where that was evaluated.
    """
    (place,) = places_of(EXPERIMENTS["table1"], {}, dataset="cifar10")
    done = {}
    for cell, missing in zip(cells_of(place, [0, 1, 2], ("fedavg",)), (1, 3, 5), strict=True):
        confusion: dict[str, Any] = {"global": matrix(8, 6), "local": {"8": matrix(missing, 9)}}
        run = write_run(tmp_path / cell.key, "fedavg", cell.recipe.seed, [0.5, 0.6], confusion=confusion)
        done[cell.key] = run if cell.recipe.seed < 2 else slimmed(run)
    (alone,) = cells_of(place, [0], ("fedcad",))
    confusion = {"global": matrix(8, 6), "local": {"8": matrix(2, 7)}}
    done[alone.key] = slimmed(write_run(tmp_path / alone.key, "fedcad", 0, [0.5, 0.6], confusion=confusion), False)
    _, _, *rows = kept.section(done, range(3)).splitlines()
    assert rows == [
        "| FedAvg | 30.00 ± 20.00 (3) | – | 90.00 ± 0.00 (3) | 83.33 ± 5.77 (3) | 56.67 ± 5.77 (3) |",  # 90 and 50
        "| FedCAD | 20.00 (1) | +10.00 | 70.00 (1) | – | – |",
    ]


def slimmed(run: Path, evaluated: bool = True) -> Path:
    """The run with the matrices of its last round alone, and before it the accuracy of every class, if evaluated."""
    file = run / "rounds.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines[:-1]:
        line.pop("confusion", None)
        if not evaluated:
            line.pop("global", None)
        elif "global" in line:
            line["global"]["class_acc"] = [0.9 if k in (1, 2, 6, 7) else 0.5 for k in range(10)]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run
