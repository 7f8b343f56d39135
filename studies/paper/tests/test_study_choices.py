"""What follows from a study's results: choices by fixed rules, on the tuning seeds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedssd.errors import UserError
from fedssd.recipe import load_recipe
from studies.paper.paper import SMALL_ROUNDS, recipe_file
from studies.paper.report.study import Page
from studies.paper.study import chosen as chosen_file
from studies.paper.study.chosen import Chosen
from studies.paper.study.design import Design, label
from studies.paper.study.parts import Study
from studies.paper.study.trial import Trial
from studies.paper.study.trials import BASE, COLUMNS
from studies.paper.tests.told import Says, Told, flat, nothing


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
    more = dict.fromkeys(
        ("fedavg", "fedssd", "fedssd-0.5", "fedssd-outside"), (3, 4, 5, 6, 7, 8, 9)
    )  # whether it leads
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
    trials = study.trials("profile", results)
    assert len(trials) == 7 * 5
    assert {trial.recipe.method for trial in trials} == {"fedavg"}
    chosen = study.paper(results)
    assert chosen is not None
    assert label(chosen) == names[0]  # the third is closer on its first column, and nowhere else
    expected = (0.4**2 / 5) ** 0.5
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
    assert found["fedntd.beta"] == 0.03  # all the same: the first
    reported = study.trials("report", Told(says))
    assert len(reported) == 5 * (7 + 2)  # the paper's, and two variants
    (ssd,) = [t for t in reported if t.arm == "fedssd" and t.group == "table2-classes-2"]
    expected = {**study.candidates()[3], "partition": "classes:2", "fedssd.m_max": 0.5, "rounds": 100}
    ours = flat(ssd.recipe)
    assert {key: ours[key] for key in expected if key != "head"} == {k: v for k, v in expected.items() if k != "head"}


def test_variants_are_tuned_like_methods_and_become_no_default(study: Study) -> None:
    best = {"fedssd.m_max=0.5", "fedssd.square=outside,fedssd.m_max=0.3", "mse.alpha=0.03"}
    profile = off_by({label(study.candidates()[0]): 0.0}, {})

    def says(trial: Trial, seed: int) -> float:
        return profile(trial, seed) if trial.part == "profile" else 70.0 + (trial.label in best)

    results = Told(says)
    assert study.variants(results) == {"fedssd-outside": 0.3, "mse": 0.03}
    chosen = study.choices(results)
    assert chosen.variants == {"fedssd-outside": 0.3, "mse": 0.03}
    assert chosen.strengths["cifar10"]["fedssd.m_max"] == 0.5
    assert not any(key.startswith("mse") for key in chosen.strengths["cifar10"])
    reported = {trial.arm: flat(trial.recipe) for trial in study.trials("report", results)}
    assert (reported["fedssd-outside"]["fedssd.square"], reported["fedssd-outside"]["fedssd.m_max"]) == ("outside", 0.3)
    assert (reported["fedssd"]["fedssd.square"], reported["fedssd"]["fedssd.m_max"]) == ("inside", 0.5)
    assert reported["mse"]["mse.alpha"] == 0.03
    composed = {trial.arm: flat(trial.recipe) for trial in study.trials("compose", results)}
    assert composed["fedssd-outside+scaffold-decay"]["fedssd.m_max"] == 0.3
    assert composed["fedssd-outside+scaffold-decay"]["fedssd.square"] == "outside"
    assert composed["fedssd-decay"]["fedssd.m_max"] == 0.5
    assert {(one["weight_decay"], one["head"]) for one in composed.values()} == {(5e-4, "on")}

    def unfinished(trial: Trial, seed: int) -> float | None:
        return None if (trial.label, seed) == ("mse.alpha=0.3", 2) else says(trial, seed)

    with pytest.raises(UserError, match="follows from part 'tune'"):
        study.trials("report", Told(unfinished))
    assert study.strengths(Told(unfinished)) == chosen.strengths["cifar10"]  # which follow from the methods alone


def composed(study: Study, ends: dict[str, float]) -> Says:
    """Compositions that end there, half a point higher at 0.98; SCAFFOLD alone is best at 0.99."""
    profile = off_by({label(study.candidates()[0]): 0.0}, {})

    def says(trial: Trial, seed: int) -> float:
        if trial.part == "profile":
            return profile(trial, seed)
        best = "=0.99" if trial.group == "scaffold-decay" else "=0.98"
        return ends.get(trial.group, 60.0) + (0.5 if trial.label.endswith(best) else 0.0)

    return says


def test_the_best_with_fedssd_the_same_without_it_and_the_best_without_are_reported(study: Study) -> None:
    """MOON is the best without FedSSD, and no control of SCAFFOLD with it: that is SCAFFOLD, at its own best rate."""
    results = Told(composed(study, {"fedssd+scaffold-decay": 74.0, "moon-decay": 73.0, "scaffold-decay": 71.0}))
    found = study.compositions(results)
    assert list(found.items()) == [("fedssd+scaffold-decay", 0.98), ("moon-decay", 0.98), ("scaffold-decay", 0.99)]
    trials = study.trials("best", results)
    assert [(trial.recipe.method, trial.recipe.lr_decay) for trial in trials] == [
        ("fedssd+scaffold", 0.98),
        ("moon", 0.98),
        ("scaffold", 0.99),
    ]
    assert trials[0].recipe.options["fedssd"]["m_max"] == 0.01  # tuned: all were the same, so the first


def test_a_control_that_is_the_best_without_fedssd_is_reported_once(study: Study) -> None:
    ends = {"fedavg-decay": 75.0, "fedssd-decay": 74.0, "scaffold-decay": 73.0}
    assert study.compositions(Told(composed(study, ends))) == {"fedavg-decay": 0.98, "fedssd-decay": 0.98}


def chosen(design: Design) -> Chosen:
    """All that can be chosen of the design; MOON's own pipeline."""
    strengths = {one.key: one.values[2] for one in design.grids}
    variants = {one.name: one.values[2] for one in design.variants}
    best = {"fedssd-decay": 0.98, "fedavg-decay": 0.97}
    recipes = {"digits": {"fedssd.m_max": 0.3}}
    return Chosen(design.candidates[6], ("head=on",), {"cifar10": strengths}, best, variants, recipes=recipes)


