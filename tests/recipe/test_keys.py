"""Keys are declared once: what is derived from them, and recipes that are checked as soon as they are made."""

from __future__ import annotations

import doctest
import pickle
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest

import fedssd
from fedssd import Recipe
from fedssd.errors import UserError
from fedssd.recipe import FREE, KEYS, MACHINE, recipe
from fedssd.reports.grouping import LEFT_OUT, TASK
from fedssd.sweeps.grid import VARIED

pytestmark = pytest.mark.quick
GROUPS = ("data and clients", "method and model", "training", "machine", "evaluation", "reliability", "privacy")
TASKS = {
    "data", "label", "partition", "clients", "participation", "auxiliary", "auxiliary_mode", "augment", "model",
    "rounds", "epochs", "evaluate_every",
}  # fmt: skip


def test_the_sets_are_what_they_were_when_each_was_a_list() -> None:
    """A hash, a batched program and a run's name rest on them."""
    assert MACHINE == ("engine", "device", "width", "kernels", "deterministic", "checkpoint_every")
    assert set(FREE) == {"rounds", "on_bad_update", "privacy_budget", *MACHINE}
    splits = {"seed", "partition", "partition_seed", "auxiliary", "auxiliary_mode"}
    assert set(VARIED) == {"lr", "momentum", "weight_decay", "lr_decay"} | splits
    assert set(TASK) == TASKS
    assert {"head", "seed", "partition_seed", "evaluate_local", "method", "server", "options", *MACHINE} == (
        LEFT_OUT - TASKS
    )


def test_every_key_has_a_group_a_line_of_help_and_a_default_that_it_allows() -> None:
    assert [one.name for one in fields(Recipe)] == [*KEYS, "options"]
    assert tuple(dict.fromkeys(one.group for one in KEYS.values())) == GROUPS
    for name, one in KEYS.items():
        assert one.help, name
        assert getattr(Recipe(**{name: one.default}), name) == one.default


