"""Runs: repeatable, recorded truthfully, interruptible."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedssd
from fedssd.core import tree
from fedssd.core.engine import Job, Trained
from fedssd.engines.vectorised import VectorisedEngine
from fedssd.errors import UserError
from fedssd.recipe import load_recipe
from fedssd.runs.loop import run_recipe, run_together
from fedssd.simulation import simulation
from fedssd.simulation.setup import assemble_all
from fedssd.sweeps.grid import program, run_named

QUICK = {"data": "digits", "partition": "dirichlet:0.5", "rounds": 2, "epochs": 1, "batch": 32, "auxiliary": 8}
MODEL_BYTES = 6058 * 4  # parameters of the small CNN × float32


def furthest(left: object, right: object) -> float:
    ours, theirs = tree.flatten(left), tree.flatten(right)
    assert ours.keys() == theirs.keys()
    return max(float((ours[name].double() - theirs[name].double()).abs().max()) for name in ours)


@pytest.mark.quick
@pytest.mark.parametrize("engine", ["reference", "vectorised"])
def test_the_same_seed_gives_the_same_bits(engine: str) -> None:
    first, second = (fedssd.run("fedssd", **QUICK, engine=engine) for _ in range(2))
    assert furthest(first.weights, second.weights) == 0
    other = fedssd.run("fedssd", **QUICK, engine=engine, seed=1)
    assert furthest(first.weights, other.weights) > 0


def test_threads_and_workers_do_not_move_the_weights() -> None:
    keys = {**QUICK, "precision": "fp64", "engine": "reference"}
    recipes = [load_recipe(None, {**keys, "method": method}) for method in ("fedavg", "moon")]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = [run_recipe(recipe) for recipe in recipes]
        torch.set_num_threads(2)
        two = [run_recipe(recipe) for recipe in recipes]
    finally:
        torch.set_num_threads(before)
    spread = run_named(recipes, ["a", "b"], workers=2)
    for a, b, c in zip(one, two, spread, strict=True):
        assert furthest(a.weights, b.weights) <= 1e-12
        assert furthest(a.weights, c.weights) <= 1e-12


def test_runs_side_by_side_equal_runs_alone() -> None:
    changes = ({"seed": 0, "fedprox.mu": 0.1}, {"seed": 1, "fedprox.mu": 1.0})
    keys = {**QUICK, "precision": "fp64", "method": "fedprox", "engine": "vectorised", "participation": 0.5}
    recipes = [load_recipe(None, {**keys, **change}) for change in changes]
    together = run_together(recipes, [None, None])
    for recipe, result in zip(recipes, together, strict=True):
        assert furthest(run_recipe(recipe).weights, result.weights) <= 1e-10


@pytest.mark.parametrize(
    "method", ["fedssd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedavg", "fedmd"))]
)
def test_runs_of_other_splits_and_auxiliary_sets_share_a_program(method: str) -> None:
    """FedMD's clients hold the auxiliary set, whose size differs here."""
    changes: tuple[dict[str, object], ...] = (
        {"weight_decay": 5e-4, "lr_decay": 0.9},
        {"partition": "classes:2", "seed": 1},
        {"partition": "dirichlet-plain:0.1", "partition_seed": 7},
        {"auxiliary": 3, "auxiliary_mode": "shared"},
    )
    keys = {**QUICK, "precision": "fp64", "method": method, "engine": "vectorised"}
    recipes = [load_recipe(None, {**keys, **change}) for change in changes]
    assert len({program(recipe) for recipe in recipes}) == 1
    together = run_named(recipes, list("abcd"), workers=1)
    for recipe, result in zip(recipes, together, strict=True):
        assert furthest(run_recipe(recipe).weights, result.weights) <= 1e-10


