"""The study's own rules: what would break one is refused, and no seed both chooses and reports."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from fedssd import UserError
from studies.paper.design import PARTS, REPORTING, load_design, understood
from studies.paper.paper import HERE
from studies.paper.trials import Study

pytestmark = pytest.mark.quick
CONTENT = tomllib.loads((HERE / "design.toml").read_text(encoding="utf-8"))


def drop(name: str) -> Callable[[Any], None]:
    return lambda content: content.update(composition=[one for one in content["composition"] if one["name"] != name])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda content: content["seeds"].update(reporting=[2, 3]), "report seeds it chooses on: [2]"),
        (lambda content: content["seeds"].update(more=[100]), "report seeds it chooses on: [100]"),
        (lambda content: content["digits"].update(seeds=[0]), "report seeds it chooses on: [0]"),
        (lambda content: content["grids"].update({"moon.mu": [1.0]}), "a grid of the same size"),
        (lambda content: content["composition"][0]["grid"].update(lr_decay=[0.9]), "a grid of the same size"),
        (lambda content: content["columns"]["grid"].update({"fedssd.m_max": [7.0]}), "that it does not tune"),
        (lambda content: content["digits"].update(m_max=[7.0]), "does not try there: [7.0]"),
        (lambda content: content["report"].update(also=[{"head": "on"}]), "none of the profile's: head=on"),
        (lambda content: content["confirm"].update(more_arms=["fedsd"]), "arms that it does not have: fedsd"),
        (lambda content: content["report"].update(more_arms=["fedsd"]), "methods that it does not report: fedsd"),
        (drop("fedavg-decay"), "fedssd-decay and not the same without FedSSD"),
    ],
)
def test_a_design_that_breaks_a_rule_is_refused(change: Callable[[Any], Any], complaint: str) -> None:
    content = deepcopy(CONTENT)
    change(content)
    with pytest.raises(UserError, match=complaint.replace("[", r"\[").replace("]", r"\]")):
        understood(content)


def test_no_seed_chooses_and_reports(study: Study) -> None:
    seeds = {part: {seed for trial in study.trials(part) for seed in trial.read} for part in PARTS}
    choosing = set.union(*(seeds[part] for part in PARTS if part not in REPORTING))
    reporting = set.union(*(seeds[part] for part in REPORTING))
    assert (choosing, reporting) == ({0, 1, 2, 100, 101, 102}, {3, 4, 5, 6, 7, 8, 9})


def test_a_departure_changes_one_thing(study: Study) -> None:
    """Beside what its arm has: everything else is the base recipe's, field for field."""
    for choice in load_design().choices:
        for trial in study.departures("screen", choice):
            base, changed = study.base_of(trial).recipe, dict(item.split("=") for item in trial.label.split(","))
            keys = {key for key in changed if "." not in key}
            differing = {key for key in vars(base) if getattr(base, key) != getattr(trial.recipe, key)}
            assert differing - {"hash"} == keys | ({"options"} if keys != changed.keys() else set()), trial


def test_how_much_each_part_runs(study: Study) -> None:
    """By hand: arms, choices, columns and grids of design.toml, times their seeds."""
    cells = {part: sum(len(trial.recipes) for trial in study.trials(part)) for part in PARTS}
    assert cells["profile"] == 7 * 5 * 3
    assert cells["tune"] == (6 + 2) * 5 * 3
    assert cells["columns"] == 5 * (1 + 3) * 3
    assert cells["report"] == 5 * (10 * 3 + 3 * 4)
    assert cells["compose"] == 7 * 3 * 3
    assert cells["digits"] == 5 * (1 + 3) * 6
    assert cells["digits-columns"] == 5 * (1 + 6) * 3
