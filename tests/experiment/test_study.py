"""The study: one departure at a time, choices by fixed rules on the tuning seeds, and others for what is reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedssd.cli import main
from fedssd.cli.study import chosen_trials
from fedssd.data.dataset import Dataset
from fedssd.errors import UserError
from fedssd.experiment.cells import resolved
from fedssd.experiment.federation import Brought, assemble
from fedssd.experiment.many import program
from fedssd.experiment.paper import recipe_file
from fedssd.experiment.profiles import profile_values
from fedssd.experiment.recipe import Recipe, load_recipe
from fedssd.experiment.reproduce import RECORD
from fedssd.experiment.study import chosen as chosen_file
from fedssd.experiment.study.chosen import Chosen, load_chosen
from fedssd.experiment.study.design import PARTS, REPORTING, Design, label, load_design, understood
from fedssd.experiment.study.parts import BASE, COLUMNS, Study
from fedssd.experiment.study.results import Results
from fedssd.experiment.study.trial import Trial, model_steps
from fedssd.methods import shipped
from fedssd.methods.fedssd import selective_distillation
from fedssd.methods.registry import build_local, local_kinds

TINY = ["--scale", "small", "--rounds", "1", "--set", "epochs=1", "--workers", "1", "--quiet"]
Says = Callable[[Trial, int], float | None]


class Told(Results):
    """Results that a function tells, so that rules can be followed by hand."""

    def __init__(self, says: Says) -> None:
        super().__init__([])
        self.says = says

    def accuracies(self, trial: Trial, seeds: Sequence[int], which: str = "") -> dict[int, float]:
        found = {seed: self.says(trial, seed) for seed in seeds}
        return {seed: value for seed, value in found.items() if value is not None}


def nothing(_: Trial, __: int) -> float | None:
    return None


@pytest.fixture(scope="module")
def design() -> Design:
    return load_design()


@pytest.fixture
def study(design: Design) -> Study:
    return Study(design)


def flat(recipe: Recipe) -> dict[str, Any]:
    found = asdict(resolved(recipe))
    options = found.pop("options")
    return found | {f"{method}.{name}": value for method, given in options.items() for name, value in given.items()}


@pytest.mark.quick
def test_a_departure_differs_from_its_base_in_what_its_label_says(study: Study, design: Design) -> None:
    seen = 0
    for choice in design.choices:
        for trial in study.departures("screen", choice):
            changes = next(one for one in choice.changes if label(one) == trial.label)
            ours, base = flat(trial.recipe), flat(study.base_of(trial).recipe)
            differing = {key: ours[key] for key in ours if ours[key] != base[key]}
            assert differing.items() <= dict(changes).items(), trial
            assert all(ours[key] == value for key, value in changes.items()), trial
            assert differing or trial.label == "fedssd.square=outside", trial
            seen += 1
    assert seen == sum(len(choice.changes) * len(choice.arms) for choice in design.choices)


@pytest.mark.quick
def test_every_open_choice_is_there(design: Design) -> None:
    tried: dict[str, set[Any]] = {}
    for choice in design.choices:
        for changes in choice.changes:
            for key, value in changes.items():
                tried.setdefault(key, set()).add(value)
    base = flat(load_recipe(recipe_file(design.base), {"method": "fedssd"}))
    expected: dict[str, set[Any]] = {
        "head": {"off", "on"},
        "weight_decay": {0.0, 1e-5, 5e-4},
        "augment": {"moon", "moon-zero"},
        "partial_batch": {"keep", "drop"},
        "partition": {"dirichlet:0.5", "dirichlet-plain:0.5"},
        "auxiliary_mode": {"heldout", "shared"},
        "auxiliary": {8, 64, 256},
        "fedssd.square": {"inside", "outside"},
        "fedssd.reduction": {"sum", "mean"},
        "fedssd.normaliser": {"batch", "half", "dataset"},
        "fedssd.m_max": {0.001, 0.01, 0.03, 0.1, 0.5, 1.0, 3.0},
        "fedssd.floor": {0.0, 0.1},
    }
    for key, values in expected.items():
        assert tried[key] | {base[key]} == values, key
    assert {"partition_seed", "lr_decay", "fedcad.lam", "fedcad.temperature", "kl.temperature"} <= tried.keys()
    both = {"fedavg", "fedssd-0.5"}
    for choice in design.choices:
        about_training = not any("." in key for changes in choice.changes for key in changes)
        assert not about_training or both <= set(choice.arms), choice.name


@pytest.mark.quick
def test_the_screen_runs_in_as_few_programs_as_its_words_allow(study: Study) -> None:
    """FedAvg: base, head, padding, dropped batch. FedSSD: these, outside, mean, half, dataset. FedCAD and KL: one."""
    cells = study.cells(study.trials("screen", Told(nothing)))
    programs: dict[str, list[str]] = {}
    for cell in cells:
        programs.setdefault(program(cell.recipe), []).append(cell.recipe.method)
    methods = [set(found) for found in programs.values()]
    assert all(len(found) == 1 for found in methods)
    counts = {name: sum(found == {name} for found in methods) for name in ("fedavg", "fedssd", "fedcad", "kl")}
    assert counts == {"fedavg": 4, "fedssd": 8, "fedcad": 1, "kl": 1}


@pytest.mark.quick
def test_every_grid_is_as_large_and_holds_the_value_the_method_comes_with(design: Design) -> None:
    assert {len(values) for values in design.grids.values()} == {5}
    assert {len(one.values) for one in design.compositions} == {3}
    for key, values in design.grids.items():
        method, _, option = key.partition(".")
        (kind,) = local_kinds(method)
        assert kind.strength == option
        assert kind.published.get("cifar10", {}).get(option, getattr(kind(), option)) in values, key


@pytest.mark.quick
def test_a_design_that_breaks_its_own_rules_is_refused() -> None:
    import tomllib

    content = tomllib.loads(recipe_file("study/design").read_text(encoding="utf-8"))
    with pytest.raises(UserError, match="seeds it chooses on"):
        understood({**content, "seeds": {"tuning": [0, 1], "reporting": [1, 2]}})
    with pytest.raises(UserError, match="seeds it chooses on"):
        understood({**content, "confirm": {**content["confirm"], "more_seeds": [2]}})
    with pytest.raises(UserError, match="grid of the same size"):
        understood({**content, "grids": {**content["grids"], "fedssd.m_max": [0.1]}})
    with pytest.raises(UserError, match="grid of the same size"):
        understood(
            {
                **content,
                "composition": [
                    *content["composition"],
                    {**content["composition"][0], "name": "x", "grid": {"lr_decay": [0.9]}},
                ],
            }
        )
    with pytest.raises(UserError, match="does not have: nobody"):
        understood({**content, "choice": [{**content["choice"][0], "arms": ["nobody"]}]})


def test_runs_name_themselves_as_their_cells_are_named(study: Study) -> None:
    """One of every program of every part, on noise: or finished cells would not be known again."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, 255, (2000, 3, 32, 32), dtype=torch.uint8, generator=draw), torch.arange(2000) % 10
    noise = Brought(dataset=Dataset("cifar10", x, y, x[:10], y[:10], tuple("abcdefghij")))
    strengths = {key: values[2] for key, values in study.design.grids.items()}
    given = Chosen(study.candidates()[0], ("head=on",), {"cifar10": strengths}, {"fedssd+scaffold-decay": 0.98})
    study = replace(study, chosen=given)
    cells = [cell for part in PARTS for cell in study.cells(study.trials(part, Told(nothing)))]
    for cell in {program(replace(cell.recipe, rounds=1)): cell for cell in cells}.values():
        assert assemble(cell.recipe, noise).recipe == cell.recipe, cell.name


