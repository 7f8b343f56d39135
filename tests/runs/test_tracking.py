"""Trackers are told what the record holds, each round once, and no run ends for one that fails."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedssd.cli import main
from fedssd.runs import tracking
from fedssd.runs.tracking import Followed, figures_of, tracked
from fedssd.simulation.events import Event, ignore
from fedssd.simulation.result import Round

Captured = pytest.CaptureFixture[str]
SMALL = shlex.split("--engine reference --clients 3 --epochs 1 --lr 0.1 --quiet")


class Told:
    """A tracker that keeps what it is told, by run; ``last`` is what it says it had been told before."""

    def __init__(self, last: int = 0) -> None:
        self.last, self.runs, self.closed = last, dict[str, dict[int, Any]](), list[bool]()
        self.followed: list[Followed] = []

    def __call__(self, run: Followed) -> Any:
        self.followed.append(run)
        found, closed, last = self.runs.setdefault(run.name, {}), self.closed, self.last

        class Sink:
            def tell(self, number: int, figures: dict[str, float]) -> None:
                assert number not in found
                found[number] = figures

            def close(self, whole: bool) -> None:
                closed.append(whole)

        sink: Any = Sink()
        sink.last = last
        return sink


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def installed(monkeypatch: pytest.MonkeyPatch, sink: Any, name: str = "tensorboard") -> None:
    """As though that tracker were there, and were this."""
    monkeypatch.setattr(tracking, "find_spec", lambda _: True)
    monkeypatch.setitem(tracking.TRACKERS, name, sink)


def accuracies(run: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()[1:]]
    return {line["round"]: line["global"]["acc"] for line in lines}


def test_the_numbers_of_a_round_have_names_and_those_of_classes_and_clients_are_left_out() -> None:
    line = {
        "round": 3,
        "global": {"acc": 0.5, "loss": None, "class_acc": [0.4, 0.6]},
        "local": {"acc_mean": 0.25, "acc": {"0": 0.25}},
        "forgetting": 0.25,
        "client_0": {"class_acc": [0, 1]},
        "confusion": {"global": [[1]]},
        "distillation": {"ratio": None},
        "clients": [0],
        "dropped": {"1": "lost"},
        "bytes_up": 12,
        "bytes_down": 0,
        "seconds": {"train": 1.5},
    }
    expected = {"global/acc": 0.5, "local/acc_mean": 0.25, "forgetting": 0.25, "bytes_up": 12.0}
    expected |= {"bytes_down": 0.0, "seconds/train": 1.5}
    assert figures_of(Round.from_json(line)) == expected


def test_every_run_of_a_comparison_is_told_round_by_round(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    installed(monkeypatch, told, "mlflow")
    words = ["compare", *SMALL, "--methods", "fedavg,fedssd", "--seeds", "0,1", "--rounds", "2", "--workers", "2"]
    assert main([*words, "--out", "both", "--track", "mlflow"]) == 0
    assert set(told.runs) == {"fedavg-0", "fedavg-1", "fedssd-0", "fedssd-1"}
    for name, found in told.runs.items():
        assert {number: figures["global/acc"] for number, figures in found.items()} == accuracies(here / "both" / name)
    assert told.closed == [True] * 4
    assert {run.group for run in told.followed} == {"both"}
    assert len({run.identity for run in told.followed}) == 4
    recipes = {run.name: run.recipe for run in told.followed}
    assert recipes["fedssd-1"]["seed"] == 1
    assert "options.fedssd.m_max" in recipes["fedssd-1"]


def test_a_run_that_goes_on_is_the_same_run_and_tells_what_was_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Told()
    installed(monkeypatch, first)
    assert main(["run", *SMALL, "--rounds", "2", "--out", "one", "--track", "tensorboard"]) == 0
    for before in (0, 2, 3):  # nothing was told of it before; all of it; more, as when the last checkpoint is older
        later = Told(before)
        installed(monkeypatch, later)
        rounds = 3 + before
        assert main(["resume", "one", "--rounds", str(rounds), "--quiet", "--track", "tensorboard"]) == 0
        assert list(later.runs["one"]) == list(range(before + 1, rounds + 1))
        assert later.followed[0].identity == first.followed[0].identity


def test_a_tracker_that_fails_is_named_once_and_the_run_goes_on(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def away(_: Followed) -> Any:
        raise ConnectionError("no route\nto the server")

    installed(monkeypatch, away)
    assert main(["run", *SMALL[:-1], "--rounds", "3", "--out", "one", "--track", "tensorboard"]) == 0
    said = capsys.readouterr().err
    assert said.count("nothing more is tracked: ConnectionError: no route\n") == 1
    assert len(accuracies(here / "one")) == 3


def test_an_interruption_is_told(here: Path) -> None:
    told = Told()
    (here / "recipe.toml").write_text("seed = 0\n")
    (here / "rounds.jsonl").write_text("{}\n")

    def interrupted() -> None:
        with tracked(told, here, ignore) as listen:
            listen(Event("one", 1, 2, Round(1, 1, 0), folder=here))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert told.closed == [False]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_one_that_is_not_installed_is_one_line_before_anything_runs(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda _: None)
    commands = [[*words, *SMALL] for words in (["run"], ["compare"], ["sweep", "--grid", "momentum=0.1,0.2"])]
    for words in commands:
        assert main([*words, "--track", name]) == 2
        assert capsys.readouterr().err == f"fedssd: --track {name} needs {name}: pip install 'fedssd[{name}]'\n"
    assert not any(here.iterdir())


def test_an_unknown_one_is_refused_with_the_nearest(here: Path, capsys: Captured) -> None:
    assert main(["run", "--track", "tensorbord"]) == 2
    expected = "--track expects one of tensorboard, mlflow, wandb, got 'tensorbord' (did you mean 'tensorboard'?)"
    assert capsys.readouterr().err == f"fedssd: {expected}\n"
    assert not any(here.iterdir())


def test_tensorboard_has_each_round_once_also_after_a_resume(here: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["run", *SMALL, "--rounds", "2", "--out", "one", "--track", "tensorboard"]) == 0
    assert main(["resume", "one", "--rounds", "4", "--quiet", "--track", "tensorboard"]) == 0
    found = EventAccumulator(str(here / "one" / "tensorboard"))
    found.Reload()
    shown = {event.step: event.value for event in found.Scalars("global/acc")}
    assert len(found.Scalars("global/acc")) == 4
    assert shown == pytest.approx(accuracies(here / "one"))


def test_mlflow_has_each_round_once_also_after_a_resume(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (here / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert main(["run", *SMALL, "--rounds", "2", "--out", "one", "--track", "mlflow"]) == 0
    assert main(["resume", "one", "--rounds", "4", "--quiet", "--track", "mlflow"]) == 0
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("fedssd").experiment_id])
    told = client.get_metric_history(run.info.run_id, "global/acc")
    assert sorted((metric.step, metric.value) for metric in told) == sorted(accuracies(here / "one").items())
    assert run.info.status == "FINISHED"
    assert run.data.params["clients"] == "3"
