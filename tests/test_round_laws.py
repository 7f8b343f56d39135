"""What must hold of a round whatever the method: how clients count, mistakes made impossible, the same run twice."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import Distance, just
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.contract import Local, Server, Work
from fedssd.core.net import Net, load_weights, weights_of
from fedssd.core.round import shares
from fedssd.methods.fedprox import FedProx
from fedssd.methods.fedssd import FedSSD
from fedssd.methods.registry import LOCALS
from fedssd.models import initial_weights

# ------------------------------------------------------------------------------------------- aggregation


@pytest.mark.quick
def test_aggregation_does_not_depend_on_reply_order(scene: Any, fedavg: list[Any]) -> None:
    trained = fedavg[0].trained
    share = shares(trained.work)
    net, weights = Net(scene.model), weights_of(scene.model)
    straight, _ = Server().combine(net, weights, {}, trained.got, just(share, trained.work))
    for order in ([2, 0, 1], [1, 0, 2], [2, 1, 0]):
        got = tree.map_tree(lambda leaf, order=order: leaf[order], trained.got)
        work = Work(*(part[order] for part in trained.work))
        other, _ = Server().combine(net, weights, {}, got, just(share[order], work))
        for a, b in zip(tree.leaves(straight), tree.leaves(other), strict=True):
            assert float((a - b).abs().max()) <= 1e-15 * max(1.0, float(a.abs().max()))


@pytest.mark.quick
def test_one_client_is_plain_sgd(scene: Any) -> None:
    """A federation of one, three rounds: torch.optim.SGD on the same batches, its momentum cleared each round."""
    alone = scene.but(cohorts=[[3]] * 3)
    model = copy.deepcopy(scene.model)
    for round_ in range(3):
        optimiser = torch.optim.SGD(
            model.parameters(), lr=alone.task.lr, momentum=alone.task.momentum, weight_decay=alone.task.weight_decay
        )
        for position in alone.task.batches(round_, 3):
            rows = alone.task.clients[3][position]
            optimiser.zero_grad()
            F.cross_entropy(model(alone.task.x[rows])[0], alone.task.y[rows]).backward()
            optimiser.step()
    found = alone.ours(Local())[-1].state.weights["params"]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.detach(), rtol=0, atol=1e-13)


@given(clients=st.integers(1, 6), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_equal_clients_mean_is_the_client(clients: int, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    one = {"params": {"a": torch.randn(3, 2, generator=source, dtype=torch.float64)}, "buffers": {}}
    samples = torch.randint(1, 500, (clients,), generator=source).to(torch.float64)
    share = shares(Work(samples, samples, samples))
    found, _ = Server().combine(None, one, {}, tree.stack([one] * clients), just(share))  # type: ignore[arg-type]
    torch.testing.assert_close(found["params"]["a"], one["params"]["a"], rtol=1e-14, atol=0)


# ------------------------------------------------------------------------------------------- known mistakes


@pytest.mark.quick
def test_batch_norm_buffers_are_the_weighted_mean_not_the_first_clients(scenes: Callable[..., Any]) -> None:
    scene = scenes(batch_norm=True)
    first = scene.ours(Local())[0]
    sizes = [len(scene.task.clients[client]) for client in scene.task.cohorts[0]]
    for name in ("norm.running_mean", "norm.running_var"):
        local = first.trained.local["buffers"][name]
        expected = sum(size * row for size, row in zip(sizes, local, strict=True)) / sum(sizes)
        torch.testing.assert_close(first.state.weights["buffers"][name], expected, rtol=1e-13, atol=0)
        assert float((expected - local[0]).abs().max()) > 1e-3
        assert float((local[0] - local[1]).abs().max()) > 1e-3


@pytest.mark.quick
def test_num_batches_tracked_is_in_no_tree(scenes: Callable[..., Any]) -> None:
    scene = scenes(batch_norm=True)
    assert any(key.endswith("num_batches_tracked") for key in scene.model.state_dict())
    last = scene.ours(Local())[-1]
    for part in (last.sent, last.trained.got, last.state.weights):
        assert not [key for key in tree.flatten(part) if key.endswith("num_batches_tracked")]


@pytest.mark.quick
def test_shares_count_samples_not_batches(fedavg: list[Any]) -> None:
    """Clients of 13, 9 and 17 samples make 8, 6 and 10 steps; their shares are n/39."""
    work = fedavg[0].trained.work
    assert work.samples.tolist() == [13, 9, 17]
    assert work.steps.tolist() == [8, 6, 10]
    torch.testing.assert_close(shares(work), torch.tensor([13, 9, 17], dtype=torch.float64) / 39, rtol=1e-15, atol=0)


@pytest.mark.quick
@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_client_below_the_batch_size_trains(scenes: Callable[..., Any], batch_norm: bool) -> None:
    """Also where partial batches are dropped: three samples, two epochs, two steps."""
    scene = scenes(batch_norm=batch_norm)
    second = scene.ours(Local())[1]
    place = scene.task.cohorts[1].index(2)
    assert float(second.trained.work.steps[place]) == 2
    moved = tree.subtract(tree.row(second.trained.local, place), second.sent["weights"])
    assert all(float(leaf.abs().max()) > 0 for leaf in tree.leaves(moved["params"]))


@pytest.mark.quick
@pytest.mark.parametrize("name", ["fedcurv", "moon"])
def test_memories_do_not_start_at_random_or_alias(scene: Any, name: str) -> None:
    """Nothing that was handed in is changed in place: weights, what was sent, the memories of other clients."""
    local = LOCALS[name]()
    before = copy.deepcopy(weights_of(scene.model))
    rounds = scene.ours(local)
    assert all(
        bool((a == b).all()) for a, b in zip(tree.leaves(before), tree.leaves(rounds[0].sent["weights"]), strict=True)
    )
    again = scene.but(cohorts=scene.task.cohorts[:2]).ours(local)
    for one, other in zip(rounds, again, strict=False):
        for a, b in zip(tree.leaves(one.sent), tree.leaves(other.sent), strict=True):
            assert torch.equal(a, b)
    never = rounds[-1].memories[5]
    if name == "fedcurv":
        assert all(float(leaf.abs().max()) == 0 for leaf in tree.leaves(never))
    else:
        assert float(never["known"]) == 0


# ------------------------------------------------------------------------------------------- repetition


@pytest.mark.quick
@pytest.mark.parametrize("name", LOCALS)
def test_the_same_seed_twice_is_bit_identical(scenes: Callable[..., Any], name: str) -> None:
    one, other = scenes().ours(LOCALS[name]()), scenes().ours(LOCALS[name]())
    for a, b in zip(tree.leaves(one[-1].trained.local), tree.leaves(other[-1].trained.local), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(tree.leaves(one[-1].state.weights), tree.leaves(other[-1].state.weights), strict=True):
        assert torch.equal(a, b)


@pytest.mark.quick
def test_another_seed_is_another_run(scene: Any, distance: Distance) -> None:
    other = replace(scene, seed=scene.seed + 1)
    assert distance(scene.ours(Local())[-1].state.weights, other.ours(Local())[-1].state.weights) > 1e-6


class Wide(nn.Module):
    """Wide enough (40,960 numbers in a layer) for torch to cut its sums and products among threads."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(5, 8192), nn.Linear(8192, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.hidden(x))
        return self.head(features), features


def test_thread_count_moves_weights_by_no_more_than_rounding(scene: Any, distance: Distance) -> None:
    model = load_weights(Wide().double(), initial_weights(Wide().double(), 0))
    wide = replace(scene.but(lr=0.01, cohorts=scene.task.cohorts[:1]), model=model)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(wide.ours(FedSSD(m_max=1.0) + FedProx(mu=0.5))[-1].state.weights)
    finally:
        torch.set_num_threads(before)
    assert distance(*found) <= 1e-12