# ── the protocol ──


@pytest.mark.quick
@pytest.mark.parametrize("part", PARTS)
def test_parts_choose_or_report_and_never_on_the_same_seeds(study: Study, design: Design, part: str) -> None:
    own, other = design.tuning, design.reporting
    if part in REPORTING:
        own, other = other, own
    assert study.seeds_of(part) == own
    assert study.with_seeds(part, own[:1]).seeds_of(part) == own[:1]
    for wrong in (other, (own[0], other[0])):
        with pytest.raises(UserError, match=f"part '{part}' (reports|chooses)"):
            study.with_seeds(part, wrong)


@pytest.mark.quick
def test_no_study_can_be_made_that_reports_what_it_chose_on(design: Design) -> None:
    with pytest.raises(UserError, match="reports, and choices are made on seeds 0, 1, 2"):
        Study(design, reporting=(2, 3))
    with pytest.raises(UserError, match="seeds 0, 1, 2 alone: got 3"):
        Study(design, tuning=(0, 3))
    both = Study(design).with_seeds("all", (1, 7, 0, 4))
    assert (both.seeds_of("tune"), both.seeds_of("report")) == ((1, 0), (7, 4))


@pytest.mark.quick
def test_survivors_change_an_arm_by_a_point(study: Study) -> None:
    """Base 60 everywhere. Weight decay: −3 and +1 on one arm, so the first changes most and the second ends best."""
    effects = {
        ("weight_decay=1e-05", "fedavg"): -3.0,
        ("weight_decay=0.0005", "fedssd-0.5"): 1.0,
        ("head=on", "fedavg"): 0.99,
        ("lr_decay=0.98", "fedssd-0.5"): -1.0,
    }

    def says(trial: Trial, _: int) -> float:
        return 60.0 + effects.get((trial.label, trial.arm), 0.0)

    assert study.survivors(Told(says)) == ("weight_decay=1e-05", "weight_decay=0.0005", "lr_decay=0.98")
    trials = study.trials("confirm", Told(says))
    assert {trial.label for trial in trials} == {BASE, "weight_decay=1e-05", "weight_decay=0.0005", "lr_decay=0.98"}
    assert {trial.recipe.rounds for trial in trials} == {100}
    seeds = {trial.arm: study.seeds_for(trial) for trial in trials if trial.label == BASE}
    more = dict.fromkeys(("fedavg", "fedssd", "fedssd-0.5"), (3, 4, 5, 6, 7, 8, 9))  # whether it leads
    assert seeds == {"fedcad": (3, 4, 5), "kl": (3, 4, 5)} | more
    assert {study.seeds_for(trial) for trial in trials if trial.label != BASE} == {(3, 4, 5)}
    asked = study.with_seeds("confirm", (4,))
    assert {cell.recipe.seed for cell in asked.cells(trials)} == {4}


