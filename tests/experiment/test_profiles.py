"""Values below a recipe: what the paper prints, and what the study chose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from told import flat, tuned

from fedssd.cli import main
from fedssd.errors import UserError
from fedssd.experiment.paper import recipe_file
from fedssd.experiment.profiles import pipeline, profile_values, remark_on_strengths
from fedssd.experiment.recipe import load_recipe
from fedssd.experiment.study.chosen import Chosen, load_chosen
from fedssd.experiment.study.parts import Study
from fedssd.experiment.study.results import Results
from fedssd.methods import shipped
from fedssd.methods.registry import build_local


@pytest.mark.quick
def test_paper_printed_is_what_the_paper_prints() -> None:
    recipe = load_recipe(None, {"data": "cifar100", "method": "fedssd+fedprox"}, profile="paper-printed")
    assert (recipe.model, recipe.rounds, recipe.epochs, recipe.batch, recipe.lr) == ("resnet50", 100, 10, 64, 0.01)
    assert (recipe.momentum, recipe.clients, recipe.partition, recipe.auxiliary) == (0.9, 10, "dirichlet:0.5", 64)
    assert recipe.options["fedssd"]["m_max"] == 0.001
    assert recipe.options["fedprox"]["mu"] == 0.001
    above = {"data": "cifar10", "rounds": 3, "fedssd.m_max": 0.5}
    recipe = load_recipe(None, above, profile="paper-printed")
    assert (recipe.rounds, recipe.epochs, recipe.options["fedssd"]["m_max"]) == (3, 10, 0.5)


@pytest.mark.quick
def test_a_file_is_stronger_than_a_profile(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('data = "cifar10"\nepochs = 2\n[options.fedssd]\nfloor = 0.0\n')
    recipe = load_recipe(tmp_path / "r.toml", {}, profile="paper-printed")
    assert (recipe.epochs, recipe.rounds) == (2, 100)
    assert recipe.options["fedssd"] == {
        "m_max": 0.01,
        "floor": 0.0,
        "exponent": 0.5,
        "square": "inside",
        "reduction": "sum",
        "normaliser": "batch",
    }


@pytest.mark.quick
def test_the_paper_profile_is_what_the_study_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedssd.experiment import profiles

    monkeypatch.setattr(profiles, "load_chosen", lambda: Chosen())
    with pytest.raises(UserError, match="has been found for no dataset yet"):
        pipeline("paper", "cifar10")
    monkeypatch.setattr(profiles, "load_chosen", lambda: Chosen(paper={"weight_decay": 1e-5, "head": "on"}))
    recipe = load_recipe(None, {"data": "cifar10"}, profile="paper")
    assert (recipe.weight_decay, recipe.head, recipe.rounds, recipe.options["fedssd"]["m_max"]) == (
        1e-5,
        "on",
        100,
        0.01,
    )
    with pytest.raises(UserError, match="found for cifar10 alone"):
        pipeline("paper", "cifar100")
    with pytest.raises(UserError, match=r"has values for cifar10, cifar100, tiny-imagenet, got data = 'digits'"):
        profile_values("paper", "digits", ["fedavg"])
    with pytest.raises(UserError, match="did you mean 'paper-printed'"):
        profile_values("paper-print", "cifar10", ["fedavg"])


@pytest.mark.quick
def test_the_paper_profile_s_pipeline_replaces_a_file_s_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 1's own file names two of its keys: half of each pipeline would be one that nobody chose."""
    from fedssd.experiment import profiles
    from fedssd.experiment.paper import recipe_file

    chosen = {"head": "on", "weight_decay": 1e-5, "augment": "moon-zero", "partial_batch": "drop"}
    monkeypatch.setattr(profiles, "load_chosen", lambda: Chosen(paper=chosen))
    file = recipe_file("table2-classes-2")
    recipe = load_recipe(file, {}, profile="paper")
    assert {key: getattr(recipe, key) for key in chosen} == chosen
    assert (recipe.partition, recipe.options["fedssd"]["m_max"]) == ("classes:2", 0.01)  # the rest is the file's
    printed = load_recipe(file, {}, profile="paper-printed")
    assert (printed.augment, printed.partial_batch, printed.weight_decay) == ("moon", "keep", 0.0)
    asked = load_recipe(file, {"augment": "niid"}, profile="paper")
    assert (asked.augment, asked.partial_batch) == ("niid", "drop")  # what is typed wins over both


@pytest.fixture
def chose(tmp_path: Path) -> Iterator[None]:
    """As if the study had found other strengths than the paper prints, for two methods."""
    with tuned(tmp_path, {"fedssd.m_max": 0.25, "fedcad.lam": 0.75}):
        yield


