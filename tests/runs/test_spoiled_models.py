"""One reply never ends a run: refused, left out or rolled back; where nothing helps, the run fails and says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from fedssd.cli import main
from fedssd.core import tree
from fedssd.core.faults import Faults, parse_faults
from fedssd.core.heldout import IN_A_ROW
from fedssd.errors import UserError
from fedssd.recipe import load_recipe
from fedssd.runs.checkpoint import last_good
from fedssd.runs.folder import RunFolder, unsealed
from fedssd.runs.loop import run_recipe, run_together
from fedssd.runs.read import read_run
from fedssd.runs.rules import still_valid
from fedssd.simulation.result import Result

SMALL: dict[str, Any] = {
    "data": "digits",
    "partition": "dirichlet:0.5",
    "clients": 5,
    "auxiliary": 8,
    "model": "mlp",
    "rounds": 4,
    "epochs": 2,
    "batch": 32,
    "lr": 0.05,
    "engine": "reference",
}
MAJORITY: dict[str, Any] = {"faults": "scale=4x1e4", "reach": 0.0}  # of five: nothing can be made of their replies


def run(method: str = "fedavg", **keys: Any) -> Result:
    return run_recipe(load_recipe(None, {**SMALL, "method": method, **keys}))


def assert_same(left: Result, right: Result) -> None:
    ours, theirs = tree.flatten(left.weights), tree.flatten(right.weights)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def liar(faults: str, clients: int = 5) -> int:
    (client,) = (one for group in parse_faults(faults, clients).members(0, clients).values() for one in group)
    return client


# ------------------------------------------------------------------------------------------- nobody notices


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
@pytest.mark.parametrize("faults", ["scale=1x1e37", "scale=1x100", "flip=1x30", "claim=1x1e13"])
def test_a_loud_lie_is_as_if_the_liar_were_silent(faults: str, engine: str) -> None:
    lied = run(faults=faults, engine=engine)
    assert_same(lied, run(faults="silent=1", engine=engine))
    assert all(list(one.dropped) == [liar(faults)] for one in lied.rounds)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedcurv", "fd", "fedssd"])
def test_honest_runs_do_not_depend_on_the_reach_by_a_bit(method: str) -> None:
    keys = {"lr": 0.01}  # at 0.05 SCAFFOLD diverges by itself
    assert_same(run(method, **keys), run(method, reach=0.0, **keys))
    assert_same(run(method, **keys), run(method, on_bad_update="keep", **keys))


def test_without_reach_the_check_leaves_the_liar_out() -> None:
    lied = run(faults="scale=1x1e4", reach=0.0)
    assert_same(lied, run(faults="silent=1"))
    assert "it spoils the model, loss" in lied.rounds[0].dropped[liar("scale=1x1e4")]
    assert lied.summary.status == "completed"


def test_stop_ends_the_run_at_the_one_who_spoils_it() -> None:
    client = liar("scale=1x1e4")
    with pytest.raises(UserError, match=rf"stopped in round 1: client {client} is refused \(it spoils the model"):
        run(faults="scale=1x1e4", reach=0.0, on_bad_update="stop")


def test_keep_has_no_guard_and_no_check() -> None:
    kept = run(faults="scale=1x1e4", on_bad_update="keep")
    assert kept.summary.dropped == 0
    assert len(kept.rounds) == SMALL["rounds"]


def test_with_different_models_a_spoiled_round_is_rolled_back_whole() -> None:
    mixed = run(server="feddf", model="mlp,cnn-small", faults="scale=1x1e30", reach=0.0, rounds=1)
    assert mixed.rounds[0].unchanged == "rolled back"
    assert len(mixed.rounds[0].dropped) == 5


# ------------------------------------------------------------------------------------------- a run that fails


def test_rollbacks_leave_everything_as_it_was_and_three_end_the_run() -> None:
    failed = run("scaffold", **MAJORITY, rounds=9)
    assert [one.unchanged for one in failed.rounds] == ["rolled back"] * IN_A_ROW
    assert failed.summary.status == "failed"
    assert failed.summary.to_json()["status"] == "failed"
    assert f"{IN_A_ROW} rounds in a row were rolled back" in failed.summary.failed
    first = run("scaffold", rounds=1, faults="silent=5")  # nobody replied: the first model
    assert_same(failed, first)


def test_without_samples_of_the_servers_own_the_test_set_only_ends_the_run() -> None:
    failed = run(**MAJORITY, rounds=9, auxiliary=0)
    assert len(failed.rounds) == IN_A_ROW
    assert "loss on the test set was far above guessing" in failed.summary.failed
    kept = run(**MAJORITY, rounds=IN_A_ROW, auxiliary=0, on_bad_update="keep")
    assert_same(failed, kept)  # its models are those of a run in which nobody looked
    assert run(**MAJORITY, rounds=4, auxiliary=0, evaluate_every=2).summary.status == "completed"  # two looks


def test_a_failed_run_leaves_those_beside_it_alone() -> None:
    recipes = [load_recipe(None, {**SMALL, "method": "fedavg", "seed": seed}) for seed in (0, 1)]
    bad = load_recipe(None, {**SMALL, "method": "fedavg", **MAJORITY})
    together = run_together([recipes[0], bad, recipes[1]], [None] * 3)
    assert [one.summary.status for one in together] == ["completed", "failed", "completed"]
    assert [len(one.rounds) for one in together] == [4, IN_A_ROW, 4]
    for ours, recipe in zip(together[::2], recipes, strict=True):
        assert_same(ours, run_recipe(recipe))


def flags(**keys: Any) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in {**SMALL, **keys}.items()]


def test_the_commands_say_so_and_end_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--out", "run", "--method", "fedavg", *flags(**MAJORITY, rounds=9), "--quiet"]) == 1
    said = capsys.readouterr()
    line = said.err.splitlines()[-1]
    assert line.startswith("fedssd: run run failed in round 3: 3 rounds in a row were rolled back")
    assert "no checkpoint known to be good" in line  # it was lost from the first round on
    assert "next:" not in said.out
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "failed"
    assert main(["resume", "run", "--quiet"]) == 1  # and has nothing more to do
    assert "failed in round 3" in capsys.readouterr().err
    assert main(["resume", "run", "--from", "last-good", "--quiet"]) == 2
    assert "run has no checkpoint that is known to be good" in capsys.readouterr().err
    grid = ["--grid", "faults=scale=4x1e4,silent=1", "--seeds", "0", "--workers", "1"]
    assert main(["sweep", "--out", "sweep", *grid, "--method", "fedavg", *flags(reach=0.0), "--quiet"]) == 1
    assert capsys.readouterr().err.count("failed in round 3") == 1
    assert main(["resume", "sweep", "--from", "last-good"]) == 2
    assert "is for one run" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------- the last good checkpoint


@contextmanager
def only_from_round_5(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clients tell the truth for four rounds."""
    plain = Faults.corrupted

    def corrupted(faults: Faults, job: Any, trained: Any, population: int) -> Any:
        return plain(faults, job, trained, population) if job.round >= 4 else trained

    with monkeypatch.context() as patched:
        patched.setattr(Faults, "corrupted", corrupted)
        yield