@pytest.mark.quick
def test_what_comes_with_fedssd_stands_where_there_are_no_results(design: Design) -> None:
    given = chosen(design)
    study, strengths = Study(design, chosen=given), given.strengths["cifar10"]
    results = Told(nothing)
    assert study.choices(results) == given
    assert {t.label for t in study.trials("confirm", results)} == {BASE, "head=on"}
    recipe = study.trials("report", results)[6].recipe
    assert (recipe.method, recipe.head, recipe.augment, recipe.partial_batch) == ("fedssd", "on", "moon", "drop")
    assert recipe.options["fedssd"]["m_max"] == strengths["fedssd.m_max"]
    assert chosen_file.understood(given.to_toml()) == given
    assert chosen_file.understood(Chosen().to_toml()) == Chosen()


def test_strengths_are_tuned_with_the_pipeline_they_are_reported_with(design: Design) -> None:
    """Seven pipelines; FedSSD is best at 0.5 with the first, which is the closest, and at 3 with MOON's own."""
    study = Study(design, chosen=chosen(design))
    closest, other = (label(one) for one in (design.candidates[0], design.candidates[6]))
    profile = off_by({closest: 0.0}, {closest: 0.0})

    def says(trial: Trial, seed: int) -> float | None:
        if trial.part == "profile":
            return profile(trial, seed)
        best = {closest: "fedssd.m_max=0.5", other: "fedssd.m_max=3.0"}[trial.pipeline]
        return 70.0 + (trial.label == best)

    def m_max(study: Study, results: Told) -> float | None:
        found = study.settled(results)
        return None if found is None else found.strengths["fedssd.m_max"]

    assert m_max(study, Told(says)) == 0.5
    assert m_max(study.with_pipeline(other), Told(says)) == 3.0
    cells = [
        trial.cell(3) for named in (study, study.with_pipeline(other)) for trial in named.trials("report", Told(says))
    ]
    again = 5  # a row of FedSSD's own for all columns, where 3 is none of the values tried on them
    assert len({cell.name for cell in cells}) == len(cells) == 2 * 45 + again

    def untuned(trial: Trial, seed: int) -> float | None:
        return profile(trial, seed) if trial.part == "profile" else None

    assert m_max(study, Told(untuned)) is None  # what was chosen before was chosen with another
    assert m_max(study.with_pipeline(other), Told(untuned)) == chosen(design).strengths["cifar10"]["fedssd.m_max"]
    with pytest.raises(UserError, match=r"no pipeline 'head=of': expected one of head=auto,weight_decay=0\.0,"):
        study.with_pipeline("head=of")


