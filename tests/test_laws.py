"""What must hold whatever the numbers: laws of the methods, of the round, and mistakes made impossible."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import Plain
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Batch, Local, Method, Server, Work
from fedssd.core.net import Net, Outputs, load_weights, weights_of
from fedssd.core.plan import Schedule
from fedssd.core.round import ClientStore, close_round, first_memory, first_state, open_round, shares, traffic
from fedssd.core.tree import Tree
from fedssd.engines.base import Job, World
from fedssd.engines.reference import ReferenceEngine
from fedssd.methods.fedcurv import FedCurv
from fedssd.methods.fedntd import FedNTD
from fedssd.methods.fedprox import FedProx
from fedssd.methods.fedssd import FedSSD
from fedssd.methods.moon import MOON
from fedssd.methods.registry import LOCALS, without_strength
from fedssd.models import CNN, initial_weights

WITH_STRENGTH = [name for name, kind in LOCALS.items() if kind.strength]
SHARING = [name for name, kind in LOCALS.items() if kind.shares_weights]  # the others: test_distillation_systems.py
Distance = Callable[[Tree, Tree], float]


# ------------------------------------------------------------------------------------------- strength


@pytest.mark.quick
@pytest.mark.parametrize("name", [name for name in WITH_STRENGTH if name in SHARING])
def test_strength_zero_is_fedavg_bit_for_bit(scene: Any, fedavg: list[Any], distance: Distance, name: str) -> None:
    local = LOCALS[name](**{LOCALS[name].strength: 0.0})
    for mine, plain in zip(scene.ours(local), fedavg, strict=True):
        assert distance(mine.state.weights, plain.state.weights) == 0.0


@pytest.mark.quick
def test_every_method_but_fedavg_has_a_strength_that_is_not_zero_by_default() -> None:
    """A default of 0 would silently be FedAvg."""
    assert set(WITH_STRENGTH) == set(LOCALS) - {"fedavg", "scaffold"}  # SCAFFOLD has no strength to set
    for name in WITH_STRENGTH:
        assert getattr(LOCALS[name](), LOCALS[name].strength) > 0
        assert without_strength(LOCALS[name]()) == []
        assert without_strength(LOCALS[name](**{LOCALS[name].strength: 0.0})) == [name]
        for values in LOCALS[name].published.values():
            assert values[LOCALS[name].strength] > 0


@pytest.mark.quick
@pytest.mark.parametrize("name", SHARING)
def test_defaults_are_not_fedavg(scene: Any, fedavg: list[Any], distance: Distance, name: str) -> None:
    """With default options every method moves the weights somewhere else than FedAvg (FedSSD a little)."""
    moved = distance(scene.ours(LOCALS[name]())[-1].state.weights, fedavg[-1].state.weights)
    assert (moved == 0) == (name == "fedavg")


# ------------------------------------------------------------------------------------------- MOON, FedNTD, FedProx


@pytest.mark.quick
@pytest.mark.parametrize("batch_norm", [False, True])
def test_moons_first_round_adds_no_gradient(scenes: Callable[..., Any], distance: Distance, batch_norm: bool) -> None:
    scene = scenes(batch_norm=batch_norm)
    mine, plain = scene.ours(MOON(mu=50.0)), scene.ours(Local())
    assert distance(mine[0].state.weights, plain[0].state.weights) == 0.0
    assert distance(mine[1].state.weights, plain[1].state.weights) > 1e-3


@pytest.mark.quick
def test_moon_stays_finite_when_features_vanish() -> None:
    """A ReLU network may give a zero feature vector, whose direction does not exist."""
    features = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    other = {"global": torch.ones(2, 3, dtype=torch.float64), "previous": torch.zeros(2, 3, dtype=torch.float64)}
    for known in (0.0, 1.0):
        value = MOON().penalty(Outputs(features, features), None, other, {}, {}, {"known": torch.tensor(known)})  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(value.sum(), features)
        assert bool(torch.isfinite(value).all())
        assert bool(torch.isfinite(gradient).all())


@given(seed=st.integers(0, 2**31), classes=st.integers(2, 6), shift=st.floats(-50, 50))
@settings(max_examples=60, deadline=None)
def test_fedntd_ignores_the_true_class(seed: int, classes: int, shift: float) -> None:
    """Neither the teacher's nor the student's logit of the true class matters, and it gets no gradient."""
    source = torch.Generator().manual_seed(seed)
    student, teacher = torch.randn(2, 5, classes, generator=source, dtype=torch.float64)
    y = torch.randint(classes, (5,), generator=source)
    true = F.one_hot(y, classes).to(torch.float64)
    batch = Batch(student, y, torch.ones(5), torch.tensor(5.0))

    def value(own: Tensor, other: Tensor) -> Tensor:
        return FedNTD(beta=2.0, temperature=1.5).penalty(Outputs(own, own), batch, {"logits": other}, {}, {}, {})

    student.requires_grad_(True)
    (gradient,) = torch.autograd.grad(value(student, teacher).sum(), student)
    assert bool(torch.isfinite(gradient).all())
    assert float((gradient * true).abs().max()) == 0.0
    torch.testing.assert_close(value(student, teacher + shift * true), value(student, teacher), rtol=0, atol=0)
    torch.testing.assert_close(value(student + shift * true, teacher), value(student, teacher), rtol=0, atol=1e-12)


@pytest.mark.quick
def test_fedprox_squares_the_norm() -> None:
    """μ/2 · (3² + 4²) = 0.2/2 · 25, and the gradient is μ (w − w_g)."""
    params = {"a": torch.tensor([3.0]), "b": torch.tensor([5.0])}
    sent = {"weights": {"params": {"a": torch.tensor([0.0]), "b": torch.tensor([1.0])}, "buffers": {}}}
    active = {name: value.requires_grad_(True) for name, value in params.items()}
    out = Outputs(torch.zeros(1, 2), torch.zeros(1, 2))
    value = FedProx(mu=0.2).penalty(out, None, {}, active, sent, {})  # type: ignore[arg-type]
    assert value.item() == pytest.approx(2.5)
    a, b = torch.autograd.grad(value, list(active.values()))
    assert (a.item(), b.item()) == pytest.approx((0.6, 0.8))


# ------------------------------------------------------------------------------------------- FedCurv


def test_fedcurv_does_not_depend_on_the_order_of_clients_in_a_cohort(scene: Any, distance: Distance) -> None:
    """The reference code that aliases its sums shrinks the penalty client by client; here only rounding may differ."""
    forward = scene.ours(FedCurv(lam=0.3))
    backward = scene.but(cohorts=[cohort[::-1] for cohort in scene.task.cohorts]).ours(FedCurv(lam=0.3))
    for cohort, one, other in zip(scene.task.cohorts, forward, backward, strict=True):
        assert distance(one.state.weights, other.state.weights) <= 1e-13
        assert distance(one.state.local, other.state.local) <= 1e-13
        for place in range(len(cohort)):
            last = len(cohort) - 1 - place
            assert distance(tree.row(one.trained.local, place), tree.row(other.trained.local, last)) <= 1e-13


def test_fedcurv_does_not_depend_on_the_clients_numbers(scenes: Callable[..., Any], distance: Distance) -> None:
    """With full batches a client's number only shuffles sums: renumbering everybody changes nothing."""
    scene = scenes(batch=64)
    renumber = [4, 2, 0, 5, 1, 3]  # the client that was i is renumber[i]
    clients = [scene.task.clients[renumber.index(new)] for new in range(len(renumber))]
    cohorts = [sorted(renumber[client] for client in cohort) for cohort in scene.task.cohorts]
    one, other = scene.ours(FedCurv(lam=0.3)), scene.but(clients=clients, cohorts=cohorts).ours(FedCurv(lam=0.3))
    assert distance(one[-1].state.weights, other[-1].state.weights) <= 1e-12