def losing(folder: Path, monkeypatch: pytest.MonkeyPatch, **keys: Any) -> Result:
    """A run whose model is good for four rounds and lost from the fifth on."""
    with only_from_round_5(monkeypatch):
        recipe = load_recipe(None, {**SMALL, **MAJORITY, "method": "fedavg", "rounds": 12, **keys})
        return run_recipe(recipe, folder)


@pytest.mark.parametrize("every", ["1", "1h"])
@pytest.mark.parametrize("auxiliary", [8, 0])
def test_the_state_before_the_trouble_is_kept_and_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], every: str, auxiliary: int
) -> None:
    folder = tmp_path / "run"
    lost = losing(folder, monkeypatch, checkpoint_every=every, auxiliary=auxiliary)
    assert (lost.summary.status, lost.summary.rounds) == ("failed", 7)
    assert last_good(RunFolder(folder)) == 4
    monkeypatch.setattr("fedssd.core.faults.Faults.corrupted", lambda self, job, trained, population: trained)
    assert main(["resume", str(folder), "--from", "last-good", "--quiet"]) == 0
    assert_same(read_run(folder), run(rounds=12, auxiliary=auxiliary))
    assert not any((folder / "checkpoint").glob("round-7*"))
    assert capsys.readouterr().err == ""


