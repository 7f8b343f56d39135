"""What must hold of the methods whatever the numbers: their strength, and laws of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import SHARING, Distance
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.contract import Batch, Local
from fedssd.core.net import Outputs
from fedssd.methods.fedcurv import FedCurv
from fedssd.methods.fedntd import FedNTD
from fedssd.methods.fedprox import FedProx
from fedssd.methods.moon import MOON
from fedssd.methods.registry import LOCALS, without_strength

WITH_STRENGTH = [name for name, kind in LOCALS.items() if kind.strength]


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
    batch = Batch(student, y, torch.ones(5), torch.tensor(5.0), torch.bincount(y).float())

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