def test_what_is_best_over_all_columns_is_chosen(design: Design) -> None:
    """0.5 is a point better on the first column and two worse on the others, 0.1 half a point better on two of five."""
    home, gains = "table1-cifar10", {"fedssd.m_max=0.5": (1.0, -2.0), "fedssd.m_max=0.1": (0.5, 0.0)}

    def says(trial: Trial, _: int) -> float | None:
        if trial.part == "tune":
            return 60.0 + gains.get(trial.label, (0.0, 0.0))[0]
        there, elsewhere = gains.get(trial.label, (0.0, 0.0))
        near = trial.group == home or (trial.group == "table2-dirichlet-10" and elsewhere == 0.0)
        return 60.0 + (there if near else elsewhere)

    study = Study(design, pipeline=design.candidates[0])
    settled = study.settled(Told(says))
    assert settled is not None
    assert (settled.strengths["fedssd.m_max"], settled.everywhere) == (0.5, 0.1)
    means = [study.over_columns(value, settled.paper, Told(says)) for value in (None, 0.01, 0.1, 0.5)]
    assert means == pytest.approx([60.0, 60.0, 60.0 + 2 * 0.5 / 5, 60.0 + (1.0 - 4 * 2.0) / 5])
    rows = [trial for trial in study.trials("report", Told(says)) if trial.arm == design.columns.name]
    assert [(trial.group, flat(trial.recipe)["fedssd.m_max"]) for trial in rows] == [(c.recipe, 0.1) for c in COLUMNS]
    trials, of_chosen = study.trials("report", Told(says)), replace(study, pipeline=None)
    assert {study.seeds_for(trial) for trial in trials} == {(3, 4, 5)}  # of a pipeline beside the chosen one
    seeds = {trial.arm: of_chosen.seeds_for(trial) for trial in trials}
    more = dict.fromkeys(("fedavg", "fedssd", "fedssd-columns"), (3, 4, 5, 6, 7, 8, 9))  # whether it leads
    assert seeds == dict.fromkeys(seeds, (3, 4, 5)) | more
    found = study.choices(Told(says))
    assert found.defaults == {"cifar10": {"fedssd.m_max": 0.1}}
    assert chosen_file.understood(found.to_toml()) == found

    def lacking(trial: Trial, seed: int) -> float | None:
        return None if (trial.part, trial.group, seed) == ("columns", "table2-classes-2", 2) else says(trial, seed)

    assert study.everywhere(Told(lacking)) is None
    kept = replace(study, pipeline=None, chosen=replace(found, paper=design.candidates[0]))
    assert kept.everywhere(Told(nothing)) == 0.1
    assert design.columns.name not in kept.names_reported(settled._replace(everywhere=0.5))  # it is the tuned one


