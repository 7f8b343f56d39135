"""What must hold of FedSSD whatever the numbers: its credibilities, its weights and what they distil."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import witness
from conftest import Distance
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from fedssd.core.net import Net, weights_of
from fedssd.methods.distillation import credibility_matrix
from fedssd.methods.fedssd import FedSSD, distillation_weights, selective_distillation


@pytest.mark.quick
def test_fedssd_with_an_all_wrong_teacher_is_fedavg(scene: Any, fedavg: list[Any], distance: Distance) -> None:
    net, weights = Net(scene.model), weights_of(scene.model)
    called = net(weights, scene.task.auxiliary_x).logits.argmax(-1)
    wrong = scene.but(auxiliary_y=(called + 1) % scene.task.classes, cohorts=scene.task.cohorts[:1])
    (mine,) = wrong.ours(FedSSD(m_max=100.0))
    assert mine.sent["credibility"].diagonal().abs().max() == 0
    assert distance(mine.state.weights, fedavg[0].state.weights) == 0.0
    assert mine.trained.figures["active"].abs().max() == 0


@pytest.mark.quick
def test_fedssd_without_an_auxiliary_set_says_so() -> None:
    with pytest.raises(ValueError, match="auxiliary"):
        FedSSD().broadcast(None, {}, {}, None)  # type: ignore[arg-type]


@st.composite
def teachers(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits of a teacher and a student, labels, and the credibility matrix of some auxiliary predictions."""
    classes, samples, held = draw(st.integers(2, 6)), draw(st.integers(1, 7)), draw(st.integers(0, 30))
    scale = draw(st.sampled_from([0.01, 1.0, 10.0, 300.0]))
    source = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    teacher, student = scale * torch.randn(2, samples, classes, generator=source, dtype=torch.float64)
    labels = torch.randint(classes, (samples,), generator=source)
    truth = torch.randint(classes, (held,), generator=source)
    guesses = F.one_hot(truth, classes) + draw(st.sampled_from([0.0, 0.7, 3.0])) * torch.randn(
        held, classes, generator=source, dtype=torch.float64
    )
    return teacher, student, labels, credibility_matrix(guesses, truth, classes)


@given(
    classes=st.integers(1, 8),
    pairs=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=60),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=150, deadline=None)
def test_credibility_equals_counting_and_rows_sum_to_one_or_zero(
    classes: int, pairs: list[tuple[int, int]], dtype: torch.dtype
) -> None:
    pairs = [(truth % classes, called % classes) for truth, called in pairs]
    truth = torch.tensor([pair[0] for pair in pairs], dtype=torch.int64)
    logits = torch.zeros(len(pairs), classes, dtype=dtype)
    for i, (_, called) in enumerate(pairs):
        logits[i, called] = 1.0
    matrix = credibility_matrix(logits, truth, classes)
    for k1 in range(classes):
        members = [called for label, called in pairs if label == k1]
        assert float(matrix[k1].sum()) == pytest.approx(1.0 if members else 0.0, abs=1e-6)
        for k2 in range(classes):
            expected = sum(called == k2 for called in members) / len(members) if members else 0.0
            assert float(matrix[k1, k2]) == pytest.approx(expected, abs=1e-7)


@given(given_=teachers(), floor=st.sampled_from([0.0, 0.1, 0.4]), exponent=st.sampled_from([0.5, 1.0, 2.0]))
@settings(max_examples=100, deadline=None)
def test_fedssd_weights_equal_the_loops_and_stay_within_bounds(
    given_: tuple[Tensor, Tensor, Tensor, Tensor], floor: float, exponent: float
) -> None:
    teacher, _, labels, found = given_
    weights = distillation_weights(teacher, labels, found, floor, exponent)
    assert weights.shape == teacher.shape
    assert float(weights.min()) >= 0.0
    assert float(weights.max()) <= 1 - floor
    for b, y in enumerate(labels.tolist()):
        powers = [math.exp(v - float(teacher[b].max())) for v in teacher[b].tolist()]
        probability = min(powers[y] / sum(powers), 1.0)
        for k in range(teacher.shape[1]):
            expected = witness.selective_weight(probability, found, k, floor, exponent)
            # a square root near 0 turns one rounding error into its root
            assert float(weights[b, k]) == pytest.approx(expected, abs=1e-7)


@given(
    given_=teachers(),
    m_max=st.sampled_from([0.0, 0.01, 2.0]),
    square=st.sampled_from(["inside", "outside"]),
    reduction=st.sampled_from(["sum", "mean"]),
)
@settings(max_examples=100, deadline=None)
def test_selective_distillation_equals_the_loops(
    given_: tuple[Tensor, Tensor, Tensor, Tensor], m_max: float, square: str, reduction: str
) -> None:
    teacher, student, labels, found = given_
    student.requires_grad_(True)
    values = selective_distillation(student, teacher, labels, found, m_max, square=square, reduction=reduction)
    assert values.shape == labels.shape
    for b in range(len(labels)):
        one = slice(b, b + 1)
        options = {"m_max": m_max, "square": square, "reduction": reduction}
        expected = witness.fedssd(student[one].detach(), teacher[one], labels[one], found, 1, **options)
        assert float(values[b].detach()) == pytest.approx(float(expected), rel=1e-5, abs=1e-9)


@pytest.mark.quick
def test_fedssds_weights_never_exceed_nine_tenths_of_m_max() -> None:
    """A perfect and certain teacher reaches it: 1 · 1 − 0.1."""
    logits = torch.tensor([[800.0, 0.0], [0.0, 800.0]], dtype=torch.float64)
    labels = torch.tensor([0, 1])
    weights = 0.01 * distillation_weights(logits, labels, torch.eye(2, dtype=torch.float64))
    assert float(weights.max()) <= 0.01 * 0.9
    torch.testing.assert_close(weights, torch.full((2, 2), 0.009, dtype=torch.float64))


@pytest.mark.quick
def test_fedssd_by_hand() -> None:
    """A = [[.8 .2], [.5 .5]], p = .64: M_class = (.4, .4), M_sample = .4, M = m_max · .06 for both classes."""
    found = torch.tensor([[0.8, 0.2], [0.5, 0.5]], dtype=torch.float64)
    teacher = torch.tensor([[math.log(0.64), math.log(0.36)]], dtype=torch.float64)
    student = teacher - torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    label = torch.tensor([0])
    assert float(selective_distillation(student, teacher, label, found, 10.0)) == pytest.approx(0.6**2 * (1 + 4))
    outside = selective_distillation(student, teacher, label, found, 10.0, square="outside", reduction="mean")
    assert float(outside) == pytest.approx(0.6 * (1 + 4) / 2)


@pytest.mark.quick
def test_an_absent_teacher_adds_neither_loss_nor_gradient() -> None:
    student = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    teacher, labels = torch.randn(6, 3, dtype=torch.float64), torch.arange(6) % 3
    values = selective_distillation(student, teacher, labels, torch.zeros(3, 3, dtype=torch.float64), 100.0)
    (gradient,) = torch.autograd.grad(values.sum(), student)
    assert values.abs().max() == 0
    assert gradient.abs().max() == 0


@pytest.mark.quick
def test_no_gradient_flows_into_the_teacher() -> None:
    student, teacher = (torch.randn(4, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    found = torch.eye(3, dtype=torch.float64).requires_grad_(True)
    selective_distillation(student, 20 * teacher, torch.arange(4) % 3, found, 1.0).sum().backward()
    assert student.grad is not None
    assert teacher.grad is None
    assert found.grad is None
