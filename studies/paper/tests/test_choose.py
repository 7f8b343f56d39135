"""What the rules choose from made-up results, computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from studies.paper import choose
from studies.paper.paper import SPLITS
from studies.paper.trials import Study, Trial

pytestmark = pytest.mark.quick
Means = dict[tuple[str, ...], float]


def made_up(found: Means, default: float | None = 50.0) -> choose.Mean:
    """Means by words that a trial's group, label and arm have; the first that fit."""

    def mean(trial: Trial) -> float | None:
        words = (trial.part, trial.group, trial.label, trial.arm)
        return next((value for names, value in found.items() if set(names) <= set(words)), default)

    return mean


def test_of_every_choice_the_largest_effect_and_the_best_end_survive(study: Study) -> None:
    found: Means = {
        ("base", "fedavg"): 60.0,
        ("base",): 50.0,
        ("weight_decay=1e-05", "fedavg"): 58.9,  # 1.1 below its base
        ("weight_decay=0.0005", "fedavg"): 60.5,  # half a point is not worth it
        ("head=on", "fedavg"): 60.9,
        ("partition_seed=3", "fedavg"): 57.0,  # the largest effect
        ("partition_seed=4", "fedavg"): 61.5,  # the best end
        ("fedavg",): 60.0,
    }
    assert choose.survivors(study, made_up(found)) == ("weight_decay=1e-05", "partition_seed=3", "partition_seed=4")
    assert choose.survivors(study, made_up({("head=on", "fedavg"): 60.0}, None)) is None


def test_the_pipeline_is_the_closest_over_all_columns(study: Study) -> None:
    printed = {column.recipe: column.published["fedavg"].accuracy for column in SPLITS}
    off = dict(zip(map(str, study.design.candidates), (2.0, 1.0, 3.0, 1.0, 2.0, 2.0, 2.0), strict=True))

    def mean(trial: Trial) -> float:
        changes = next(one for one in study.design.candidates if study.candidate(one, SPLITS[0]).label == trial.label)
        return printed[trial.group] - off[str(changes)]

    assert choose.pipeline(study, mean) == study.design.candidates[1]  # the first of the two at one point
    assert choose.distance(study, study.design.candidates[2], SPLITS, mean) == pytest.approx(3.0)
    one_off = choose.distance(study, study.design.candidates[0], SPLITS, made_up({}, printed["table1-cifar10"]))
    squares = [(value - printed["table1-cifar10"]) ** 2 for value in printed.values()]
    assert one_off == pytest.approx((sum(squares) / 5) ** 0.5)


def test_strengths_are_the_best_of_their_grid_and_ties_the_first(study: Study) -> None:
    pipeline, grids = study.design.candidates[0], study.design.grids
    found = choose.strengths(study, grids, pipeline, made_up({("moon.mu=5.0",): 51.0}))
    assert found == {one.name: 5.0 if one.name == "moon" else one.values[0] for one in grids}
    missing = choose.strengths(study, grids, pipeline, made_up({("moon.mu=5.0",): 51.0}, None))
    assert missing is None


def test_one_strength_for_all_columns_is_the_best_in_the_mean(study: Study) -> None:
    found: Means = {("table2-classes-2", "fedssd.m_max=0.5"): 60.0, ("fedssd.m_max=0.1",): 51.5}
    assert choose.everywhere(study, made_up(found), "columns") == 0.5  # 60 on one of five is 52 in the mean
    assert choose.everywhere(study, made_up({**found, ("fedssd.m_max=0.1",): 52.5}), "columns") == 0.1


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ({("fedssd-decay", "lr_decay=0.98"): 70.0}, {"fedssd-decay": 0.98, "fedavg-decay": 0.97}),
        (
            {("fedssd+scaffold-decay", "lr_decay=0.99"): 70.0, ("moon-decay", "lr_decay=0.98"): 71.0},
            {"moon-decay": 0.98, "fedssd+scaffold-decay": 0.99, "scaffold-decay": 0.97},
        ),
    ],
)
def test_the_best_composition_comes_with_its_control_and_the_best_without(
    study: Study, found: Means, chosen: dict[str, float]
) -> None:
    composed = choose.compositions(study, made_up(found))
    assert composed is not None
    assert list(composed.items()) == list(chosen.items())


def test_what_is_chosen_is_written_as_it_is_read(study: Study) -> None:
    import tomllib

    assert choose.understood(tomllib.loads(choose.as_toml(study.chosen))) == study.chosen
    other = replace(study.chosen, on_digits=3.0)
    assert choose.understood(tomllib.loads(choose.as_toml(other))) == other
