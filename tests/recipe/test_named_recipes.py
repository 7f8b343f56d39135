"""The recipes that come with fedssd by name, and that no file of the study decides what a run is."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import fedssd
from fedssd.cli import main
from fedssd.errors import UserError
from fedssd.methods.registry import LOCALS
from fedssd.recipe import NAMED, Recipe, briefly, load_recipe
from fedssd.recipe.resolve import resolved
from fedssd.runs.folder import sealed
from fedssd.simulation.events import Event
from fedssd.sweeps.grid import PLAN, read_plan

PRINTED = {  # in the paper
    "cifar10": {"fedprox.mu": 0.01, "fedcurv.lam": 1e-3, "moon.mu": 5.0, "fedssd.m_max": 0.01},
    "cifar100": {"fedprox.mu": 1e-3, "fedcurv.lam": 1e-4, "moon.mu": 1.0, "fedssd.m_max": 1e-3},
    "tiny-imagenet": {"fedprox.mu": 1e-3, "fedcurv.lam": 1e-5, "moon.mu": 1.0, "fedssd.m_max": 1e-3},
}
TINY = ["--rounds", "1", "--epochs", "1", "--clients", "2", "--partition", "iid", "--auxiliary", "1"]
QUICK = {"rounds": 1, "epochs": 1, "partition": "iid"}


@pytest.mark.quick
@pytest.mark.parametrize("name", PRINTED)
def test_a_named_recipe_has_what_the_paper_prints_for_its_data(name: str) -> None:
    recipe = load_recipe(name, {})
    assert (recipe.data, recipe.clients, recipe.partition, recipe.auxiliary) == (name, 10, "dirichlet:0.5", 64)
    assert (recipe.epochs, recipe.batch, recipe.lr, recipe.momentum) == (10, 64, 0.01, 0.9)
    assert (recipe.rounds, recipe.model) == {"cifar10": (100, "cnn"), "cifar100": (100, "resnet50")}.get(
        name, (30, "resnet50")
    )
    written = {f"{method}.{key}": value for method, given in recipe.options.items() for key, value in given.items()}
    assert written == PRINTED[name]
    classes = {f"{kind.name}.{key}": v for kind in LOCALS.values() for key, v in kind.published.get(name, {}).items()}
    assert classes == PRINTED[name]


@pytest.mark.quick
@pytest.mark.parametrize("data", [*NAMED, "my.npz"])
def test_no_strength_follows_from_the_name_of_the_data(data: str) -> None:
    for name, kind in LOCALS.items():
        recipe = resolved(load_recipe(None, {"data": data, "method": name, "model": "mlp", "partial_batch": "keep"}))
        defaults = {one.name: one.default for one in fields(kind) if one.name != "parts"}
        assert recipe.options.get(name, {}) == defaults


def test_a_run_opens_no_file_of_the_study(tmp_path: Path) -> None:
    script = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from fedssd.cli import main
assert main(sys.argv[1:]) == 0
found = [path for path in opened if path.endswith(".toml")]
assert any(path.endswith("recipes/digits.toml") for path in found), found  # the hook hears
assert not [path for path in found if "studies/" in path or "table" in path], found
assert not [name for name in sys.modules if name.startswith("studies")]
"""
    words = [sys.executable, "-c", script, "run", *TINY, "--quiet", "--out", str(tmp_path / "run")]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.quick
def test_a_recipe_is_a_name_a_file_or_a_folder_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "recipe.toml").write_text("epochs = 3\n")
    assert load_recipe("digits", {}).lr == 0.03
    assert load_recipe("./digits", {}) == load_recipe(Path("digits"), {}) == Recipe(epochs=3)
    with pytest.raises(UserError, match=r"cannot be read: No such file or directory; did you mean .* 'cifar10'\?"):
        load_recipe("recipes/cifar-10.toml", {})
    with pytest.raises(UserError, match="known by name: digits, cifar10, cifar100, tiny-imagenet"):
        load_recipe("mine.toml", {})