@pytest.mark.quick
def test_nothing_follows_from_a_part_that_is_not_finished(study: Study) -> None:
    def says(trial: Trial, seed: int) -> float | None:
        return None if (trial.label, seed) == ("lr_decay=0.98", 2) else 60.0

    assert study.survivors(Told(says)) is None
    with pytest.raises(UserError, match="follows from part 'screen', of which 0 of 147 cells are finished"):
        study.trials("confirm", Told(says))
    with pytest.raises(UserError, match="follows from part 'profile'"):
        study.trials("report", Told(nothing))
    with pytest.raises(UserError, match="did you mean 'screen'"):
        study.trials("scren", Told(nothing))


def off_by(points: dict[str, float], elsewhere: dict[str, float]) -> Says:
    """FedAvg that is so many points from the published one with each pipeline, at home and on the other columns."""
    published = {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}

    def says(trial: Trial, seed: int) -> float:
        table = points if trial.group == "table1-cifar10" else elsewhere
        return published[trial.group] + table.get(trial.label, 9.0) + (seed - 1)  # seeds 0, 1, 2 average out

    return says


def test_the_profile_is_the_pipeline_closest_to_the_published_fedavg(study: Study) -> None:
    names = [label(one) for one in study.candidates()]
    assert len(set(names)) == 7
    home = {names[0]: 0.4, names[3]: -0.2, names[5]: 0.3, names[6]: 0.5}
    away = {names[0]: 0.0, names[3]: -1.0, names[5]: 0.5, names[6]: 0.0}
    results = Told(off_by(home, away))
    assert [label(one) for one in study.shortlist(results)] == [names[place] for place in (3, 5)]
    trials = study.trials("profile", results)
    assert len(trials) == 7 + 2 * 4
    assert {trial.recipe.method for trial in trials} == {"fedavg"}
    chosen = study.paper(results)
    assert chosen is not None
    assert label(chosen) == names[5]  # the first would be closer, and was not among the two
    expected = ((4 * 0.5**2 + 0.3**2) / 5) ** 0.5
    assert study.distance(chosen, COLUMNS, results) == pytest.approx(expected)


