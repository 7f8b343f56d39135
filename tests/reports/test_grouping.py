"""What lines are called: by what is not as it commonly is, each otherwise, in an order that paths have no part in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fedssd.recipe import load_recipe
from fedssd.reports.charts import DRAWN
from fedssd.reports.grouping import Setting, settings
from fedssd.reports.page import setting_content
from fedssd.runs.read import collect

pytestmark = pytest.mark.quick
BASE = {"m_max": 0.5, "floor": 0.1}
Recipes = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def told(tmp_path: Path, write_run: Callable[..., Path]) -> Callable[..., Setting]:
    """The setting of one run for each method and recipe; in their order."""

    def setting(recipes: Recipes, accuracies: list[float] | None = None) -> Setting:
        place = tmp_path / str(next(numbers))
        for number, (method, recipe) in enumerate(recipes):
            reached = 0.5 if accuracies is None else accuracies[number]
            write_run(place / f"{number:03}", method, 0, [reached], recipe)
        (found,) = settings(collect([place]))
        return found

    numbers = count()
    return setting


def ssd(recipe: Mapping[str, Any] | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
    return "fedssd", {**(recipe or {}), "options": {"fedssd": {**BASE, **options}}}


def names(setting: Setting) -> list[str]:
    return [record.summary.method for record in setting.records]


STUDY: Recipes = [
    ("fedavg", {}),
    ("fedavg", {"weight_decay": 0.0005}),
    ssd(m_max=1.0),
    ssd(),
    ssd(m_max=0.01),
    ssd({"weight_decay": 0.0005}),
    ssd({"weight_decay": 0.00001}),
    ssd(floor=0.0),
    ssd(m_max=1.0, floor=0.0),
]


def test_the_base_is_plain_and_a_departure_says_what_it_is(told: Callable[..., Setting]) -> None:
    """m_max is 0.5 in 4 of 7 lines, floor 0.1 in 5, no weight decay in 6 of all 9."""
    setting = told(STUDY)
    assert names(setting) == [
        "fedavg",
        "fedavg weight_decay=0.0005",
        "fedssd",
        "fedssd weight_decay=1e-05",
        "fedssd weight_decay=0.0005",
        "fedssd m_max=0.01",
        "fedssd m_max=1",
        "fedssd floor=0",
        "fedssd m_max=1 floor=0",
    ]
    assert setting.unsaid == {"": {"weight_decay": "0"}, "fedssd": {"m_max": "0.5", "floor": "0.1"}}
    notes = setting_content(setting)["table"]["notes"]
    assert "where a name does not say otherwise: weight_decay=0; of fedssd: m_max=0.5, floor=0.1" in notes


def test_names_do_not_depend_on_the_order_of_the_runs(told: Callable[..., Setting]) -> None:
    assert names(told(STUDY[::-1])) == names(told(STUDY))


def test_a_line_is_measured_against_the_fedavg_that_trains_as_it_does(told: Callable[..., Setting]) -> None:
    """There are two, and none with a weight decay of 1e-5."""
    found = told(STUDY).baselines
    assert found["fedssd m_max=1"] == "fedavg"
    assert found["fedssd weight_decay=0.0005"] == "fedavg weight_decay=0.0005"
    assert "fedssd weight_decay=1e-05" not in found


def test_many_fedavgs_are_not_listed_one_by_one(told: Callable[..., Setting]) -> None:
    """Those of decay 0, 0.1 and 0.2 are for a FedSSD each; with 0.3 there is none."""
    decays = [0.0, 0.1, 0.2]
    recipes = [("fedavg", {"weight_decay": decay}) for decay in decays]
    recipes += [ssd({"weight_decay": decay}) for decay in (*decays, 0.3)]
    (note,) = [note for note in setting_content(told(recipes))["table"]["notes"] if note.startswith("FedAvg")]
    assert note.endswith("its projection head and local training; 1 of 7 lines have none")


def test_a_plain_name_has_the_same_training_behind_it_whatever_the_method(told: Callable[..., Setting]) -> None:
    """FedAvg was run with a decay alone, which of itself would need no saying; most lines have none."""
    decayed = {"weight_decay": 0.1}
    found = names(told([("fedavg", decayed), ssd(), ssd(decayed), ("fedprox", {}), ("moon", {})]))
    assert found == ["fedavg weight_decay=0.1", "fedprox", "moon", "fedssd", "fedssd weight_decay=0.1"]


def test_what_differs_between_methods_alone_is_not_said(told: Callable[..., Setting]) -> None:
    assert names(told([("fedavg", {"lr": 0.1}), ("fedprox", {"lr": 0.2}), ssd()])) == ["fedavg", "fedprox", "fedssd"]


def test_where_no_value_is_the_commonest_all_are_said(told: Callable[..., Setting]) -> None:
    grid = [ssd({"lr": lr}, m_max=m_max) for m_max in (1.0, 0.1, 10.0) for lr in (0.2, 0.1)]
    expected = [f"fedssd lr={lr} m_max={m_max}" for lr in ("0.1", "0.2") for m_max in ("0.1", "1", "10")]
    assert names(told(grid)) == expected


def test_seeds_do_not_make_a_value_common(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    for seed, m_max in enumerate((0.5, 0.5, 0.5, 1.0)):
        method, recipe = ssd(m_max=m_max)
        write_run(tmp_path / str(seed), method, seed, [0.5], recipe)
    (setting,) = settings(collect([tmp_path]))
    assert names(setting) == ["fedssd m_max=0.5"] * 3 + ["fedssd m_max=1"]


def test_different_lines_are_never_called_the_same(told: Callable[..., Setting]) -> None:
    """Numbers alike in six figures, an option named as a key of all methods, two files with a class of one name."""
    close = [ssd(m_max=value) for value in (0.1, 0.10000001, 0.5)]
    assert len(set(names(told([*close, ssd(floor=0.0)])))) == 4

    def adaptive(lr: float, own: float) -> tuple[str, dict[str, Any]]:
        return "fedavg", {"server": "fedadam", "lr": lr, "options": {"fedadam": {"lr": own}}}

    rates = [adaptive(0.1, 0.1), adaptive(0.1, 0.2), adaptive(0.2, 0.1)]
    assert names(told(rates)) == ["fedadam", "fedadam lr=0.2", "fedadam fedadam.lr=0.2"]
    files = told([("one/mine.py:Calm", {}), ("two/mine.py:Calm", {}), ("two/mine.py:Wild", {})])
    shown = [method["name"] for method in setting_content(files)["methods"]]
    assert shown == ["one/mine.py:Calm", "two/mine.py:Calm", "Wild"]


def test_a_whole_number_is_the_same_with_and_without_a_point(told: Callable[..., Setting]) -> None:
    assert names(told([ssd(m_max=1), ssd(m_max=1.0)])) == ["fedssd", "fedssd"]


def test_an_option_that_older_runs_lack_is_unset(told: Callable[..., Setting]) -> None:
    assert names(told([ssd(), ssd(new=2), ssd(new=2, floor=0.0)])) == ["fedssd", "fedssd floor=0", "fedssd new=unset"]


def test_compositions_say_whose_option_it_is(told: Callable[..., Setting]) -> None:
    options = [{"fedssd": {"m_max": 1.0}, "fedprox": {"mu": mu}} for mu in (0.1, 0.2)]
    found = names(told([("fedssd+fedprox", {"server": "fednova", "options": given}) for given in options]))
    assert found == ["fedssd+fedprox × fednova fedprox.mu=0.1", "fedssd+fedprox × fednova fedprox.mu=0.2"]


def test_at_first_each_method_s_plain_line_is_drawn_then_the_best(told: Callable[..., Setting]) -> None:
    """Of KL neither line is plain: its better one stands for it. Every line drawn at first has its own colour."""
    many = [ssd(m_max=float(number)) for number in range(10)]
    kl = [("kl", {"options": {"kl": {"alpha": alpha}}}) for alpha in (0.1, 0.2)]
    reached = [0.1, 0.1, 0.1, *(number / 20 for number in range(10)), 0.05, 0.06]
    setting = told([("fedavg", {}), ssd(), ssd(floor=0.0), *many, *kl], reached)
    methods = setting_content(setting)["methods"]
    first = [method for method in methods if method["drawn"]]
    best = [f"fedssd m_max={number}" for number in (9, 8, 7, 6, 5)]
    assert {method["id"] for method in first} == {"fedavg", "fedssd", "kl alpha=0.2", *best}
    assert len(first) == DRAWN
    assert len({method["light"] for method in first}) == DRAWN


def test_every_line_s_recipe_is_told_in_full(told: Callable[..., Setting]) -> None:
    setting = told(STUDY)
    for method in setting_content(setting)["methods"]:
        run = next(record for record in setting.records if record.summary.method == method["id"])
        assert method["recipe"] == load_recipe(run.folder / "recipe.toml", {}).to_toml()


def test_the_paper_s_methods_are_called_as_in_the_paper_with_what_departs(told: Callable[..., Setting]) -> None:
    shown = [method["name"] for method in setting_content(told(STUDY))["methods"]]
    assert shown[1:3] == ["FedAvg weight_decay=0.0005", "FedSSD"]
