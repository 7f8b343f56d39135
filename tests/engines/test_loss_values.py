"""Cross-entropy, FedSSD's terms, cosines, means and confusion counts against PyTorch in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_values import (
    CUDA,
    DEVICE,
    FP32,
    classes,
    drawn,
    error,
    exact,
    few,
    models,
    no_context,
    poison,  # noqa: F401  # a fixture that all use
)
from torch.nn import functional as F

pytest.importorskip("triton", reason="the kernels are written in Triton")

from fedssd.engines.kernels import loss

pytestmark = no_context


@few
@given(models, st.integers(1, 300), classes)
def test_cross_entropy(count: int, batch: int, k: int) -> None:
    torch.manual_seed(batch)
    logits, y = 5 * drawn(count, batch, k), torch.randint(0, k, (count, batch), device=DEVICE)
    (logits64,) = exact(logits)
    expected = F.cross_entropy(logits64.flatten(0, 1), y.flatten(), reduction="none").view(count, batch)
    slope = torch.randn_like(expected)
    expected.backward(slope)
    found, probability = loss.entropy(logits, y)
    assert error(found, expected.detach()) <= FP32
    assert error(loss.entropy_gradient(probability, y, slope.float()), logits64.grad) <= FP32


@pytest.mark.parametrize("lead", [0.0, 1.0, 15.0, 40.0])
def test_cross_entropy_of_a_sure_model_keeps_its_digits(lead: float) -> None:
    logits, y = torch.tensor([[[lead, 0.0, 0.0]]], device=DEVICE), torch.zeros(1, 1, dtype=torch.int64, device=DEVICE)
    rest = 2 * math.exp(-lead)
    found, probability = loss.entropy(logits, y)
    assert float(found) == pytest.approx(math.log1p(rest), rel=FP32)
    by_label = loss.entropy_gradient(probability, y, torch.ones(1, 1, device=DEVICE))[0, 0, 0]
    assert float(by_label) == pytest.approx(-rest / (1 + rest), rel=FP32)


@few
@given(models, st.integers(1, 300), classes, st.booleans(), st.booleans())
def test_weighted_square(count: int, batch: int, k: int, inside: bool, mean: bool) -> None:
    torch.manual_seed(batch)
    parts = drawn(count, batch, k), drawn(count, batch, k), torch.rand(count, batch, k, device=DEVICE)
    scale = torch.rand(count, device=DEVICE)
    z, t, w, s = exact(*parts, scale)
    by_class = s[:, None, None] * w
    terms = (by_class.square() if inside else by_class) * (t - z).square()
    expected = terms.mean(-1) if mean else terms.sum(-1)
    slope = torch.randn_like(expected)
    expected.backward(slope)
    assert error(loss.weighted_square(*parts, scale, inside, mean), expected.detach()) <= FP32
    found = loss.weighted_square_gradient(*parts, scale, slope.float(), inside, mean)
    assert error(found, z.grad) <= FP32


@few
@given(models, st.integers(1, 300), st.integers(2, 128 if CUDA else 12), st.booleans())
def test_distillation_weights(count: int, batch: int, k: int, shared: bool) -> None:
    torch.manual_seed(batch)
    logits, y = 3 * drawn(count, batch, k), torch.randint(0, k, (count, batch), device=DEVICE)
    matrix = torch.rand(1 if shared else count, k, k, device=DEVICE).softmax(-1)
    matrix = (matrix + 2 * torch.eye(k, device=DEVICE)) / 3  # rows of one, the diagonal the largest
    floor, exponent = 0.1 * torch.rand(count, device=DEVICE), torch.randint(0, 3, (count,), device=DEVICE) / 2
    found = loss.distillation_weights(logits, y, matrix.expand(count, k, k), floor, exponent)
    expected = torch.zeros(count, batch, k, dtype=torch.float64, device=DEVICE)
    for m in range(count):
        own = matrix[0 if shared else m].double()
        rivals = own.masked_fill(torch.eye(k, dtype=torch.bool, device=DEVICE), 0).amax(0)
        p = logits[m].double().softmax(-1)[torch.arange(batch, device=DEVICE), y[m]]
        by_sample = 1 - (1 - p) ** exponent[m].double()
        expected[m] = (by_sample[:, None] * own.diagonal() * (1 - rivals) - floor[m].double()).clamp(min=0)
    assert (found - expected).abs().max() <= FP32  # weights lie between 0 and 1
    mean, active = loss.shares(found)
    assert error(mean, found.double().mean(-1)) <= FP32
    assert torch.equal(torch.round(active * k), (found > 0).sum(-1).float())


@pytest.mark.parametrize("lead", [0.0, 1.0, 15.0, 40.0])
def test_the_weight_of_a_sure_teacher_keeps_its_digits(lead: float) -> None:
    """Of two classes, at half a power: 1 - M_sample is the square root of what is left of the probability."""
    logits, y = torch.tensor([[[lead, 0.0]]], device=DEVICE), torch.zeros(1, 1, dtype=torch.int64, device=DEVICE)
    half, none = torch.full((1,), 0.5, device=DEVICE), torch.zeros(1, device=DEVICE)
    found = loss.distillation_weights(logits, y, torch.eye(2, device=DEVICE)[None], none, half)
    left = math.exp(-lead) / (1 + math.exp(-lead))
    assert found.flatten().tolist() == pytest.approx([1 - math.sqrt(left)] * 2, abs=FP32)


@few
@given(models, st.integers(1, 300), st.integers(1, 3), st.booleans())
def test_the_mean_of_a_loss(count: int, batch: int, others: int, expanded: bool) -> None:
    torch.manual_seed(batch)
    mask = (torch.rand(count, batch, device=DEVICE) < 0.7).float()
    mask[0] = 0  # a client that is done
    terms = [drawn(count, batch) for _ in range(1 + others)]
    terms.insert(1, drawn(count, 1).expand(count, batch) if expanded else drawn(count, batch))
    terms[0][mask == 0] = float("nan")  # what does not count may be anything
    known = [term.double().masked_fill(mask == 0, 0) for term in terms]
    number = mask.double().sum(1)
    value, sums = loss.mean_loss(mask, *terms[:4])
    # By size of the terms, not of a sum that may cancel.
    assert (value - (known[0] + known[1]).sum(1) / number.clamp(min=1)).abs().max() <= 20 * FP32
    expected = torch.stack([*(term.sum(1) for term in known[:4]), number], 1)
    assert (sums - expected).abs().max() <= FP32 * max(float(term.abs().sum(1).max()) for term in known) + 0
    slope = drawn(count)
    found = loss.mean_loss_gradient(mask, sums, slope)
    assert error(found, slope.double()[:, None] * mask.double() / number.clamp(min=1)[:, None]) <= FP32


@few
@given(models, st.integers(1, 300), st.integers(1, 300 if CUDA else 20))
def test_cosine(count: int, batch: int, size: int) -> None:
    torch.manual_seed(batch)
    a, b = drawn(count, batch, size), drawn(count, batch, size)
    a[0, 0] = 0  # without a direction
    a64, b64 = exact(a, b)
    expected = F.cosine_similarity(a64, b64, dim=-1)
    slope = torch.randn_like(expected)
    slope[0, 0] = 0  # its gradient has the size of 1 / eps
    expected.backward(slope)
    assert (loss.cosine(a, b, 1e-8) - expected.detach()).abs().max() <= FP32
    scale = (slope[..., None] / a64.detach().norm(dim=-1, keepdim=True).clamp(min=1e-8)).abs().max()
    assert (loss.cosine_gradient(a, b, slope.float(), 1e-8) - a64.grad).abs().max() <= FP32 * max(1.0, float(scale))


@few
@given(models, st.integers(1, 300), classes)
def test_confusion_counts(count: int, batch: int, k: int) -> None:
    torch.manual_seed(batch)
    logits, y = drawn(count, batch, k), torch.randint(0, k, (batch,), device=DEVICE)
    logits[0, 0, k - 1] = float("nan")
    found, called = loss.confusion_counts(logits, y), logits.argmax(-1)
    expected = torch.zeros(count, k * k, dtype=torch.int64, device=DEVICE)
    expected.scatter_add_(1, y * k + called, torch.ones_like(called))
    assert torch.equal(found.to(torch.int64), expected.view(count, k, k))