def test_strengths_are_those_that_were_best_on_the_tuning_seeds(study: Study, design: Design) -> None:
    """On the reported seeds others are better, which nobody may know."""
    best = {"fedprox.mu": 0.1, "moon.mu": 10.0, "fedssd.m_max": 0.5}
    profile = off_by({label(study.candidates()[3]): 0.0}, {})

    def says(trial: Trial, seed: int) -> float:
        if trial.part == "profile":
            return profile(trial, seed)
        hidden = seed not in design.tuning
        wanted = {f"{key}={value}" for key, value in best.items()}
        return 70.0 + (5.0 if hidden != (trial.label in wanted) else 0.0)

    found = study.strengths(Told(says))
    assert found is not None
    assert {key: found[key] for key in best} == best
    assert found["fedntd.beta"] == design.grids["fedntd.beta"][0]  # all the same: the first
    reported = study.trials("report", Told(says))
    assert len(reported) == 5 * 7
    (ssd,) = [t for t in reported if t.arm == "fedssd" and t.group == "table2-classes-2"]
    expected = {**study.candidates()[3], "partition": "classes:2", "fedssd.m_max": 0.5, "rounds": 100}
    ours = flat(ssd.recipe)
    assert {key: ours[key] for key in expected if key != "head"} == {k: v for k, v in expected.items() if k != "head"}


def test_the_best_with_fedssd_and_the_best_without_are_reported(study: Study) -> None:
    profile = off_by({label(study.candidates()[0]): 0.0}, {})
    ends = {"fedssd+fedprox-decay": 74.0, "scaffold-decay": 73.0, "fedavg-decay": 72.0}

    def says(trial: Trial, seed: int) -> float:
        if trial.part == "profile":
            return profile(trial, seed)
        third = trial.label.endswith("=0.98")
        return ends.get(trial.group, 60.0) + (0.5 if third else 0.0) if trial.part == "compose" else 70.0

    assert study.compositions(Told(says)) == {"fedssd+fedprox-decay": 0.98, "scaffold-decay": 0.98}
    first, second = study.trials("best", Told(says))
    assert (first.recipe.method, first.recipe.lr_decay) == ("fedssd+fedprox", 0.98)
    assert first.recipe.options["fedprox"]["mu"] == 0.0001  # tuned: all were the same, so the first
    assert (second.recipe.method, second.recipe.lr_decay) == ("scaffold", 0.98)


@pytest.mark.quick
def test_what_comes_with_fedssd_stands_where_there_are_no_results(design: Design) -> None:
    paper = {"head": "on", "weight_decay": 1e-5, "augment": "moon-zero", "partial_batch": "drop"}
    strengths = {key: values[2] for key, values in design.grids.items()}
    given = Chosen(paper, ("head=on",), {"cifar10": strengths}, {"fedssd-decay": 0.98})
    study = Study(design, chosen=given)
    results = Told(nothing)
    assert study.choices(results) == given
    assert {t.label for t in study.trials("confirm", results)} == {BASE, "head=on"}
    recipe = study.trials("report", results)[-1].recipe
    assert (recipe.method, recipe.head, recipe.augment, recipe.partial_batch) == ("fedssd", "on", "moon-zero", "drop")
    assert recipe.options["fedssd"]["m_max"] == design.grids["fedssd.m_max"][2]
    assert chosen_file.understood(given.to_toml()) == given
    assert chosen_file.understood(Chosen().to_toml()) == Chosen()


# ── results on disk ──


def leave(folder: Path, trial: Trial, seed: int, curve: Sequence[float], rounds: int = 0) -> None:
    """A finished run on disk: a header, and a line for each round; the curve's last value stays to the end."""
    folder.mkdir(parents=True)
    recipe = replace(trial.cell(seed).recipe, rounds=rounds or trial.recipe.rounds)
    values = [*curve, *[curve[-1]] * (recipe.rounds - len(curve))]
    lines = [{}, *({"round": number, "global": {"acc": value}} for number, value in enumerate(values, 1))]
    (folder / "recipe.toml").write_text(recipe.to_toml())
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = {"rounds": recipe.rounds, "of_rounds": recipe.rounds, "final": {"acc": values[-1]}}
    (folder / "summary.json").write_text(json.dumps(summary))


