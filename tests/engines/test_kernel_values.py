"""Every kernel against PyTorch in float64, on fresh random inputs, with its outputs poisoned beforehand.

Without an accelerator Triton's interpreter runs them on small shapes; with one, compiled, on shapes up to the limits.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton", reason="the kernels are written in Triton")

from fedssd.data.augment import Pipeline
from fedssd.engines.kernels import augment, convolution, linear, loss, pool, solver

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
FP32, TF32 = 1e-5, 2e-3
few = settings(
    max_examples=8 if CUDA else 6, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
models = st.integers(1, 300 if CUDA else 3)
batches = st.integers(1, 257 if CUDA else 3)
channels = st.integers(1, 32 if CUDA else 5)
units = st.integers(1, 257 if CUDA else 40)


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel does not write stays wrong, and is seen."""

    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*args: object, **kwargs: object) -> Tensor:
            made = make(*args, **kwargs)
            return made.fill_(float("nan") if made.is_floating_point() else 7)

        return call

    for place, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        monkeypatch.setattr(place, name, poisoned(getattr(place, name)))


def error(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    assert found.isfinite().all()
    return float((found.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def exact(*parts: Tensor) -> list[Tensor]:
    return [part.double().detach().requires_grad_() for part in parts]


@few
@given(
    models, batches, channels, channels, st.integers(1, 7), st.integers(0, 5), st.integers(0, 5),
    st.booleans(), st.booleans(), st.booleans(), st.data(),
)  # fmt: skip
def test_convolution_with_relu_and_pool(
    count: int, batch: int, inputs: int, outputs: int, kernel: int, tall: int, wide: int, relu: bool, pools: bool,
    shared: bool, data: st.DataObject,
) -> None:  # fmt: skip
    torch.manual_seed(count)
    kernel = kernel if CUDA else min(kernel, 5)
    count, batch = (min(count, 40), min(batch, 64)) if inputs * outputs * kernel > 500 else (count, batch)
    padding = data.draw(st.integers(0, kernel - 1))
    height, width = kernel + 1 + tall, kernel + 1 + wide
    x = drawn(1 if shared else count, batch, inputs, height, width).expand(count, -1, -1, -1, -1)
    w, bias = drawn(count, outputs, inputs, kernel, kernel), drawn(count, outputs)
    x64, w64, bias64 = exact(x, w, bias)
    plain = torch.stack([F.conv2d(a, b, c, padding=padding) for a, b, c in zip(x64, w64, bias64, strict=True)])
    after = plain.relu() if relu else plain
    expected = F.max_pool2d(after.flatten(0, 1), 2).unflatten(0, (count, batch)) if pools else after
    slope = torch.randn_like(expected)
    expected.backward(slope)
    layer = convolution.Layer(padding, relu, pools)
    out, chosen = convolution.forward(x, w, bias, layer)
    by_weight, by_bias = convolution.weight_gradient(x, slope.float(), chosen, kernel, layer)
    by_x = convolution.input_gradient(w, slope.float(), chosen, layer, x.shape[-2:])
    found = ((out, expected), (by_weight, w64.grad), (by_bias, bias64.grad), (by_x, x64.grad))
    assert max(error(a.detach(), b.detach()) for a, b in found) <= FP32


@few
@given(models, batches, units, units, st.booleans(), st.sampled_from(("ieee", "tf32")))
def test_linear_with_relu(count: int, batch: int, inputs: int, outputs: int, relu: bool, precision: str) -> None:
    torch.manual_seed(count)
    x, w, bias = drawn(count, batch, inputs), drawn(count, outputs, inputs), drawn(count, outputs)
    x64, w64, bias64 = exact(x, w, bias)
    plain = torch.baddbmm(bias64[:, None], x64, w64.transpose(1, 2))
    expected = plain.relu() if relu else plain
    out = linear.forward(x, w, bias, relu, precision)
    gate = out if relu else None
    # Where rounding moves an output across zero its gradient is another; the slopes there are left out.
    slope = torch.randn_like(expected) * ((out > 0) == (expected > 0)) if relu else torch.randn_like(expected)
    expected.backward(slope)
    by_weight, by_bias = linear.weight_gradient(x, slope.float(), gate, precision)
    by_x = linear.input_gradient(w, slope.float(), gate, precision)
    found = ((out, expected), (by_weight, w64.grad), (by_bias, bias64.grad), (by_x, x64.grad))
    assert max(error(a, b.detach()) for a, b in found) <= (FP32 if precision == "ieee" else TF32)


@few
@given(st.integers(1, 300), st.integers(2, 1000 if CUDA else 30))
def test_cross_entropy(count: int, classes: int) -> None:
    torch.manual_seed(count)
    logits, y = 5 * drawn(count, classes), torch.randint(0, classes, (count,), device=DEVICE)
    (logits64,) = exact(logits)
    expected = F.cross_entropy(logits64, y, reduction="none")
    slope = torch.randn_like(expected)
    expected.backward(slope)
    found, probability = loss.entropy(logits, y)
    assert error(found, expected.detach()) <= FP32
    assert error(loss.entropy_gradient(probability, y, slope.float()), logits64.grad) <= FP32


@few
@given(st.integers(1, 300), st.integers(2, 30), st.booleans(), st.booleans())
def test_weighted_square(count: int, classes: int, inside: bool, mean: bool) -> None:
    torch.manual_seed(count)
    difference, weight = drawn(count, classes), torch.rand(count, classes, device=DEVICE)
    d64, w64 = exact(difference, weight)
    terms = (w64.square() if inside else w64) * d64.square()
    expected = terms.mean(-1) if mean else terms.sum(-1)
    slope = torch.randn_like(expected)
    expected.backward(slope)
    assert error(loss.weighted_square(difference, weight, inside, mean), expected.detach()) <= FP32
    found = loss.weighted_square_gradient(difference, weight, slope.float(), inside, mean)
    assert error(found, d64.grad) <= FP32


@few
@given(models, st.integers(1, 3000), st.booleans())
def test_sgd(count: int, size: int, some: bool) -> None:
    torch.manual_seed(size)
    params, velocity, gradient = drawn(count, size), drawn(count, size), drawn(count, size)
    lr, momentum, decay = torch.rand(3, count, device=DEVICE)
    live = torch.randint(0, 2, (count, 2), device=DEVICE).float()[:, 0] if some else None
    on = torch.ones(count, 1, dtype=torch.bool, device=DEVICE) if live is None else live[:, None] > 0
    p, v, g, a, m, d = (
        t.double() for t in (params, velocity, gradient, lr[:, None], momentum[:, None], decay[:, None])
    )
    moved = m * v + (g + d * p)
    solver.sgd_(params, velocity, gradient, lr, momentum, decay, live)
    assert error(velocity, torch.where(on, moved, v)) <= FP32
    assert error(params, torch.where(on, p - a * moved, p)) <= FP32


@few
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 20))
def test_pool(height: int, width: int, count: int) -> None:
    torch.manual_seed(count)
    x = torch.randint(0, 3, (count, 2 * height + height % 2, 2 * width), device=DEVICE).float()  # with ties
    (x64,) = exact(x)
    expected = F.max_pool2d(x64[None], 2)[0]
    slope = torch.randn_like(expected)
    expected.backward(slope)
    out = pool.pool(x)
    assert torch.equal(out.double(), expected.detach())
    assert error(pool.pool_gradient(x, out, slope.float()), x64.grad) <= FP32


@few
@given(st.integers(0, 4), st.sampled_from(("zero", "reflect")), st.booleans(), st.booleans(), st.integers(5, 12))
def test_batches_are_the_pipelines_to_the_bit(pad: int, padding: str, flip: bool, normalise: bool, side: int) -> None:
    torch.manual_seed(side)
    images = torch.randint(0, 256, (20, 3, side, side + 1), dtype=torch.uint8, device=DEVICE)
    index, key = torch.randint(0, 20, (3, 2), device=DEVICE), torch.randint(0, 2**32, (3, 2), device=DEVICE)
    statistics = ((0.4, 0.5, 0.6), (0.2, 0.3, 0.25)) if normalise else ((), ())
    pipeline = Pipeline(pad, padding, flip, mean=statistics[0], std=statistics[1])
    assert augment.covers(pipeline, images, torch.float32)
    assert torch.equal(augment.train(pipeline, images, index, key), pipeline.train(images, index, key, torch.float32))


def test_a_diverged_model_stays_diverged() -> None:
    x, w = torch.full((1, 1, 1, 4, 4), float("nan"), device=DEVICE), drawn(1, 2, 1, 3, 3)
    out, _ = convolution.forward(x, w, None, convolution.Layer(0, relu=True, pool=True))
    assert out.isnan().all()
    assert linear.forward(x.view(1, 1, 16), drawn(1, 3, 16), None, True, "ieee").isnan().all()