@pytest.mark.quick
def test_what_is_best_on_all_splits_comes_before_what_is_tuned_on_one_and_without_it(tmp_path: Path) -> None:
    with tuned(tmp_path, {"fedssd.m_max": 0.25, "moon.mu": 0.75}, {"fedssd.m_max": 0.125}):
        assert build_local("fedssd", {}, "cifar10").m_max == 0.125
        assert build_local("moon", {}, "cifar10").mu == 0.75
    with tuned(tmp_path, {}, {"fedssd.m_max": 0.125}):
        assert build_local("fedssd", {}, "cifar10").m_max == 0.125
    (tmp_path / "chosen.toml").write_text('[defaults.cifar10]\n"fedssd.m_max" = 0.125\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped, "FILE", tmp_path / "chosen.toml")
        shipped._strengths.cache_clear()
        assert build_local("fedssd", {}, "cifar10").m_max == 0.125
    shipped._strengths.cache_clear()


@pytest.mark.quick
@pytest.mark.usefixtures("chose")
def test_chosen_strengths_are_the_defaults_of_their_dataset_and_printed_ones_stay(study: Study) -> None:
    assert build_local("fedssd", {}, "cifar10").m_max == 0.25
    assert build_local("fedssd", {"fedssd": {"m_max": 0.5}}, "cifar10").m_max == 0.5
    assert build_local("fedssd", {}, "cifar100").m_max == 0.001
    printed = load_recipe(None, {"data": "cifar10"}, ("fedssd", "fedcad"), profile="paper-printed")
    assert (printed.options["fedssd"]["m_max"], printed.options["fedcad"]["lam"]) == (0.01, 0.1)
    bases = {trial.arm: flat(trial.recipe) for trial in study.bases("screen")}
    assert (bases["fedssd"]["fedssd.m_max"], bases["fedcad"]["fedcad.lam"]) == (0.01, 0.1)


@pytest.mark.quick
@pytest.mark.usefixtures("chose")
def test_a_tuned_strength_in_force_is_said_beside_what_it_replaces(capsys: pytest.CaptureFixture[str]) -> None:
    base = load_recipe(None, {"data": "cifar10"}, ("fedavg", "fedssd", "fedcad"))
    assert remark_on_strengths(base, ["fedavg", "fedssd", "fedcad"]) == (
        "tuned by the study for cifar10: fedssd.m_max = 0.25 (else 0.01), fedcad.lam = 0.75 (else 0.1); "
        "--profile paper-printed takes the paper's"
    )
    assert "m_max" in remark_on_strengths(base, ["fedssd+fedprox"])
    assert remark_on_strengths(base, ["fedssd"], ["fedssd.m_max"]) == ""  # a sweep over it
    assert remark_on_strengths(load_recipe(None, {"data": "cifar100"}), ["fedssd"]) == ""
    for given in ({"fedssd.m_max": 0.25}, {"fedssd.m_max": 0.5}):
        assert remark_on_strengths(load_recipe(None, {"data": "cifar10", **given}), ["fedssd"]) == ""
    printed = load_recipe(None, {"data": "cifar10"}, profile="paper-printed")
    assert remark_on_strengths(printed, ["fedssd"]) == ""
    assert main(["methods", "fedssd"]) == 0
    shown = capsys.readouterr().out
    assert "paper's values  cifar10 m_max = 0.01" in shown
    assert "tuned, in force cifar10 m_max = 0.25\n" in shown


@pytest.mark.quick
@pytest.mark.usefixtures("chose")
def test_run_and_compare_open_with_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On data that are there: as if the study had been of digits."""
    monkeypatch.setattr(shipped, "_strengths", lambda: {"digits": {"fedssd.m_max": 0.25}})
    monkeypatch.chdir(shipped.FILE.parent)
    tiny = ["--rounds", "1", "--epochs", "1", "--clients", "2", "--partition", "iid", "--auxiliary", "1"]
    remark = "tuned by the study for digits: fedssd.m_max = 0.25 (else 0.01)"
    assert main(["run", *tiny]) == 0
    assert capsys.readouterr().err.count(remark) == 1
    assert main(["compare", "--methods", "fedavg,fedssd", "--seeds", "0,1", "--workers", "1", *tiny]) == 0
    assert capsys.readouterr().err.count(remark) == 1
    assert main(["run", *tiny, "--fedssd.m-max", "0.3"]) == 0
    assert "tuned by the study" not in capsys.readouterr().err


@pytest.mark.quick
def test_on_digits_the_study_s_strength_is_the_recipe_s_and_no_default() -> None:
    """A default for FedSSD alone would set it apart from the others wherever nobody names a recipe."""
    (found,) = load_chosen().recipes.items()
    assert found == ("digits", {"fedssd.m_max": load_recipe(recipe_file("digits"), {}).options["fedssd"]["m_max"]})
    assert shipped.shipped_options("fedssd", "digits") == {}
    assert build_local("fedssd", {}, "digits").m_max == build_local("fedssd", {}).m_max


def test_what_comes_with_fedssd_follows_from_the_committed_runs() -> None:
    """Defaults per dataset are the study's choice; what was chosen before stands while a part is run anew."""
    results = Results([Path(__file__).parents[2] / "results"])
    assert load_chosen() == Study(chosen=load_chosen()).choices(results)