def test_a_run_that_went_with_others_goes_on_from_there_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {**SMALL, "method": "fedavg", "rounds": 8, "checkpoint_every": "1"}
    recipes = [load_recipe(None, keys), load_recipe(None, {**keys, **MAJORITY})]
    with only_from_round_5(monkeypatch):
        run_together(recipes, [tmp_path / "sound", tmp_path / "lost"])
    assert main(["resume", str(tmp_path / "lost"), "--quiet"]) == 2  # to the bit they go on together only
    assert "went side by side with 1 other runs" in capsys.readouterr().err
    monkeypatch.setattr("fedssd.core.faults.Faults.corrupted", lambda self, job, trained, population: trained)
    assert main(["resume", str(tmp_path / "lost"), "--from", "last-good", "--quiet"]) == 0
    assert_same(read_run(tmp_path / "lost"), read_run(tmp_path / "sound"))


def test_without_a_look_at_the_model_none_is_known_to_be_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is lost from round 5 on, which the test set shows in round 6: round 5 is not what to go on from."""
    lost = losing(tmp_path / "run", monkeypatch, auxiliary=0, evaluate_every=3, checkpoint_every="1")
    assert (lost.summary.status, lost.summary.rounds) == ("failed", 12)
    assert last_good(RunFolder(tmp_path / "run")) == 3


def test_it_outlives_newer_checkpoints_with_a_higher_loss(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    recipe = load_recipe(None, {**SMALL, "method": "fedavg", "rounds": 9, "lr": 0.3, "checkpoint_every": "1"})
    run_recipe(recipe, folder)
    kept = {int(path.stem.removeprefix("round-")) for path in (folder / "checkpoint").glob("round-*.json")}
    good = last_good(RunFolder(folder))
    assert kept == {0, 8, 9, good}
    content = unsealed(folder / "checkpoint" / "last-good")
    assert content["round"] == good
    assert content["loss"] > 0


def test_a_resumed_run_refuses_what_an_unbroken_one_does(tmp_path: Path) -> None:
    """One client of five a round: whom it is measured by is all in the checkpoint."""
    keys = {**SMALL, "method": "fedavg", "participation": 0.2, "faults": "scale=1x30", "checkpoint_every": "1"}
    whole = run_recipe(load_recipe(None, {**keys, "rounds": 12}), tmp_path / "whole")
    assert 0 < whole.summary.dropped < 12
    run_recipe(load_recipe(None, {**keys, "rounds": 6}), tmp_path / "cut")
    resumed = run_recipe(load_recipe(None, {**keys, "rounds": 12}), tmp_path / "cut", resume=True)
    assert_same(whole, resumed)
    assert [one.dropped for one in whole.rounds] == [one.dropped for one in resumed.rounds]
    contents = [unsealed(tmp_path / name / "checkpoint" / "round-12.json") for name in ("whole", "cut")]
    assert contents[0]["tensors"]["sha256"] == contents[1]["tensors"]["sha256"]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("keys", "holds"),
    [
        ({}, True),
        ({"faults": "nan=1+drop=0.1"}, True),  # refused and lost as ever
        ({"faults": "flip=1"}, False),
        ({"faults": "drop=0.1+scale=1x2"}, False),
        ({"faults": "scale=1x2", "on_bad_update": "keep"}, True),
    ],
)
def test_runs_of_the_time_before_reach_hold_where_nobody_lies(keys: dict[str, str], holds: bool) -> None:
    recipe = load_recipe(None, {**SMALL, **keys})
    assert still_valid({"rules": 1}, recipe) == still_valid({}, recipe) == holds
    assert still_valid({"rules": 2}, recipe)