@pytest.mark.quick
def test_what_is_best_over_all_columns_of_digits_is_their_recipe_s(design: Design) -> None:
    """By the rule of CIFAR-10's columns, whatever the pipeline, and whether there is one.

    1 leads by four on one of five columns and trails by three on another, 0.3 leads by one on both, 0.1 on the first.
    """
    part, hard, mild = "digits-columns", "table2-classes-2", "table2-dirichlet-10"
    gains = {
        ("fedssd.m_max=1.0", hard): 4.0,
        ("fedssd.m_max=1.0", mild): -3.0,
        ("fedssd.m_max=0.3", hard): 1.0,
        ("fedssd.m_max=0.3", mild): 1.0,
        ("fedssd.m_max=0.1", hard): 1.0,
    }

    def says(trial: Trial, seed: int) -> float | None:
        return 90.0 + seed - 100 + gains.get((trial.label, trial.group), 0.0) if trial.part == part else None

    for study in (Study(design), Study(design, pipeline=design.candidates[6])):
        means = [study.over_columns(value, {}, Told(says), part) for value in (None, 0.01, 0.1, 0.3, 1.0, 3.0)]
        ends = [91.0, 91.0, 91.0 + 1.0 / 5, 91.0 + 2.0 / 5, 91.0 + 1.0 / 5, 91.0]  # of seeds 100, 101, 102
        assert means == pytest.approx(ends)
        assert study.everywhere(Told(says), part) == 0.3
        found = study.choices(Told(says))
        assert found == Chosen(study.pipeline, recipes={"digits": {"fedssd.m_max": 0.3}})
        assert chosen_file.understood(found.to_toml()) == found
    level = Told(lambda trial, seed: 90.0 if trial.part == part else None)
    assert Study(design).everywhere(level, part) == 0.01  # the first

    def lacking(trial: Trial, seed: int) -> float | None:
        return None if (trial.group, trial.label, seed) == (mild, "fedssd.m_max=0.03", 102) else says(trial, seed)

    assert Study(design).everywhere(Told(lacking), part) is None
    before = Chosen(recipes={"digits": {"fedssd.m_max": 3.0}})
    assert Study(design, chosen=before).everywhere(Told(lacking), part) == 3.0
    assert Study(design, chosen=before).everywhere(Told(says), part) == 0.3


@pytest.mark.quick
def test_the_digits_of_the_choice_differ_from_their_recipe_in_split_and_strength_alone(design: Design) -> None:
    study = Study(design)
    recipe = load_recipe(recipe_file("digits"), {})
    trials = study.trials("digits-columns", Told(nothing))
    assert [(t.group, t.label) for t in trials] == [
        (column.recipe, label)
        for column in COLUMNS
        for label in ("fedavg", *(f"fedssd.m_max={value}" for value in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)))
    ]
    for trial in trials:
        ours, theirs = flat(trial.recipe), flat(replace(recipe, method=trial.arm))
        assert {key for key in ours if ours[key] != theirs[key]} <= {"partition", "fedssd.m_max"}
        assert ours["partition"] == study._setting(study._column(trial.group), "columns").partition
        assert study.seeds_for(trial) == design.digits.tuning
    small = Study(design, small=True, changes={"epochs": "1"}).trials("digits-columns", Told(nothing))
    assert {(t.recipe.rounds, t.recipe.epochs) for t in small} == {(SMALL_ROUNDS, 1)}


GONE = {  # what a design does not have, or what is lacking; and what is then not chosen
    "pipeline": ("paper", {"head": "on"}),
    "departure": ("survivors", ("head=on", "head=both")),
    "method": ("strengths", {"cifar10": {"fedssd.m_max": 0.5, "gone.mu": 0.1}}),
    "value of a recipe's strength": ("recipes", {"digits": {"fedssd.m_max": 7.0}}),
    "strengths of others": ("strengths", {"cifar10": {"fedssd.m_max": 0.5}}),
    "variant": ("variants", {"fedssd-outside": 0.1, "gone": 0.1}),
    "variants lacking one": ("variants", {"mse": 0.03}),
    "value of a variant": ("variants", {"fedssd-outside": 0.1, "mse": 7.0}),
    "composition": ("compositions", {"fedssd+gone-decay": 0.98, "scaffold-decay": 0.98}),
    "value of a composition": ("compositions", {"fedssd-decay": 0.5, "fedavg-decay": 0.98}),
    "control": ("compositions", {"fedssd+scaffold-decay": 0.98, "moon-decay": 0.98}),
    "composition with FedSSD": ("compositions", {"scaffold-decay": 0.98}),
}


@pytest.mark.quick
@pytest.mark.parametrize("what", GONE)
def test_what_the_design_does_not_have_was_not_chosen(what: str, design: Design) -> None:
    name, stale = GONE[what]
    given = chosen(design)
    study = Study(design, chosen=replace(given, **{name: stale}))
    found = study.choices(Told(nothing))
    assert found == replace(given, **{name: getattr(Chosen(), name)})
    page = Page(study, Told(nothing))
    assert all(make() for make in page.blocks.values())
