"""The differences that pages state by hand are those of the committed runs, computed here by code of its own."""

from __future__ import annotations

import gzip
import json
import re
import statistics
from collections import defaultdict
from functools import cache
from math import sqrt
from pathlib import Path

import pytest
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
SPLITS = {
    "2 classes a client": "classes:2",
    "5 classes a client": "classes:5",
    "Dirichlet 0.1": "dirichlet:0.1",
    "Dirichlet 0.5": "dirichlet:0.5",
    "Dirichlet 10": "dirichlet:10",
}
METHODS = {  # what a row's first cell holds, and the method and strength of its runs
    "FedProx": ("fedprox", "mu", 0.001),
    "FedCurv": ("fedcurv", "lam", 0.01),
    "MOON": ("moon", "mu", 5.0),
    "FedNTD": ("fedntd", "beta", 0.3),
    "FedCAD": ("fedcad", "lam", 0.3),
    "MSE": ("mse", "alpha", 0.03),
    "M_max = 0.5": ("fedssd", "m_max", 0.5),
    "M_max = 0.01": ("fedssd", "m_max", 0.01),
}
Cell = tuple[str, str]  # a row of METHODS, a split
TABLE = re.compile(r"^\| [^|\n]*\| 2 classes a client \|(?:.*\n)+?(?=\n)", re.MULTILINE)
CELL = re.compile(r"(\**)([-+]\d+\.\d\d) \[([-+]\d+\.\d\d), ([-+]\d+\.\d\d)\]\**")


@cache
def gains() -> dict[Cell, list[float]]:
    """Final accuracy less FedAvg's in points, seed by seed, of the 40 rows and columns with the chosen pipeline."""
    accuracy: dict[tuple[str, float | None, str], dict[int, float]] = defaultdict(dict)
    with gzip.open(ROOT / "results" / "study" / "report.runs.jsonl.gz", "rt", encoding="utf-8") as lines:
        for run in map(json.loads, lines):
            recipe = run["recipe"]
            if recipe["partial_batch"] != "keep":
                continue  # the other pipeline
            own = recipe.get("options", {}).get(recipe["method"], {})
            strength = next((own[key] for name, key, _ in METHODS.values() if name == recipe["method"]), None)
            accuracy[recipe["method"], strength, recipe["partition"]][recipe["seed"]] = run["summary"]["final"]["acc"]
    return {
        (row, split): [
            100 * (value - accuracy["fedavg", None, split][seed])
            for seed, value in accuracy[method, strength, split].items()
        ]
        for row, (method, _, strength) in METHODS.items()
        for split in SPLITS.values()
    }


def error(values: list[float]) -> float:
    return statistics.stdev(values) / sqrt(len(values))


@cache
def significant_after_holm() -> set[Cell]:
    """Step down through the p-values of all 40 differences until one is too large."""
    p = {
        cell: 2 * stats.t.sf(abs(statistics.mean(values)) / error(values), len(values) - 1)
        for cell, values in gains().items()
    }
    found: set[Cell] = set()
    for cell in sorted(p, key=p.__getitem__):
        if p[cell] * (len(p) - len(found)) >= 0.05:
            break
        found.add(cell)
    return found


def tables(page: str) -> list[list[list[str]]]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [[line.strip("|").split("|") for line in table.splitlines()] for table in TABLE.findall(text)]


@pytest.mark.quick
@pytest.mark.parametrize("page", ["README.md", "docs/which-method.md", "docs/study.md"])
def test_the_stated_differences_are_those_of_the_runs(page: str) -> None:
    checked = 0
    for heads, _, *rows in tables(page):
        columns = [SPLITS[head.strip()] for head in heads[1:]]
        for label, *cells in rows:
            name = next((row for row in METHODS if row in label), None)
            if name is None:
                assert "the paper" in label
                continue
            for split, cell in zip(columns, cells, strict=True):
                stated = CELL.fullmatch(cell.strip())
                assert stated, cell
                values = gains()[name, split]
                half = stats.t.ppf(0.975, len(values) - 1) * error(values)
                mean = statistics.mean(values)
                assert list(stated.groups())[1:] == [f"{x:+.2f}" for x in (mean, mean - half, mean + half)], label
                assert bool(stated[1]) == ((name, split) in significant_after_holm()), f"{label}, {split}: bold?"
                checked += 1
    assert checked >= 10


@pytest.mark.quick
def test_how_many_of_the_forty_hold_together_is_stated() -> None:
    clear = [
        cell
        for cell, values in gains().items()
        if abs(statistics.mean(values)) > stats.t.ppf(0.975, len(values) - 1) * error(values)
    ]
    page = (ROOT / "docs" / "which-method.md").read_text(encoding="utf-8")
    assert (len(gains()), len(clear), len(significant_after_holm())) == (40, 16, 5)
    assert "Sixteen of the 40 intervals exclude zero" in page
    assert "Five are: four losses" in page
