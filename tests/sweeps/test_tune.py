"""Tuning: equal grids, a choice by arithmetic, and no seed that both chooses and reports."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from statistics import fmean

import pytest

from fedssd.cli import main
from fedssd.errors import UserError
from fedssd.recipe import Recipe
from fedssd.runs.read import read_runs
from fedssd.sweeps.tune import grids, tune

SMALL = Recipe(data="digits", rounds=1, epochs=1, clients=3, auxiliary=4, model="mlp", partition="iid")


def test_a_strength_that_nobody_names_gets_five_values_around_its_default() -> None:
    found = grids(["fedavg", "fedprox"], SMALL, {})
    assert found == {
        "fedavg": [{}],
        "fedprox": [{"fedprox.mu": 0.01 * factor} for factor in (0.1, 0.3, 1, 3, 10)],
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fedprox.mu": [0.1, 1]}, "as many values of every method, got fedprox 2, fedssd 5"),
        ({"moon.mu": [0.1, 1]}, "an option of 'moon', which is none of the methods"),
    ],
)
def test_grids_that_are_not_fair_are_refused(given: dict[str, list[float]], said: str) -> None:
    with pytest.raises(UserError, match=said):
        grids(["fedavg", "fedprox", "fedssd"], SMALL, given)


def test_no_seed_both_chooses_and_reports(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="got seed 3 in both"):
        tune(SMALL, {"fedavg": [{}]}, [2, 3], [3, 4], tmp_path)


def test_what_is_chosen_has_the_best_mean_on_the_tuning_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = "--rounds 1 --epochs 1 --clients 3 --auxiliary 4 --model mlp --data digits --workers 1 --quiet"
    keys = shlex.split(small)
    words = ["tune", "--methods", "fedavg,fedprox", "--grid", "fedprox.mu=0.01,100", "--tuning-seeds", "5,6"]
    assert main([*words, "--seeds", "0,1", *keys, "--out", "t"]) == 0
    told = json.loads((tmp_path / "t" / "tuned.json").read_text())
    runs = read_runs(tmp_path / "t")
    means = {
        mu: fmean(
            one.summary.accuracy or 0.0
            for one in runs
            if one.summary.seed in (5, 6) and one.recipe.options.get("fedprox", {}).get("mu") == mu
        )
        for mu in (0.01, 100.0)
    }
    assert {float(one["values"]["fedprox.mu"]): one["accuracy"] for one in told["tried"]} == means
    assert float(told["chosen"]["fedprox"]["fedprox.mu"]) == max(means, key=lambda mu: means[mu])
    assert [(one["method"], one["seed"]) for one in told["runs"]] == [
        ("fedavg", 0),
        ("fedavg", 1),
        ("fedprox", 0),
        ("fedprox", 1),
    ]
