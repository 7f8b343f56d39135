"""The study's design: one departure at a time, and seeds that choose or report, never both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedssd.data.dataset import Dataset
from fedssd.errors import UserError
from fedssd.methods.fedssd import selective_distillation
from fedssd.methods.registry import build_local, local_kinds
from fedssd.recipe import PAPER_METHODS, load_recipe
from fedssd.simulation.setup import Brought, assemble
from fedssd.sweeps.grid import program
from studies.paper.cell import missing
from studies.paper.paper import recipe_file
from studies.paper.study.chosen import Chosen
from studies.paper.study.design import FILE, PARTS, REPORTING, Design, label, understood
from studies.paper.study.parts import Study
from studies.paper.study.trials import BASE
from studies.paper.tests.told import Told, flat, nothing


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
    tuned = (*design.grids, *design.variants)
    assert {len(one.values) for one in tuned} == {5}
    assert {len(one.values) for one in design.compositions} == {3}
    assert [one.name for one in design.grids] == [*PAPER_METHODS[1:]]
    for one in tuned:
        (kind,) = local_kinds(one.method)
        assert one.key == f"{one.method}.{kind.strength}"
        comes_with = getattr(kind(), kind.strength)
        assert kind.published.get("cifar10", {}).get(kind.strength, comes_with) in one.values, one.name


@pytest.mark.quick
def test_the_arm_outside_the_square_is_a_run_of_the_screen_by_another_name(study: Study, design: Design) -> None:
    (square,) = [choice for choice in design.choices if choice.name == "square"]
    (base,) = [trial for trial in study.bases("screen") if trial.arm == "fedssd-outside"]
    wanted = "fedssd.square=outside,fedssd.m_max=0.1"
    (tried,) = [trial for trial in study.departures("screen", square) if trial.label == wanted]
    assert base.cell(1).key == tried.cell(1).key
    cells = study.cells(study.trials("screen", Told(nothing)))
    assert [cell.column for cell in missing(cells, {}) if cell.key == base.cell(1).key] == [base.cell(1).column]


@pytest.mark.quick
def test_what_the_study_sets_itself_cannot_be_set_in_all_of_it(design: Design) -> None:
    of_each = {  # an arm, a choice, the profile, a grid, a variant, a composition
        "options.fedssd.m_max",
        "weight_decay",
        "head",
        "options.moon.mu",
        "options.fedssd.square",
        "options.mse.alpha",
        "lr_decay",
        "server",
    }
    for key in of_each:
        with pytest.raises(UserError, match=f"the study itself sets {key.removeprefix('options.')} in some"):
            Study(design, changes={key: "1"})
    assert Study(design, changes={"epochs": "3", "batch": "32"}).rounds_of("screen") == 20
    with pytest.raises(UserError, match="rounds expects a whole number of at least 1"):
        Study(design, changes={"rounds": "0"})


@pytest.mark.quick
def test_a_design_that_breaks_its_own_rules_is_refused() -> None:
    import tomllib

    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    with pytest.raises(UserError, match="seeds it chooses on"):
        understood({**content, "seeds": {"tuning": [0, 1], "reporting": [1, 2], "more": []}})
    with pytest.raises(UserError, match="seeds it chooses on"):
        understood({**content, "seeds": {**content["seeds"], "more": [2]}})
    with pytest.raises(UserError, match="grid of the same size"):
        understood({**content, "grids": {**content["grids"], "fedssd.m_max": [0.1]}})
    mse = {**content["variants"]["mse"], "grid": {"mse.alpha": [0.1]}}
    with pytest.raises(UserError, match="grid of the same size"):
        understood({**content, "variants": {**content["variants"], "mse": mse}})
    with pytest.raises(UserError, match="a variant that it does not have: fedssd-outside"):
        understood({**content, "variants": {"mse": content["variants"]["mse"]}})
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
    with pytest.raises(UserError, match="methods that it does not report: fedssd-colums"):
        understood({**content, "report": {**content["report"], "more_arms": ["fedavg", "fedssd-colums"]}})
    with pytest.raises(UserError, match=r"reports strengths on digits that it does not try there: \[7.0\]"):
        understood({**content, "digits": {**content["digits"], "m_max": [0.1, 7.0]}})
    with pytest.raises(UserError, match=r"another strength on the columns of digits than fedssd\.m_max"):
        understood({**content, "digits-columns": {**content["digits-columns"], "grid": {"fedprox.mu": [0.1]}}})
    with pytest.raises(UserError, match="seeds it chooses on"):
        understood({**content, "digits-columns": {**content["digits-columns"], "seeds": [100, 8]}})
    with pytest.raises(UserError, match="does not have: nobody"):
        understood({**content, "choice": [{**content["choice"][0], "arms": ["nobody"]}]})
    composition = {**content["composition"][0], "method": "scaffold", "variant": "fedssd-outside"}
    with pytest.raises(UserError, match="composes scaffold, which variant fedssd-outside is none of"):
        understood({**content, "composition": [composition]})
    left = [one for one in content["composition"] if one["name"] != "scaffold-decay"]
    with pytest.raises(UserError, match=r"composes fedssd\+scaffold-decay and not the same without FedSSD: scaffold"):
        understood({**content, "composition": left})
    with pytest.raises(UserError, match="a pipeline that is none of the profile's: head=off"):
        understood({**content, "report": {**content["report"], "also": [{"head": "off"}]}})
    with pytest.raises(UserError, match="composes nothing with FedSSD"):
        understood({**content, "composition": content["composition"][:3]})


@pytest.mark.quick
def test_a_composition_less_fedssd_is_another(design: Design) -> None:
    found = {one.name: design.without_fedssd(one.name).name for one in design.compositions if not one.is_control}
    assert found == {
        "fedssd-decay": "fedavg-decay",
        "fedssd+scaffold-decay": "scaffold-decay",
        "fedssd-outside+scaffold-decay": "scaffold-decay",
    }


def test_runs_name_themselves_as_their_cells_are_named(study: Study) -> None:
    """One of every program of every part, on noise: or finished cells would not be known again."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, 255, (2000, 3, 32, 32), dtype=torch.uint8, generator=draw), torch.arange(2000) % 10
    noise = Brought(dataset=Dataset("cifar10", x, y, x[:10], y[:10], tuple("abcdefghij")))
    strengths = {one.key: one.values[2] for one in study.design.grids}
    variants = {one.name: one.values[2] for one in study.design.variants}
    best = {"fedssd+scaffold-decay": 0.98, "scaffold-decay": 0.99}
    given = Chosen(study.candidates()[0], ("head=on",), {"cifar10": strengths}, best, variants)
    study = replace(study, chosen=given)
    cells = [cell for part in PARTS for cell in study.cells(study.trials(part, Told(nothing)))]
    for cell in {program(replace(cell.recipe, rounds=1)): cell for cell in cells}.values():
        assert assemble(cell.recipe, noise).recipe == cell.recipe, cell.name