def test_fedcurvs_server_sums_are_the_sums_of_the_clients_last_memories(scene: Any) -> None:
    for mine in scene.ours(FedCurv(lam=0.3)):
        for kind in ("fisher", "fisher_weights"):
            for name, total in mine.state.local[kind].items():
                expected = sum(memory[kind][name] for memory in mine.memories.values())
                torch.testing.assert_close(total, expected, rtol=0, atol=1e-13)


@pytest.mark.quick
def test_fedcurvs_first_round_is_fedavg(scene: Any, fedavg: list[Any], distance: Distance) -> None:
    mine = scene.ours(FedCurv(lam=10.0))
    assert distance(mine[0].state.weights, fedavg[0].state.weights) == 0.0


# ------------------------------------------------------------------------------------------- aggregation


@pytest.mark.quick
def test_aggregation_does_not_depend_on_reply_order(scene: Any, fedavg: list[Any]) -> None:
    trained = fedavg[0].trained
    share = shares(trained.work)
    net, weights = Net(scene.model), weights_of(scene.model)
    straight, _ = Server().combine(net, weights, {}, trained.got, share, trained.work, None)
    for order in ([2, 0, 1], [1, 0, 2], [2, 1, 0]):
        got = tree.map_tree(lambda leaf, order=order: leaf[order], trained.got)
        work = Work(*(part[order] for part in trained.work))
        other, _ = Server().combine(net, weights, {}, got, share[order], work, None)
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
    found, _ = Server().combine(None, one, {}, tree.stack([one] * clients), share, None, None)  # type: ignore[arg-type]
    torch.testing.assert_close(found["params"]["a"], one["params"]["a"], rtol=1e-14, atol=0)


# ------------------------------------------------------------------------------------------- bytes


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
    world = World(torch.rand(count, 3, 32, 32), torch.arange(count), *[torch.zeros(0)] * 2, 10, Plain())
    auxiliary, measured = Auxiliary(world.x, world.y), {}
    for name in ("fedavg", "fedssd", "scaffold", "fedcurv", "fd"):
        method, clients, rows = Method(LOCALS[name]()), [0, 1], list(torch.arange(count).split(3))
        state, store, engine = first_state(method, weights), ClientStore(2), ReferenceEngine(net, world, Schedule(1, 3))
        for round_ in range(2):  # in the first nobody has said anything yet
            sent = open_round(net, method, state, auxiliary)
            memories = store.get(clients, first_memory(method, state, sent))
            (trained,) = engine.train([Job(method, sent, 0, round_, clients, rows, memories)])
            store.put(clients, trained.memories)
            state = close_round(net, method, state, trained, 2, auxiliary)
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
