"""What results/reliability says: the table is made from the runs, and the runs hold what the page claims."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from fedssd.core.faults import parse_faults
from fedssd.runs.loop import run_recipe

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "reliability"
CLEAN, WITHOUT, MEDIAN = "clean: FedAvg over the six honest clients", "FedAvg, guard off", "median, guard"


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks" / "reliability.py"))


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / "digits.json").read_text(encoding="utf-8"))["runs"]
    return found


def of(runs: list[dict[str, Any]], case: str, partition: str) -> dict[int, dict[str, Any]]:
    return {run["seed"]: run for run in runs if (run["case"], run["partition"]) == (case, partition)}


@pytest.mark.quick
def test_the_table_is_made_from_the_runs(benchmark: dict[str, Any]) -> None:
    content = json.loads((RESULTS / "digits.json").read_text(encoding="utf-8"))
    assert benchmark["table"](content) in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    wanted = {
        (case.title, split, seed)
        for case in benchmark["CASES"]
        for split in benchmark["PARTITIONS"]
        for seed in range(3)
    }
    assert {(run["case"], run["partition"], run["seed"]) for run in content["runs"]} == wanted


@pytest.mark.quick
@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.5", "classes:2"])
def test_fedavg_without_the_guard_ended_as_nan(runs: list[dict[str, Any]], partition: str) -> None:
    assert {run["weights"] for run in of(runs, WITHOUT, partition).values()} == {"nan"}


@pytest.mark.quick
def test_with_the_guard_the_median_stays_within_three_points_on_iid_data(runs: list[dict[str, Any]]) -> None:
    clean, median = of(runs, CLEAN, "iid"), of(runs, MEDIAN, "iid")
    lost = [clean[seed]["acc"] - median[seed]["acc"] for seed in clean]
    assert len(lost) == 3
    assert max(lost) <= 0.03  # on every seed, as the page says


@pytest.mark.quick
def test_the_clean_run_leaves_out_just_those_who_lie(benchmark: dict[str, Any]) -> None:
    for seed in range(3):
        faulty = parse_faults(benchmark["FAULTS"], 10).members(seed, 10)
        absent = parse_faults(benchmark["HONEST_ONLY"], 10).members(seed, 10)["silent"]
        assert sorted(faulty["nan"] + faulty["flip"]) == absent


@pytest.mark.slow
def test_the_clean_run_and_the_median_repeat(benchmark: dict[str, Any], runs: list[dict[str, Any]]) -> None:
    """On another machine rounding differs, and with it a few of the 359 test samples."""
    cases = {case.title: case for case in benchmark["CASES"]}
    for title in (CLEAN, MEDIAN):
        found = run_recipe(benchmark["recipe"](cases[title], "iid", 0)).summary.accuracy
        assert abs(found - of(runs, title, "iid")[0]["acc"]) <= 0.02