@pytest.mark.quick
@pytest.mark.parametrize("part", PARTS)
def test_parts_choose_or_report_and_never_on_the_same_seeds(study: Study, design: Design, part: str) -> None:
    own, other = design.digits.tuning if part == "digits-columns" else design.tuning, design.reporting
    if part in REPORTING:
        own, other = other, own
    assert study.seeds_of(part) == own
    assert study.with_seeds(part, own[:1]).seeds_of(part) == own[:1]
    with pytest.raises(UserError, match=f"part '{part}' (reports|chooses)"):
        study.with_seeds(part, other)
    kinds = (design.tuning[:1], design.digits.tuning[:1], design.reporting[:1])
    every = study.with_seeds(part, tuple(seed for kind in kinds for seed in kind))  # what it follows from has its own
    assert every.seeds_of(part) == own[:1]
    assert {every.seeds_of(one) for one in PARTS} == set(kinds)


@pytest.mark.quick
def test_no_study_can_be_made_that_reports_what_it_chose_on(design: Design) -> None:
    with pytest.raises(UserError, match="reports, and choices are made on seeds 0, 1, 2"):
        Study(design, reporting=(2, 3))
    with pytest.raises(UserError, match="seeds 0, 1, 2 alone: got 3"):
        Study(design, tuning=(0, 3))
    both = Study(design).with_seeds("all", (1, 7, 0, 4))
    assert (both.seeds_of("tune"), both.seeds_of("report")) == ((1, 0), (7, 4))
    assert both.parts() == tuple(part for part in PARTS if part != "digits-columns")  # of which none is named
    assert Study(design).with_seeds("all", (0, 100, 3)).parts() == PARTS == Study(design).parts()
    assert Study(design).with_seeds("all", (0,)).parts() == ("screen", "profile", "tune", "columns", "compose")
    assert Study(design).with_seeds("all", (101,)).parts() == ("digits-columns",)
    with pytest.raises(UserError, match="part 'digits-columns' chooses, which is done on seeds 100, 101, 102 alone"):
        Study(design).with_seeds("digits-columns", (0,))
    assert Study(design).with_seeds("all", (3,)).parts() == REPORTING
    assert both.parts("best") == ("best",)


@pytest.mark.quick
def test_a_part_s_names_are_known_before_what_it_follows_from_is_run(study: Study, design: Design) -> None:
    arms = {part: {trial.arm for trial in study.possible(part)} for part in PARTS}
    methods = {*PAPER_METHODS, *(one.name for one in design.variants)}
    assert arms["report"] == {*methods, design.columns.name}
    assert arms["tune"] == methods - {"fedavg"}
    assert arms["columns"] == arms["digits-columns"] == arms["digits"] == {"fedavg", "fedssd"}
    assert arms["compose"] == arms["best"] == {one.name for one in design.compositions}
    assert {trial.group for trial in study.possible("confirm")} == {BASE, *(one.name for one in design.choices)}


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