def test_a_recipe_is_checked_without_torch(tmp_path: Path) -> None:
    script = """
import sys
import fedssd.errors
for keys in ({"lrr": 1}, {"rounds": "many"}, {"rounds": 0}, {"engine": "fast"}, {"momentum": 1.0}):
    try:
        fedssd.Recipe(**keys)
    except fedssd.errors.UserError:
        pass
    else:
        raise SystemExit(f"{keys} went through")
made = fedssd.Recipe.load("cifar10", rounds=3).replace(**{"fedssd.m_max": 0.5})
made.save("copy.toml")
assert fedssd.Recipe.load("copy.toml") == made and made.hash
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"lrr": 1}, "recipe: unknown key 'lrr': did you mean 'lr'?"),
        ({"rounds": "many"}, "recipe: rounds expects a whole number, got 'many'"),
        ({"rounds": 2.5}, "recipe: rounds expects a whole number, got 2.5"),
        ({"lr": True}, "recipe: lr expects a number, got True"),
        ({"rounds": 0}, "rounds expects a whole number of at least 1, got 0"),
        ({"clients": 10**9 + 1}, "clients expects a whole number of at most 1,000,000,000, got 1000000001"),
        ({"seed": 2**32}, "seed expects a whole number of at most 4,294,967,295, got 4294967296"),
        ({"partition_seed": -2}, "partition_seed expects a whole number of at least -1, got -2"),
        ({"lr": 0}, "lr expects a number above 0, got 0.0"),
        ({"weight_decay": -1.0}, "weight_decay expects a number of at least 0, got -1.0"),
        ({"momentum": 1}, "momentum expects a number of at least 0 and below 1, got 1.0"),
        ({"participation": 1.5}, "participation expects a number above 0 and at most 1, got 1.5"),
        ({"lr": float("inf")}, "lr expects a finite number above 0, got inf"),
        ({"engine": "fast"}, "engine expects one of auto, reference, vectorised, got 'fast'"),
        (
            {"checkpoint_every": "often"},
            "checkpoint_every expects 5 (rounds), 30s, 10m, 1h, auto or never, got 'often'",
        ),
        ({"method": "fedavg", "local": "fedssd"}, "recipe: method and local are one key, and both are given"),
        ({"options": 3}, "recipe: options expects tables such as [options.fedssd], got 3"),
    ],
)
def test_a_wrong_key_type_choice_or_bound_is_one_line_at_once(keys: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        Recipe(**keys)
    assert str(caught.value) == said
    with pytest.raises(UserError) as caught:
        Recipe().replace(**keys)
    assert str(caught.value) == said.replace("recipe:", "changes:")


def test_values_come_from_python_numpy_and_text_alike() -> None:
    plain = Recipe(rounds=3, lr=0.5, evaluate_local=False, **{"fedssd.m_max": 0.25})
    assert plain == Recipe(
        rounds=np.int64(3), lr=np.float64(0.5), evaluate_local=np.bool_(False), options={"fedssd": {"m_max": 0.25}}
    )
    assert plain == Recipe(**{"rounds": "3", "lr": "0.5", "evaluate-local": "false", "options.fedssd.m_max": "0.25"})
    assert Recipe(lr=1) == Recipe(lr=1.0)
    assert type(Recipe(lr=1).lr) is float
    assert Recipe(local="moon").method == "moon"


def test_a_recipe_is_a_value_that_nobody_changes() -> None:
    options = {"fedssd": {"m_max": 0.25}}
    made = Recipe(options=options)
    options["fedssd"]["m_max"] = 9.0
    assert made.options == {"fedssd": {"m_max": 0.25}}
    other = made.replace(rounds=7, **{"fedssd.floor": 0.0})
    assert (other.rounds, other.options) == (7, {"fedssd": {"m_max": 0.25, "floor": 0.0}})
    assert made.options == {"fedssd": {"m_max": 0.25}}
    with pytest.raises(AttributeError):
        made.rounds = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(other)) == other
    assert Recipe(**asdict(other)) == replace(other) == other


def test_a_saved_recipe_loads_and_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    made = Recipe.load("digits", rounds=3, label="x", **{"fedssd.m_max": 0.25})
    made.save(tmp_path / "mine.toml")
    assert Recipe.load(tmp_path / "mine.toml") == made
    assert Recipe.load(str(tmp_path / "mine.toml"), rounds=4).rounds == 4
    (tmp_path / "wrong.toml").write_text("rounds = 0\n")
    with pytest.raises(UserError, match=r"^recipe .*wrong\.toml: rounds expects a whole number of at least 1, got 0$"):
        Recipe.load(tmp_path / "wrong.toml")
    assert Recipe.load(tmp_path / "wrong.toml", rounds=2).rounds == 2
    with pytest.raises(UserError, match=r"cannot write the recipe to .*nowhere"):
        made.save(tmp_path / "nowhere" / "mine.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UserError, match="cannot write the recipe to"):
        made.save(tmp_path / "folder.toml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.toml", "mine.toml", "wrong.toml"]


@pytest.mark.parametrize("method", ["fedavg", "moon", "fedssd+fedprox"])
def test_resolved_is_what_a_run_writes_down(method: str, tmp_path: Path) -> None:
    keys = {"clients": 2, "partition": "iid", "rounds": 1, "epochs": 1, "auxiliary": 1, "method": method}
    asked = Recipe(data="digits", **keys)
    fedssd.run(data="digits", **keys, out=tmp_path / "run")
    assert Recipe.load(tmp_path / "run") == asked.resolved() == asked.resolved().resolved()
    assert asked.resolved().model == "cnn-small"


def test_resolved_knows_the_paper_s_models_without_their_data() -> None:
    found = {data: Recipe(data=data).resolved() for data in ("cifar10", "cifar100", "tiny-imagenet")}
    assert {(one.model, one.augment, one.partial_batch) for one in found.values()} == {
        ("cnn", "moon", "keep"),
        ("resnet50", "moon", "drop"),
    }
    assert found["cifar10"].model == "cnn"


def test_the_examples_in_the_docstrings_are_right() -> None:
    assert doctest.testmod(recipe).failed == 0
    assert doctest.testmod(recipe).attempted >= 4