@pytest.mark.quick
def test_runs_are_found_by_what_they_are_wherever_they_lie(study: Study, tmp_path: Path) -> None:
    trial = study.bases("screen")[1]
    leave(tmp_path / "a" / "b", trial, 0, [0.1, 0.6, 0.5])
    leave(tmp_path / "c", trial, 2, [0.9, 0.7])
    results = Results([tmp_path])
    assert results.accuracies(trial, (0, 1, 2)) == pytest.approx({0: 50.0, 2: 70.0})
    assert results.accuracies(trial, (0, 1, 2), "best") == pytest.approx({0: 60.0, 2: 90.0})
    assert results.mean(trial, (0, 2)) == pytest.approx(60.0)
    assert results.mean(trial, (0, 1, 2)) is None
    other = replace(trial, recipe=replace(trial.recipe, rounds=21))
    assert results.accuracies(other, (0, 2)) == {}


@pytest.mark.quick
def test_the_first_rounds_of_a_longer_run_are_the_shorter_run(study: Study, tmp_path: Path) -> None:
    """Accuracies of 1, 2, … 40 %: the screen's 20 rounds end at 20, and its last five are 18 in the mean."""
    trial, (found, *_) = study.bases("screen")[0], study.bases("confirm")
    leave(tmp_path / "long", trial, 0, [number / 100 for number in range(1, 41)], rounds=40)
    leave(tmp_path / "longer", trial, 0, [0.99], rounds=60)
    results = Results([tmp_path])
    for which, expected in {"last": 20.0, "best": 20.0, "late": 18.0, "": 18.0}.items():
        assert results.accuracies(trial, (0, 1), which) == pytest.approx({0: expected}), which
    assert results.found([trial.cell(0), trial.cell(1)]) == {trial.cell(0).key: tmp_path / "long"}
    assert results.find(found.cell(0)) is None  # 100 rounds are more than any has
    sparse = replace(trial, recipe=replace(trial.recipe, evaluate_every=2))
    leave(tmp_path / "sparse", sparse, 0, [0.5], rounds=41)
    assert Results([tmp_path]).find(sparse.cell(0)) is None  # whose last round may not be evaluated there


@pytest.mark.quick
def test_model_steps_are_those_of_the_paper_s_run() -> None:
    """10 clients × 10 epochs × 79 batches × 100 rounds of 5,000 samples each, none held out."""
    recipe = load_recipe(recipe_file("table1-cifar10"), {"auxiliary": 0, "partition": "iid"})
    assert model_steps(recipe) == pytest.approx(10 * 10 * 79 * 100, rel=0.01)
    assert model_steps(replace(recipe, partial_batch="drop")) == pytest.approx(10 * 10 * 78 * 100, rel=0.01)
    assert model_steps(replace(recipe, participation=0.1, clients=100)) < model_steps(recipe) / 5


# ── what the page claims of the loss ──


@pytest.mark.quick
@pytest.mark.parametrize(("key", "value", "shrink"), [("reduction", "mean", 10**0.5), ("normaliser", "half", 2**0.5)])
def test_two_of_the_choices_are_another_strength(key: str, value: str, shrink: float) -> None:
    """Inside the square a mean over ten classes, and a half, are what M_max / √10 and M_max / √2 are."""
    from fedssd.core.contract import Batch
    from fedssd.core.net import Outputs

    draw = torch.Generator().manual_seed(3)
    logits, teacher = torch.randn(2, 6, 10, dtype=torch.float64, generator=draw)
    weight = torch.rand(6, 10, dtype=torch.float64, generator=draw)
    one = torch.ones(6, dtype=torch.float64)
    batch = Batch(logits, torch.arange(6), one, one.sum())
    target = {"logits": teacher, "weight": weight}

    def penalty(**options: Any) -> torch.Tensor:
        local = build_local("fedssd", {"fedssd": options})
        return local.penalty(Outputs(logits, logits), batch, target, {}, {}, {})

    torch.testing.assert_close(penalty(m_max=0.3, **{key: value}), penalty(m_max=0.3 / shrink))
    assert selective_distillation(logits, logits, torch.arange(6), torch.eye(10, dtype=torch.float64)).abs().max() == 0


