"""SCAFFOLD, FedGKD, FedNova, IDA and FedDF against witnesses from their papers on both engines, and their laws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import witness
import witness_rivals
from conftest import just, make_scene
from torch import Tensor
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.contract import Local, Server
from fedssd.methods.fedgkd import FedGKD
from fedssd.methods.scaffold import Scaffold
from fedssd.methods.servers.feddf import FedDF
from fedssd.methods.servers.fednova import FedNova
from fedssd.methods.servers.ida import IDA

TOLERANCE = 1e-10
Averaged = dict[float, dict[str, Tensor]]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "batch-norm"])
def scene(request: pytest.FixtureRequest) -> Any:
    return make_scene(batch_norm=request.param)


@pytest.fixture(scope="module")
def averaged(scene: Any) -> Averaged:
    """What FedAvg comes to there, by momentum."""
    return {momentum: ours(scene.but(momentum=momentum)) for momentum in (0.0, 0.9)}


@pytest.fixture(params=["reference", "vectorised"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ours(
    scene: Any, local: Local | None = None, server: Server | None = None, engine: str = "reference"
) -> dict[str, Tensor]:
    weights = scene.ours(local or Local(), server, engine)[-1].state.weights
    return {**weights["params"], **weights["buffers"]}


def furthest(found: dict[str, Tensor], state: dict[str, Tensor]) -> float:
    expected = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    assert found.keys() == expected.keys()
    return max(float((found[key] - expected[key]).abs().max()) for key in expected)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_scaffold_equals_its_witness(scene: Any, averaged: Averaged, engine: str, momentum: float) -> None:
    scene = scene.but(momentum=momentum)
    found = ours(scene, Scaffold(), engine=engine)
    assert furthest(found, witness_rivals.scaffold(scene.model, scene.task)) <= TOLERANCE
    assert furthest(found, averaged[scene.task.momentum]) > 1e-4  # and it is not FedAvg


@pytest.mark.parametrize(("temperature", "models"), [(1.0, 5), (2.0, 2), (1.0, 1)])
def test_fedgkd_equals_its_witness(
    scene: Any, averaged: Averaged, engine: str, temperature: float, models: int
) -> None:
    found = ours(scene, FedGKD(1.5, temperature, models), engine=engine)
    assert furthest(found, witness_rivals.fedgkd(scene.model, scene.task, 1.5, temperature, models)) <= TOLERANCE
    assert furthest(found, averaged[scene.task.momentum]) > 1e-4


@pytest.mark.parametrize("weighting", ["samples", "equal"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_equals_its_witness(
    scene: Any, averaged: Averaged, engine: str, weighting: str, momentum: float
) -> None:
    scene = scene.but(momentum=momentum)
    found = ours(scene, server=FedNova(weighting), engine=engine)
    assert furthest(found, witness_rivals.fednova(scene.model, scene.task, weighting)) <= TOLERANCE
    assert furthest(found, averaged[scene.task.momentum]) > 1e-4


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("by_samples", [False, True])
def test_ida_equals_its_witness(scene: Any, averaged: Averaged, engine: str, norm: int, by_samples: bool) -> None:
    found = ours(scene, server=IDA(norm, by_samples), engine=engine)
    assert furthest(found, witness_rivals.ida(scene.model, scene.task, norm, by_samples)) <= TOLERANCE
    assert furthest(found, averaged[scene.task.momentum]) > 1e-4


def test_feddf_equals_its_witness(scene: Any, averaged: Averaged, engine: str) -> None:
    server = FedDF(lr=0.01, steps=7, batch=8)
    rows: Callable[[int], Tensor] = lambda step: server._rows(step, len(scene.task.auxiliary_y))  # noqa: E731
    found = ours(scene, server=server, engine=engine)
    assert furthest(found, witness_rivals.feddf(scene.model, scene.task, 0.01, 7, rows)) <= TOLERANCE
    assert furthest(found, averaged[scene.task.momentum]) > 1e-4


def test_feddf_visits_every_sample_once_a_pass() -> None:
    server = FedDF(batch=5)
    seen = torch.cat([server._rows(step, 20) for step in range(4)])
    assert sorted(seen.tolist()) == list(range(20))


def test_scaffold_variate_is_the_gradient_after_one_full_batch_step() -> None:
    """Whatever c and c_i were before: c_i⁺ = ∇L_i(w_g)."""
    scene = make_scene(batch=64, epochs=1).but(momentum=0.0, weight_decay=0.0, cohorts=[[0, 1, 3], [0, 1, 3]])
    rounds = scene.ours(Scaffold())
    before, after = rounds[0].state.weights, rounds[1].memories
    for client in (0, 1, 3):
        model = scene.model
        model.load_state_dict(before["params"])
        model.zero_grad()
        rows = scene.task.clients[client]
        F.cross_entropy(model(scene.task.x[rows])[0], scene.task.y[rows]).backward()
        for name, parameter in model.named_parameters():
            assert torch.allclose(after[client]["variate"][name], parameter.grad, rtol=0, atol=1e-12)


def test_scaffold_server_variate_is_the_mean_of_all_clients() -> None:
    last = make_scene().ours(Scaffold())[-1]
    mean = tree.map_tree(lambda *c: sum(c) / len(c), *[memory["variate"] for memory in last.memories.values()])
    for a, b in zip(tree.leaves(last.state.local["variate"]), tree.leaves(mean), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


def test_fednova_with_equal_steps_is_fedavg() -> None:
    scene = make_scene()
    rows = [client[:6] for client in scene.task.clients if len(client) >= 6]
    task = replace(scene.task, clients=rows, cohorts=[[0, 1, 2], [1, 2, 3]])
    equal = replace(scene, task=task)
    assert furthest(ours(equal, server=FedNova()), ours(equal)) <= 1e-12


def test_ida_with_equal_distances_is_the_plain_mean() -> None:
    apart = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], dtype=torch.float64) + 3
    got = {"params": {"w": apart}, "buffers": {}}
    share = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64)
    found, _ = IDA().combine(None, {}, {}, got, just(share))  # type: ignore[arg-type]
    assert torch.allclose(found["params"]["w"], torch.tensor([3.0, 3.0], dtype=torch.float64), atol=1e-12)
    same = {"params": {"w": torch.ones(3, 2)}, "buffers": {}}
    found, _ = IDA().combine(None, {}, {}, same, just(torch.ones(3) / 3))  # type: ignore[arg-type]
    assert torch.equal(found["params"]["w"], torch.ones(2))


def test_the_witnesses_agree_with_each_other_on_fedavg() -> None:
    """FedGKD at strength 0 in one witness file is FedAvg in the other."""
    scene = make_scene()
    plain = witness.train({"fedavg": {}}, scene.model, scene.task)[-1].global_state
    assert furthest(dict(plain), witness_rivals.fedgkd(scene.model, scene.task, 0.0, 1.0, 3)) <= 1e-12