@pytest.mark.quick
def test_runs_side_by_side_share_their_data() -> None:
    recipes = [load_recipe(None, {**QUICK, "seed": seed}) for seed in range(3)]
    federations = assemble_all(recipes)
    assert len({id(federation.dataset) for federation in federations}) == 1
    assert len({federation.partition.hash for federation in federations}) == 3


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
def test_drift_is_how_far_the_clients_went(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the distances worked out from every client's model before and after."""
    seen: list[float] = []
    close = simulation.close_job

    def watching(one: Any, job: Any, trained: Any) -> Any:
        before = tree.flatten(job.sent["weights"]["params"])
        after = tree.flatten(trained.local["params"])
        distances = [math.dist(_numbers(after, place), _numbers(before)) for place in range(len(job.clients))]
        seen.append(sum(distances) / len(distances))
        return close(one, job, trained)

    monkeypatch.setattr(simulation, "close_job", watching)
    rounds = fedssd.run("fedssd", **QUICK, engine=engine, precision="fp64").rounds
    assert [line.drift for line in rounds] == pytest.approx(seen, rel=1e-12)
    assert min(seen) > 0


def _numbers(leaves: dict[str, torch.Tensor], place: int | None = None) -> list[float]:
    chosen = leaves.values() if place is None else [leaf[place] for leaf in leaves.values()]
    return [number for leaf in chosen for number in leaf.flatten().tolist()]


def test_without_weights_on_the_way_there_is_no_drift() -> None:
    assert fedssd.run("fd", **QUICK).rounds[-1].drift is None


@pytest.mark.quick
def test_a_run_on_disk_says_what_happened(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = fedssd.run("fedssd", **QUICK, participation=0.5, out=out)
    header, *lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert header["parameters"] == 6058
    assert lines == [one.to_json() for one in result.rounds]
    lines = result.rounds
    assert [line.number for line in lines] == [1, 2]
    for line in lines:
        assert len(line.clients) == 5
        assert line.bytes_up == 5 * MODEL_BYTES
        assert line.bytes_down == 5 * (MODEL_BYTES + 10 * 10 * 4)
        mean = sum(line.client_accuracy.values()) / 5
        assert math.isclose(line.local_accuracy, mean)
        assert math.isclose(line.forgetting, line.accuracy - mean)
        assert set(line.distillation) == {"weight", "active", "ratio"}
        assert all(math.isclose(sum(row), 1, abs_tol=1e-3) for row in line.credibility)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["final"]["acc"] == lines[-1].accuracy
    assert summary["best"]["acc"] == max(line.accuracy for line in lines)
    assert summary["bytes_up"] == 2 * 5 * MODEL_BYTES
    kept = tree.unflatten(load_file(out / "weights.safetensors"))
    assert furthest(kept["params"], result.weights["params"]) == 0
    again = run_recipe(load_recipe(out / "recipe.toml", {}))
    assert furthest(again.weights, result.weights) == 0


@pytest.mark.quick
def test_the_recorded_accuracy_is_that_of_the_kept_model() -> None:
    result = fedssd.run("fedavg", **QUICK)
    from fedssd.data.sources import load
    from fedssd.models import build_model

    data = load("digits")
    module = build_model("cnn-small", data.shape, 10)
    module.load_state_dict(result.weights["params"])
    right = (module(data.x_test).logits.argmax(1) == data.y_test).float().mean()
    assert math.isclose(float(right), result.summary.accuracy, abs_tol=1e-6)


def test_a_module_and_arrays_of_ones_own() -> None:
    torch.manual_seed(0)
    means = torch.randn(3, 5) * 3
    y = torch.arange(120) % 3
    x = means[y] + torch.randn(120, 5)
    clients = [(x[y != c], y[y != c]) for c in range(3)]
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    keys = {"model": module, "clients": clients, "test": (x, y), "rounds": 5, "epochs": 3, "batch": 16}
    result = fedssd.run("fedssd", **keys, auxiliary=(x[:30], y[:30]), options={"fedssd": {"m_max": 0.5}})
    assert result.summary.accuracy > 0.8  # three well separated clouds
    assert fedssd.run("fedavg", **keys, auxiliary=0).summary.rounds == 5
    with pytest.raises(UserError, match="logits of shape"):
        fedssd.run("fedavg", **{**keys, "model": nn.Linear(5, 4)}, auxiliary=0)
    with pytest.raises(UserError, match="does not take samples"):
        fedssd.run("fedavg", **{**keys, "model": nn.Linear(6, 3)}, auxiliary=0)
    with pytest.raises(UserError, match="random numbers"):
        fedssd.run("fedavg", **{**keys, "model": nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3))}, auxiliary=0)


@pytest.mark.quick
def test_a_strength_of_zero_is_said_to_be_fedavg() -> None:
    said: list[str] = []
    fedssd.run(
        "fedprox", **{**QUICK, "rounds": 1}, options={"fedprox": {"mu": 0}}, listen=lambda e: said.append(e.note)
    )
    assert any("is FedAvg" in note for note in said)


@pytest.mark.quick
def test_a_method_without_its_auxiliary_set_is_refused() -> None:
    with pytest.raises(UserError, match="auxiliary"):
        fedssd.run("fedssd", **{**QUICK, "auxiliary": 0})


def test_evaluation_can_be_rare() -> None:
    result = fedssd.run("fedavg", **{**QUICK, "rounds": 5}, evaluate_every=2, evaluate_local=False)
    assert [line.number for line in result.rounds if line.accuracy is not None] == [2, 4, 5]
    assert result.rounds[-1].local_accuracy is None


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "compare"])
def test_an_interrupt_ends_soon_and_keeps_the_rounds(command: str, tmp_path: Path) -> None:
    """Where the program alone hears it; as a terminal sends it, it is in ``test_commands``."""
    out = tmp_path / "out"
    keys = ["--data", "digits", "--rounds", "500", "--auxiliary", "8", "--out", str(out)]
    extra = ["--methods", "fedavg,fedprox", "--seeds", "0,1", "--workers", "2"] if command == "compare" else []
    process = subprocess.Popen(
        [sys.executable, "-m", "fedssd", command, *keys, *extra],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    records: list[Path] = []
    limit = time.monotonic() + 60
    while time.monotonic() < limit and not any(p.read_text().count("\n") > 2 for p in records):
        records = list(out.rglob("rounds.jsonl")) if out.exists() else []
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert str(out) in said
    for record in records:
        for line in record.read_text().splitlines():
            json.loads(line)


def test_seconds_of_compiling_are_not_counted_as_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that says of each first round that half a millisecond of it went into preparing."""
    train = VectorisedEngine.train

    def slow_at_first(self: VectorisedEngine, jobs: Sequence[Job]) -> list[Trained]:
        self.prepared = 0.0005
        return train(self, jobs)

    monkeypatch.setattr(VectorisedEngine, "train", slow_at_first)
    first, second = fedssd.run("fedavg", **QUICK, engine="vectorised").rounds
    assert first.seconds.keys() == {"server", "train", "evaluate", "prepare"}
    assert first.seconds["prepare"] == 0.0005
    assert second.seconds.keys() == {"server", "train", "evaluate"}