# ── profiles and what comes with fedssd ──


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
        profile_values("paper", "cifar10", ["fedavg"])
    monkeypatch.setattr(profiles, "load_chosen", lambda: Chosen(paper={"weight_decay": 1e-5, "head": "on"}))
    recipe = load_recipe(None, {"data": "cifar10"}, profile="paper")
    assert (recipe.weight_decay, recipe.head, recipe.rounds, recipe.options["fedssd"]["m_max"]) == (
        1e-5,
        "on",
        100,
        0.01,
    )
    with pytest.raises(UserError, match="found for cifar10 alone"):
        profile_values("paper", "cifar100", ["fedavg"])
    with pytest.raises(UserError, match=r"has values for cifar10, cifar100, tiny-imagenet, got data = 'digits'"):
        profile_values("paper", "digits", ["fedavg"])
    with pytest.raises(UserError, match="did you mean 'paper-printed'"):
        profile_values("paper-print", "cifar10", ["fedavg"])


@pytest.fixture
def chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the study had found other strengths than the paper prints, for two methods."""
    strengths = {"fedssd.m_max": 0.25, "fedcad.lam": 0.75}
    (tmp_path / "chosen.toml").write_text(Chosen(strengths={"cifar10": strengths}).to_toml())
    monkeypatch.setattr(shipped, "FILE", tmp_path / "chosen.toml")
    shipped._strengths.cache_clear()
    yield
    monkeypatch.undo()
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


def test_what_comes_with_fedssd_follows_from_the_committed_runs() -> None:
    """Defaults per dataset are the study's choice, and the printed ones as long as it has not been run."""
    results = Results([Path(__file__).parents[2] / "results"])
    assert load_chosen() == Study().choices(results)


# ── the command ──


@pytest.mark.quick
def test_only_keeps_what_is_named_and_its_bases(study: Study) -> None:
    trials = study.trials("screen", Told(nothing))
    kept = chosen_trials(trials, "floor")
    assert [(t.group, t.arm) for t in kept] == [
        (BASE, "fedssd-0.5"),
        ("floor", "fedssd-0.5"),
    ]
    assert {t.label for t in chosen_trials(trials, "weight_decay=1e-05")} == {BASE, "weight_decay=1e-05"}
    assert chosen_trials(trials, None) == trials


def test_a_part_runs_once_and_leaves_records_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "study", *TINY, "--part", "screen", "--only", "floor", "--seeds", "1"]
    out = tmp_path / "out"
    for expected in (2, 0):
        assert main([*command, "--out", str(out), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["ran"] == expected
    runs = sorted(path.parent for path in out.rglob("summary.json"))
    assert {str(run.relative_to(out)) for run in runs} == {
        f"screen/{group}/fedssd-0.5/fedssd-1" for group in (BASE, "floor/fedssd.floor=0.0")
    }
    assert {path.name for run in runs for path in run.iterdir()} == set(RECORD)
    page = (out / "study.md").read_text()
    assert page.startswith("On digits, in the place of CIFAR-10")
    rows = [line for line in page.splitlines() if line.startswith("| `fedssd.floor=0.0` | fedssd-0.5 | 1 |")]
    assert len(rows) == 1
    assert rows[0].endswith("| one seed says nothing |")
    assert "| `head=on` | fedavg | 1 | not run yet | not run yet | – | not run yet |" in page
    assert (out / "images" / "study-mechanism.svg").is_file()
    assert main([*command, "--out", str(out), "--plan"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["screen", "2", "2", "0", "0", "0.0"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--part", "report", "--seeds", "0"], "part 'report' reports, and choices are made on seeds 0, 1, 2"),
        (["--part", "screen", "--seeds", "3"], "part 'screen' chooses"),
        (["--part", "scren"], "did you mean 'screen'"),
        (["--part", "tune"], "follows from part 'profile'"),
        (["--part", "screen", "--only", "hed"], "--only expects one of base, head"),
        (["--dataset", "cifar10"], "--dataset is for the paper's tables"),
        (["--seeds", "x"], "whole numbers"),
    ],
)
@pytest.mark.quick
def test_mistakes_are_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "study", *TINY, *words, "--out", str(tmp_path / "out")]) == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.quick
def test_flags_of_the_study_are_refused_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table1", "--plan"]) == 2
    assert "--plan is for the study" in capsys.readouterr().err