@pytest.mark.quick
@pytest.mark.parametrize("value", ["paper-printed", "paper", "other"])
@pytest.mark.parametrize("command", ["run", "compare", "sweep"])
def test_the_flag_that_went_says_what_to_write(command: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--data", "cifar10", "--profile", value]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"fedssd {command}: --profile is no more: --recipe cifar10, cifar100 or tiny-imagenet has")
    assert said.count("\n") == 1


def test_who_names_neither_recipe_nor_data_gets_digits_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    remark = "neither --recipe nor --data: the recipe 'digits'\n"
    assert main(["run", *TINY, "--out", "run"]) == 0
    said = capsys.readouterr()
    assert said.err.count(remark) == 1
    written = load_recipe("run", {})
    assert (written.lr, written.batch, written.options["fedssd"]["m_max"]) == (0.03, 32, 0.3)
    assert (written.clients, written.auxiliary) == (2, 1)
    assert main(["compare", "--methods", "fedavg", "--seeds", "0", "--workers", "1", *TINY, "--out", "both"]) == 0
    assert capsys.readouterr().err.count(remark) == 1
    assert main(["sweep", "--grid", "lr=0.1", "--seeds", "0", "--workers", "1", *TINY, "--out", "grid"]) == 0
    assert capsys.readouterr().err.count(remark) == 1
    assert main(["sweep", "--grid", "data=digits", "--seeds", "0", "--workers", "1", *TINY, "--out", "data"]) == 0
    assert remark not in capsys.readouterr().err
    assert main(["run", "--data", "digits", *TINY, "--out", "plain"]) == 0
    assert remark not in capsys.readouterr().err
    assert load_recipe("plain", {}).lr == Recipe.lr


def test_python_takes_the_same_recipe_and_tells_its_listener() -> None:
    heard: list[Event] = []
    result = fedssd.run(listen=heard.append, clients=2, auxiliary=1, **QUICK)
    assert "neither recipe= nor data=: the recipe 'digits'" in [event.note for event in heard]
    assert (result.recipe.lr, result.recipe.clients, result.recipe.model) == (0.03, 2, "cnn-small")
    heard.clear()
    named = fedssd.run(recipe="digits", listen=heard.append, clients=2, auxiliary=1, **QUICK)
    assert named.recipe == result.recipe
    assert not any("neither" in event.note for event in heard)
    assert fedssd.run(data="digits", clients=2, auxiliary=1, **QUICK).recipe.lr == Recipe.lr
    with pytest.raises(UserError, match="recipe expects a Recipe, a name, a TOML file or a run's folder, got 3"):
        fedssd.run(recipe=3)  # type: ignore[arg-type]


def test_a_recipe_is_run_as_it_is(tmp_path: Path) -> None:
    recipe = Recipe(data="digits", clients=2, auxiliary=1, method="fedprox", **{**QUICK, "fedprox.mu": 0.5})
    recipe.save(tmp_path / "mine.toml")
    for result in (fedssd.run(recipe), fedssd.run(recipe=recipe), fedssd.run(recipe=tmp_path / "mine.toml")):
        assert result.recipe == recipe.resolved()
    assert fedssd.run("fedavg", recipe=recipe).recipe.method == "fedavg"
    one, two = fedssd.compare(["fedavg", "fedprox"], [0], recipe=recipe)
    assert (one.recipe.method, two.recipe) == ("fedavg", recipe.resolved())
    with pytest.raises(UserError, match="two recipes"):
        fedssd.run(recipe, recipe=recipe)


@pytest.mark.quick
def test_a_run_of_less_than_half_the_training_is_called_short() -> None:
    assert briefly(load_recipe("digits", {})) == ""
    assert briefly(load_recipe("digits", {"rounds": 10})) == ""
    assert briefly(load_recipe("digits", {"rounds": 9})).startswith("a short run: rounds × epochs = 9 × 10 where the")
    assert "the recipe cifar10 has 100 × 10" in briefly(load_recipe("cifar10", {"rounds": 20}))
    assert "the defaults have 20 × 10" in briefly(load_recipe(None, {"data": "my.npz", "epochs": 1}))
    assert briefly(load_recipe(None, {"data": "my.npz", "epochs": 5})) == ""


def test_a_run_on_the_command_line_says_so_beside_its_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *TINY, "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert "a short run: rounds × epochs = 1 × 1 where the recipe digits has 20 × 10" in capsys.readouterr().out


@pytest.mark.quick
def test_what_an_older_version_began_keeps_its_strengths(tmp_path: Path) -> None:
    """They followed from the data's name, and the plan of such a comparison does not hold them."""
    base = {"data": "cifar10", "options": {"fedntd": {"temperature": 2.0}, "moon": {"mu": 1.0}}}
    old = {"asked": {"command": "compare", "base": base}, "groups": [[0]], "threads": 1, "sources": {}}
    (tmp_path / PLAN).write_bytes(sealed(old))
    options = read_plan(tmp_path).asked["base"]["options"]
    assert options["fedprox"] == {"mu": 0.001}
    assert options["fedntd"] == {"beta": 0.3, "temperature": 2.0}
    assert options["moon"] == {"mu": 1.0}
    (tmp_path / PLAN).write_bytes(sealed({**old, "strengths": "given"}))
    assert read_plan(tmp_path).asked["base"] == base
