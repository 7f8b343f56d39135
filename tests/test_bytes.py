"""How many bytes a round sends each way, by arithmetic on what each method needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import SHARING, Plain

from fedssd.core.contract import Auxiliary, Method
from fedssd.core.engine import Job, World
from fedssd.core.net import Net, weights_of
from fedssd.core.plan import Schedule
from fedssd.core.round import ClientStore, Rounds, traffic
from fedssd.engines.reference import ReferenceEngine
from fedssd.methods.fedcurv import FedCurv
from fedssd.methods.fedssd import FedSSD
from fedssd.methods.registry import LOCALS
from fedssd.models import CNN


def model_bytes(scene: Any) -> int:
    """float64: eight bytes a number."""
    return 8 * sum(parameter.numel() for parameter in scene.model.parameters())


@pytest.mark.quick
@pytest.mark.parametrize("name", SHARING)
def test_bytes_up_and_down(scene: Any, name: str) -> None:
    """In model sizes a client and round: 1 up and 1 down; FedSSD K² floats more down, FedCurv w, F and F⊙w each way,
    SCAFFOLD 2 each way, FedGKD a second model down."""
    first, clients, one = scene.ours(LOCALS[name]())[0], 3, model_bytes(scene)
    up, down = traffic(first.sent, first.trained)
    classes = scene.task.classes
    models_more = {"fedcurv": (2, 2), "scaffold": (1, 1), "fedgkd": (0, 1)}.get(name, (0, 0))
    floats_more = {"fedssd": classes**2, "fedcad": classes}.get(name, 0)
    assert up == clients * one * (1 + models_more[0])
    assert down == clients * (one * (1 + models_more[1]) + 8 * floats_more)


@pytest.mark.quick
def test_bytes_measured_with_the_paper_s_cnn() -> None:
    """62,006 float32 numbers. FedSSD stays within 1 % of FedAvg and SCAFFOLD has 2×, as the paper says. FedCurv needs
    w, F and F⊙w each way, 3×, where the paper quotes 2× and 2.5×. FD sends K² + K numbers, 564 times fewer.
    """
    module = CNN((3, 32, 32), 10)
    net, weights, count = Net(module), weights_of(module), 6
    rounds = Rounds(net)
    world = World(torch.rand(count, 3, 32, 32), torch.arange(count), *[torch.zeros(0)] * 2, 10, Plain())
    auxiliary, measured = Auxiliary(world.x, world.y), {}
    for name in ("fedavg", "fedssd", "scaffold", "fedcurv", "fd"):
        method, clients, rows = Method(LOCALS[name]()), [0, 1], list(torch.arange(count).split(3))
        state, store, engine = (
            rounds.first_state(method, weights),
            ClientStore(2),
            ReferenceEngine(net, world, Schedule(1, 3)),
        )
        for round_ in range(2):  # in the first nobody has said anything yet
            sent = rounds.open(method, state, auxiliary)
            memories = store.get(clients, rounds.first_memory(method, state, sent))
            (trained,) = engine.train([Job(method, sent, 0, round_, clients, rows, memories)])
            store.put(clients, trained.memories)
            state = rounds.close(method, state, trained, 2, auxiliary)
        measured[name] = traffic(sent, trained)
    one = 2 * 4 * 62_006
    assert measured["fedavg"] == (one, one)
    assert measured["fedssd"] == (one, one + 2 * 4 * 100)
    assert measured["fedssd"][1] <= 1.01 * one
    assert measured["scaffold"] == (2 * one, 2 * one)
    assert measured["fedcurv"] == (3 * one, 3 * one)
    assert measured["fd"] == (2 * 4 * 110, 2 * 4 * 110)
    assert all(500 * mine < theirs for mine, theirs in zip(measured["fd"], measured["fedavg"], strict=True))


@pytest.mark.quick
def test_bytes_of_a_sum_are_the_parts_together(scene: Any) -> None:
    first, one = scene.ours(FedSSD() + FedCurv())[0], model_bytes(scene)
    assert traffic(first.sent, first.trained) == (3 * 3 * one, 3 * (3 * one + 8 * scene.task.classes**2))
