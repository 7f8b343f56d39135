"""Convolution, linear layer and pool, and how their batches lie, against PyTorch in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_values import (
    CUDA,
    DEVICE,
    FP32,
    TF32,
    batches,
    channels,
    drawn,
    error,
    exact,
    few,
    models,
    no_context,
    poison,  # noqa: F401  # a fixture that all use
    units,
)
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton", reason="the kernels are written in Triton")

from fedssd.engines.kernels import convolution, linear, matrix_convolution, pool, strides
from fedssd.engines.kernels.layer import ConvForm

pytestmark = no_context


def agreed(plain: Tensor, out: Tensor, chosen: Tensor, layer: ConvForm) -> Tensor:
    """Where the kernel let through what float64 lets through; elsewhere the two must have been as good as equal.

    Rounding may decide between two pixels of a square, or about a pixel near zero, and their gradients are then others.
    """
    close = (FP32 if layer.precision == "ieee" else TF32) * float(plain.abs().max())
    if not layer.pool:
        same = (out > 0) == (plain > 0) if layer.relu else torch.ones_like(plain, dtype=torch.bool)
        assert plain[~same].abs().sum() <= close * (~same).sum()
        return same
    height, width = (side // 2 * 2 for side in plain.shape[-2:])
    squares = plain[..., :height, :width].unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2)).movedim(-3, -2).flatten(-2)
    best, place = squares.max(-1)
    silent = chosen == 4
    taken = squares.gather(-1, chosen.clamp(max=3).long()[..., None])[..., 0]
    assert ((best - taken)[~silent] <= close).all()
    assert (best[silent] <= close).all()
    assert layer.relu or not silent.any()
    return torch.where(silent, best <= 0, (chosen == place) & ((best > 0) | (not layer.relu)))


@pytest.mark.parametrize(
    "kernel", [1, 2, 3, *(pytest.param(k, marks=pytest.mark.slow) for k in range(4, 8 if CUDA else 6))]
)
@settings(few, max_examples=3 if CUDA else 2)
@given(
    models, batches, channels, channels, st.integers(0, 5 if CUDA else 3), st.integers(0, 5 if CUDA else 3),
    st.booleans(), st.booleans(), st.booleans(), st.data(),
)  # fmt: skip
def test_convolution_with_relu_and_pool(
    kernel: int, count: int, batch: int, inputs: int, outputs: int, tall: int, wide: int, relu: bool, pools: bool,
    shared: bool, data: st.DataObject,
) -> None:  # fmt: skip
    torch.manual_seed(count)
    count, batch = (min(count, 40), min(batch, 64)) if inputs * outputs * kernel > 500 else (count, batch)
    layer = ConvForm(data.draw(st.integers(0, kernel - 1)), relu, pools)
    height, width = kernel + 1 + tall, kernel + 1 + wide
    x = drawn(1 if shared else count, batch, inputs, height, width).expand(count, -1, -1, -1, -1)
    x = strides.laid(x) if data.draw(st.booleans()) else x
    w, bias = drawn(count, outputs, inputs, kernel, kernel), drawn(count, outputs)
    x64, w64, bias64 = exact(x, w, bias)
    plain = torch.stack([F.conv2d(a, b, c, padding=layer.padding) for a, b, c in zip(x64, w64, bias64, strict=True)])
    after = plain.relu() if relu else plain
    expected = F.max_pool2d(after.flatten(0, 1), 2).unflatten(0, (count, batch)) if pools else after
    out, chosen = convolution.forward(x, w, bias, layer)
    slope = torch.randn_like(expected) * agreed(plain.detach(), out, chosen, layer)
    expected.backward(slope)
    by_weight, by_bias = convolution.weight_gradient(x, slope.float(), chosen, kernel, layer)
    by_x = convolution.input_gradient(w, slope.float(), chosen, layer, x.shape[-2:])
    seen, patch = batch * math.prod(expected.shape[-2:]), kernel * kernel
    found = (
        (out, expected, inputs * patch), (by_weight, w64.grad, seen / 4), (by_bias, bias64.grad, seen / 4),
        (by_x, x64.grad, outputs / 4),
    )  # fmt: skip
    assert max(error(a.detach(), b.detach(), n) for a, b, n in found) <= FP32


@pytest.mark.parametrize("kernel", [1, 3, *(pytest.param(side, marks=pytest.mark.slow) for side in (5, 7))])
@settings(few, max_examples=6 if CUDA else 3)
@given(
    models, st.integers(1, 16 if CUDA else 2), st.integers(1, 16), st.integers(1, 16), st.integers(0, 9),
    st.integers(0, 9), st.booleans(), st.booleans(), st.booleans(), st.sampled_from((1, 2, 4)),
)  # fmt: skip
def test_gradients_of_a_pooled_convolution_on_matrix_units(
    kernel: int, count: int, rows: int, inputs: int, outputs: int, tall: int, wide: int, relu: bool, biased: bool,
    shared: bool, squares: int,
) -> None:  # fmt: skip
    torch.manual_seed(count)
    batch, inputs = 16 * rows, min(inputs, 256 // (kernel + 1) ** 2)
    if not CUDA:
        inputs, outputs, tall, wide = min(inputs, 3 if kernel < 7 else 1), min(outputs, 6), min(tall, 3), min(wide, 4)
    layer = ConvForm(0, relu, True, "tf32")
    x = drawn(1 if shared else count, batch, inputs, kernel + 1 + tall, kernel + 1 + wide)
    x = x.expand(count, -1, -1, -1, -1)
    w, bias = drawn(count, outputs, inputs, kernel, kernel), drawn(count, outputs)
    assert matrix_convolution.covers(x.shape, w.shape, layer)
    x64, w64, bias64 = exact(x, w, bias)
    given = [bias64[m] if biased else None for m in range(count)]
    plain = torch.stack([F.conv2d(a, b, c) for a, b, c in zip(x64, w64, given, strict=True)])
    after = plain.relu() if relu else plain
    expected = F.max_pool2d(after.flatten(0, 1), 2).unflatten(0, (count, batch))
    with pytest.MonkeyPatch.context() as patch:
        tiles = {rows: tile._replace(squares=squares) for rows, tile in matrix_convolution.BACKWARD.items()}
        patch.setattr(matrix_convolution, "BACKWARD", tiles)
        out, chosen = convolution.forward(x, w, bias if biased else None, layer)
        slope = torch.randn_like(expected) * agreed(plain.detach(), out, chosen, layer)
        expected.backward(slope)
        by_weight, by_bias = convolution.weight_gradient(x, slope.float(), chosen, kernel, layer)
        by_x = convolution.input_gradient(w, slope.float(), chosen, layer, x.shape[-2:])
    seen = batch * math.prod(expected.shape[-2:])
    found = [
        (out, expected, inputs * kernel**2), (by_weight, w64.grad, seen / 4), (by_x, x64.grad, outputs / 4),
        *([(by_bias, bias64.grad, seen / 4)] if biased else []),
    ]  # fmt: skip
    assert max(error(a.detach(), b.detach(), n) for a, b, n in found) <= TF32


def test_what_matrix_units_are_not_for_goes_on_in_float32() -> None:
    x, w = torch.Size((2, 64, 3, 12, 12)), torch.Size((2, 6, 3, 5, 5))
    right = ConvForm(0, True, True, "tf32")
    assert matrix_convolution.covers(x, w, right)
    for layer in (ConvForm(0, True, True), right._replace(padding=1), right._replace(pool=False)):
        assert not matrix_convolution.covers(x, w, layer)
    for one, other in (
        ((2, 63, 3, 12, 12), w), ((2, 64, 3, 5, 12), w), (x, (2, 17, 3, 5, 5)), ((2, 64, 17, 12, 12), (2, 6, 17, 3, 3)),
        (x, (2, 6, 3, 4, 4)), ((2, 64, 8, 12, 12), (2, 6, 8, 5, 5)), ((2, 2**20, 3, 40, 40), w),
    ):  # fmt: skip
        assert not matrix_convolution.covers(torch.Size(one), torch.Size(other), right)


@pytest.mark.parametrize(
    ("padding", "relu", "pools"),
    [(0, True, True), *(pytest.param(*form, marks=pytest.mark.slow) for form in ((1, True, False), (2, False, False)))],
)
def test_a_batch_of_several_rows_is_those_rows(
    padding: int, relu: bool, pools: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strides, "ROW", 64 if CUDA else 4)
    row, layer = strides.ROW, ConvForm(padding, relu, pools)
    x, w, bias = drawn(2, 3 * row, 1, 5, 6), drawn(2, 3, 1, 3, 3), drawn(2, 3)
    out, chosen = convolution.forward(x, w, bias, layer)
    slope = torch.randn_like(out)
    by_x = convolution.input_gradient(w, slope, chosen, layer, x.shape[-2:])
    for first in range(0, 3 * row, row):
        some = slice(first, first + row)
        alone, choice = convolution.forward(x[:, some], w, bias, layer)
        assert torch.equal(out[:, some], alone)
        assert torch.equal(chosen[:, some], choice)
        assert torch.equal(by_x[:, some], convolution.input_gradient(w, slope[:, some], choice, layer, x.shape[-2:]))


@few
@given(models, batches, units, units, st.booleans(), st.sampled_from(("ieee", "tf32")), st.booleans())
def test_linear_with_relu(
    count: int, batch: int, inputs: int, outputs: int, relu: bool, precision: str, aside: bool
) -> None:
    torch.manual_seed(count)
    x, w, bias = drawn(count, batch, inputs), drawn(count, outputs, inputs), drawn(count, outputs)
    x64, w64, bias64 = exact(x, w, bias)
    x = strides.laid(x) if aside else x
    plain = torch.baddbmm(bias64[:, None], x64, w64.transpose(1, 2))
    expected = plain.relu() if relu else plain
    out = linear.forward(x, w, bias, relu, precision)
    gate = out if relu else None
    # Where rounding moves an output across zero its gradient is another; the slopes there are left out.
    slope = torch.randn_like(expected) * ((out > 0) == (expected > 0)) if relu else torch.randn_like(expected)
    expected.backward(slope)
    by_weight, by_bias = linear.weight_gradient(x, slope.float(), gate, precision)
    by_x = linear.input_gradient(x, w, slope.float(), gate, precision)
    found = (
        (out, expected, inputs), (by_weight, w64.grad, batch / 4), (by_bias, bias64.grad, batch / 4),
        (by_x, x64.grad, outputs / 4),
    )  # fmt: skip
    assert not aside or strides.lies_so(by_x)
    assert max(error(a, b.detach(), n) for a, b, n in found) <= (FP32 if precision == "ieee" else TF32)


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
    assert error(pool.pool_gradient(x, slope.float()), x64.grad) <= FP32


@pytest.mark.parametrize("shared", [False, True])
def test_samples_side_by_side_are_the_same_samples(shared: bool) -> None:
    x = drawn(1 if shared else 3, 4, 2, 5).expand(3, -1, -1, -1)
    found = strides.laid(x)
    assert torch.equal(found, x)
    assert found.stride() == (0 if shared else 40, 1, 20, 4)
    assert strides.laid(found) is found
    for some in (x, found, torch.cat([found, found])[::2][:3]):
        assert torch.equal(strides.apart(some), some)
        assert strides.apart(some).stride() == (40, 1, 20, 4)
    assert strides.empty(3, 4, 2, 5, device=x.device).stride() == (40, 1, 20, 4)


def test_a_diverged_model_stays_diverged() -> None:
    x, w = torch.full((1, 1, 1, 4, 4), float("nan"), device=DEVICE), drawn(1, 2, 1, 3, 3)
    out, _ = convolution.forward(x, w, None, ConvForm(0, relu=True, pool=True))
    assert out.isnan().all()
    assert linear.forward(x.view(1, 1, 16), drawn(1, 3, 16), None, True, "ieee").isnan().all()
