"""A study's results on disk: found by what they are, and how much work they were."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fedssd.recipe import load_recipe
from studies.paper.paper import recipe_file
from studies.paper.study.parts import Study
from studies.paper.study.results import Results
from studies.paper.study.trial import Trial, model_steps


def leave(folder: Path, trial: Trial, seed: int, curve: Sequence[float], rounds: int = 0) -> None:
    """A finished run on disk: a header, and a line for each round; the curve's last value stays to the end."""
    folder.mkdir(parents=True)
    recipe = replace(trial.cell(seed).recipe, rounds=rounds or trial.recipe.rounds)
    values = [*curve, *[curve[-1]] * (recipe.rounds - len(curve))]
    header, sent = {"fedssd": "0", "recipe_hash": "ab", "split_hash": "cd"}, {"bytes_up": 1, "bytes_down": 1}
    lines = [header, *({"round": number, "global": {"acc": value}, **sent} for number, value in enumerate(values, 1))]
    (folder / "recipe.toml").write_text(recipe.to_toml())
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = {"method": recipe.method, "seed": seed, "rounds": recipe.rounds, "of_rounds": recipe.rounds, **sent}
    summary |= {"final": {"acc": values[-1]}, "best": {"acc": max(values)}}
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
    for changes in ({"rounds": 21}, {"kernels": "off"}):  # which end elsewhere
        other = replace(trial, recipe=replace(trial.recipe, **changes))
        assert results.accuracies(other, (0, 2)) == {}


@pytest.mark.quick
def test_the_first_rounds_of_a_longer_run_are_the_shorter_run(study: Study, tmp_path: Path) -> None:
    """Of the longest, by the same kernels.

    Accuracies of 1, 2, … 60 %: the screen's 20 rounds end at 20, and its last five are 18 in the mean.
    """
    trial, (found, *_) = study.bases("screen")[0], study.bases("confirm")
    leave(tmp_path / "long", trial, 0, [0.99], rounds=40)
    leave(tmp_path / "longer", trial, 0, [number / 100 for number in range(1, 61)], rounds=60)
    plain = replace(trial, recipe=replace(trial.recipe, kernels="off"))
    leave(tmp_path / "other kernels", plain, 0, [0.99], rounds=80)
    results = Results([tmp_path])
    for which, expected in {"last": 20.0, "best": 20.0, "late": 18.0, "": 18.0}.items():
        assert results.accuracies(trial, (0, 1), which) == pytest.approx({0: expected}), which
    assert results.found([trial.cell(0), trial.cell(1)]) == {trial.cell(0).key: tmp_path / "longer"}
    assert results.find(found.cell(0)) is None  # 100 rounds are more than any has
    sparse = replace(trial, recipe=replace(trial.recipe, evaluate_every=2))
    leave(tmp_path / "sparse", sparse, 0, [0.5], rounds=41)
    assert Results([tmp_path]).find(sparse.cell(0)) is None  # whose last round may not be evaluated there


@pytest.mark.quick
def test_where_both_were_run_the_shorter_counts_unless_the_longer_is_asked_for(study: Study, tmp_path: Path) -> None:
    trial = study.bases("screen")[0]
    leave(tmp_path / "short", trial, 0, [0.5] * 20, rounds=20)
    leave(tmp_path / "long", trial, 0, [0.6] * 40, rounds=40)
    results = Results([tmp_path])
    assert results.accuracies(trial, (0,)) == pytest.approx({0: 50.0})
    assert results.by_longest().accuracies(trial, (0,)) == pytest.approx({0: 60.0})
    assert results.accuracies(trial, (0,)) == pytest.approx({0: 50.0})  # as before


@pytest.mark.quick
def test_model_steps_are_those_of_the_paper_s_run() -> None:
    """10 clients × 10 epochs × 79 batches × 100 rounds of 5,000 samples each, none held out."""
    recipe = load_recipe(recipe_file("table1-cifar10"), {"auxiliary": 0, "partition": "iid"})
    assert model_steps(recipe) == pytest.approx(10 * 10 * 79 * 100, rel=0.01)
    assert model_steps(replace(recipe, partial_batch="drop")) == pytest.approx(10 * 10 * 78 * 100, rel=0.01)
    assert model_steps(replace(recipe, participation=0.1, clients=100)) < model_steps(recipe) / 5
