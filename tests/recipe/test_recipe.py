"""Recipes: read, checked, written back."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedssd.errors import UserError
from fedssd.recipe import Recipe, check, load_recipe, merge
from fedssd.runs.archive import read_pack

pytestmark = pytest.mark.quick


def test_a_written_recipe_reads_back_as_itself(tmp_path: Path) -> None:
    recipe = load_recipe(None, {"method": "fedssd+fedprox", "lr": "0.03", "fedssd.m_max": "0.3", "fedprox.mu": 1})
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    assert load_recipe(tmp_path / "recipe.toml", {}) == recipe
    assert recipe.options == {"fedssd": {"m_max": 0.3}, "fedprox": {"mu": 1}}


def test_what_is_given_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("rounds = 7\nepochs = 3\n[options.fedssd]\nm_max = 0.1\nfloor = 0.2\n")
    recipe = load_recipe(tmp_path / "r.toml", {"rounds": "9", "options.fedssd.m_max": "0.5"})
    assert (recipe.rounds, recipe.epochs) == (9, 3)
    assert recipe.options["fedssd"] == {"m_max": 0.5, "floor": 0.2}


def test_where_a_run_happens_is_not_part_of_its_hash() -> None:
    base = Recipe()
    assert merge(base, {"device": "cpu", "engine": "reference", "width": 3}, "").hash == base.hash
    assert merge(base, {"lr": 0.02}, "").hash != base.hash
    assert merge(base, {"fedssd.m_max": 0.02}, "").hash != base.hash


def test_a_key_that_came_later_is_in_the_hash_only_where_it_is_set() -> None:
    """Runs are named by their hashes: those of the paper's cells are as they were when they ran."""
    runs = read_pack(Path(__file__).parents[2] / "results" / "paper.runs.jsonl.gz")
    assert len(runs) > 50
    for name, run in runs.items():
        assert merge(Recipe(), run.recipe, "").hash == run.summary["recipe_hash"], name
    assert merge(Recipe(), {"label": "charges"}, "").hash != merge(Recipe(), {"label": "age"}, "").hash != Recipe().hash


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lrr": 1}, ["lrr", "'lr'"]),
        ({"rounds": 0}, ["rounds", "at least 1"]),
        ({"rounds": "many"}, ["rounds", "whole number", "many"]),
        ({"rounds": 1.5}, ["rounds", "whole number"]),
        ({"rounds": True}, ["rounds", "whole number"]),
        ({"lr": -1.0}, ["lr", "above 0"]),
        ({"lr": float("nan")}, ["lr expects a finite number above 0, got nan"]),
        ({"lr": float("inf")}, ["lr expects a finite number above 0, got inf"]),
        ({"lr": 0.0}, ["lr expects a number above 0, got 0.0"]),
        ({"momentum": 1.0}, ["momentum", "below 1"]),
        ({"participation": 1.5}, ["participation", "at most 1"]),
        ({"participation": 0.0}, ["participation", "above 0"]),
        ({"seed": -1}, ["seed"]),
        ({"method": "fedsdd"}, ["fedsdd", "'fedssd'"]),
        ({"method": "fedssd+fedssd"}, ["once"]),
        ({"server": "mean"}, ["server half", "mean"]),
        ({"fedssd.m_maxx": 1.0}, ["m_maxx", "m_max"]),
        ({"fedssd.m_max": "big"}, ["fedssd.m_max", "a number", "big"]),
        ({"fedssd.m_max": -1.0}, ["fedssd.m_max", "not negative"]),
        ({"fedssd.square": "around"}, ["square", "inside"]),
        ({"fedsd.m_max": 1.0}, ["fedsd", "fedssd"]),
        ({"engine": "fast"}, ["engine", "reference"]),
        ({"options": 3}, ["options"]),
        ({"option": {"fedssd": {"m_max": 1.0}}}, ["here: unknown key 'option': did you mean 'options'?"]),
        ({"fedssd": {"m_max": 1.0}}, ["a method's options stand in a table [options.fedssd]"]),
    ],
)
def test_a_mistake_is_one_line_that_names_it(values: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        check(merge(Recipe(), values, "here"))
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('method = "fedsd"', "unknown method 'fedsd'"),
        ("[options.fedsd]\nm_max = 1.0", "options are given for an unknown method 'fedsd'"),
        ("[options.fedssd]\nm_mx = 1.0", "method 'fedssd' has no option 'm_mx'"),
        ("lr = nan", "lr expects a finite number"),
        ('checkpoint_every = "often"', "checkpoint_every expects"),
    ],
)
def test_a_mistake_in_a_file_names_the_file(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(text)
    for given in ({}, {"rounds": "3"}, {"options.fedssd.floor": "0.1"}):
        with pytest.raises(UserError, match=f"^recipe {tmp_path}/r.toml: {said}"):
            load_recipe(tmp_path / "r.toml", given)


def test_a_mistake_beside_a_file_does_not_name_it(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("lr = nan")
    for given in ({"lr": "-1"}, {"lr": "0.1", "method": "fedsd"}, {"lr": "0.1", "fedprox.mu": "1"}):
        with pytest.raises(UserError, match=r"^(lr expects|unknown method|fedprox\.mu is set)"):
            load_recipe(tmp_path / "r.toml", given)
    assert load_recipe(tmp_path / "r.toml", {"lr": "0.1"}).lr == 0.1


def test_a_method_that_the_caller_names_is_no_mistake_of_the_file(tmp_path: Path) -> None:
    """``fedssd bench`` and ``compare --recipe`` bring methods of their own to a file that is right."""
    path = tmp_path / "r.toml"
    path.write_text("rounds = 3\n")
    with pytest.raises(UserError, match=r"^method file 'none\.py' does not exist"):
        load_recipe(path, {"method": "none.py:X"}, ["fedavg", "none.py:X"])


def test_a_value_of_another_type_is_a_mistake_even_where_it_is_overridden(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('rounds = "many"')
    with pytest.raises(UserError, match=r"r\.toml: rounds expects a whole number, got 'many'"):
        load_recipe(tmp_path / "r.toml", {"rounds": "3"})
