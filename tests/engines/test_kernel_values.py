"""Every kernel against PyTorch in float64, on fresh random inputs, with its outputs poisoned beforehand.

Without an accelerator Triton's interpreter runs them on small shapes; with one, compiled, on shapes up to the limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton", reason="the kernels are written in Triton")

from fedssd.core.randomness import bits
from fedssd.data.augment import Pipeline
from fedssd.engines.kernels import augment, convolution, draws, linear, loss, pool, side_by_side, solver

# The first product of autograd's own thread, on a card: torch makes the context that it misses, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA context")
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
classes = st.integers(2, 1000 if CUDA else 30)


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel does not write stays wrong, and is seen."""

    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*args: object, **kwargs: object) -> Tensor:
            made = make(*args, **kwargs)
            return made.fill_(float("nan") if made.is_floating_point() else 7)

        return call

    for place, name in (
        (torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (Tensor, "new_empty"),
    ):  # fmt: skip
        monkeypatch.setattr(place, name, poisoned(getattr(place, name)))


def error(found: Tensor, expected: Tensor, terms: float = 0) -> float:
    """max|error| / max|reference|; the latter at least half of what a sum of so many random terms usually is.

    With a single output such a sum may cancel, and then not even float64's would do.
    """
    assert found.shape == expected.shape
    assert found.isfinite().all()
    size = expected.abs().max().clamp(min=max(1e-30, math.sqrt(terms) / 2))
    return float((found.double() - expected).abs().max() / size)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def exact(*parts: Tensor) -> list[Tensor]:
    return [part.double().detach().requires_grad_() for part in parts]


def agreed(plain: Tensor, out: Tensor, chosen: Tensor, layer: convolution.Layer) -> Tensor:
    """Where the kernel let through what float64 lets through; elsewhere the two must have been as good as equal.

    Rounding may decide between two pixels of a square, or about a pixel near zero, and their gradients are then others.
    """
    close = 1e-5 * float(plain.abs().max())
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


@pytest.mark.parametrize("kernel", range(1, 8 if CUDA else 6))
@settings(few, max_examples=3 if CUDA else 2)
@given(
    models, batches, channels, channels, st.integers(0, 5), st.integers(0, 5),
    st.booleans(), st.booleans(), st.booleans(), st.data(),
)  # fmt: skip
def test_convolution_with_relu_and_pool(
    kernel: int, count: int, batch: int, inputs: int, outputs: int, tall: int, wide: int, relu: bool, pools: bool,
    shared: bool, data: st.DataObject,
) -> None:  # fmt: skip
    torch.manual_seed(count)
    count, batch = (min(count, 40), min(batch, 64)) if inputs * outputs * kernel > 500 else (count, batch)
    layer = convolution.Layer(data.draw(st.integers(0, kernel - 1)), relu, pools)
    height, width = kernel + 1 + tall, kernel + 1 + wide
    x = drawn(1 if shared else count, batch, inputs, height, width).expand(count, -1, -1, -1, -1)
    x = side_by_side.laid(x) if data.draw(st.booleans()) else x
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


@few
@given(models, batches, units, units, st.booleans(), st.sampled_from(("ieee", "tf32")), st.booleans())
def test_linear_with_relu(
    count: int, batch: int, inputs: int, outputs: int, relu: bool, precision: str, aside: bool
) -> None:
    torch.manual_seed(count)
    x, w, bias = drawn(count, batch, inputs), drawn(count, outputs, inputs), drawn(count, outputs)
    x64, w64, bias64 = exact(x, w, bias)
    x = side_by_side.laid(x) if aside else x
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
    assert not aside or side_by_side.lies_so(by_x)
    assert max(error(a, b.detach(), n) for a, b, n in found) <= (FP32 if precision == "ieee" else TF32)


@pytest.mark.parametrize("shared", [False, True])
def test_samples_side_by_side_are_the_same_samples(shared: bool) -> None:
    x = drawn(1 if shared else 3, 4, 2, 5).expand(3, -1, -1, -1)
    found = side_by_side.laid(x)
    assert torch.equal(found, x)
    assert found.stride() == (0 if shared else 40, 1, 20, 4)
    assert side_by_side.laid(found) is found
    for some in (x, found, torch.cat([found, found])[::2][:3]):
        assert torch.equal(side_by_side.apart(some), some)
        assert side_by_side.apart(some).stride() == (40, 1, 20, 4)
    assert side_by_side.empty(3, 4, 2, 5, device=x.device).stride() == (40, 1, 20, 4)


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
    assert error(pool.pool_gradient(x, slope.float()), x64.grad) <= FP32


@few
@given(st.integers(0, 4), st.sampled_from(("zero", "reflect")), st.booleans(), st.booleans(), st.integers(5, 12))
def test_batches_are_the_pipelines_to_the_bit(pad: int, padding: str, flip: bool, normalise: bool, side: int) -> None:
    torch.manual_seed(side)
    images = torch.randint(0, 256, (20, 3, side, side + 1), dtype=torch.uint8, device=DEVICE)
    index, key = torch.randint(0, 20, (3, 2), device=DEVICE), torch.randint(0, 2**32, (3, 2), device=DEVICE)
    statistics = ((0.4, 0.5, 0.6), (0.2, 0.3, 0.25)) if normalise else ((), ())
    pipeline = Pipeline(pad, padding, flip, mean=statistics[0], std=statistics[1])
    assert augment.covers(pipeline, images, torch.float32)
    assert not augment.covers(pipeline, images.contiguous(memory_format=torch.channels_last), torch.float32)
    assert torch.equal(augment.train(pipeline, images, index, key), pipeline.train(images, index, key, torch.float32))


@few
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 9), st.data())
def test_the_batches_of_one_step(steps: int, count: int, batch: int, data: st.DataObject) -> None:
    torch.manual_seed(batch)
    pipeline = Pipeline(pad=2, flip=True, mean=(0.4, 0.5), std=(0.2, 0.3))
    images = torch.randint(0, 256, (20, 2, 5, 7), dtype=torch.uint8, device=DEVICE)
    index = torch.randint(0, 20, (steps, count, batch), device=DEVICE)
    key = torch.randint(0, 2**32, index.shape, device=DEVICE)
    y, mask = torch.randint(0, 9, index.shape, device=DEVICE), torch.rand(index.shape, device=DEVICE)
    step, width = data.draw(st.integers(0, steps - 1)), data.draw(st.integers(1, count))
    number = torch.tensor([step], device=DEVICE)
    found = augment.at_step(pipeline, images, augment.visits(pipeline, index, key), y, mask, number, width)
    expected = pipeline.train(images, index, key, torch.float32), y, mask
    assert all(torch.equal(a, b[step, :width]) for a, b in zip(found, expected, strict=True))


@few
@given(st.lists(st.integers(-(2**62), 2**62), min_size=0, max_size=3), st.integers(1, 5), st.integers(1, 40))
def test_random_words(numbers: list[int], rows: int, columns: int) -> None:
    torch.manual_seed(columns)
    many = torch.randint(-(2**62), 2**62, (rows, 1, columns), device=DEVICE)
    few_words = torch.randint(0, 2**32, (2, 1), device=DEVICE)
    for words in ((*numbers, many), (many, *numbers), (few_words, *numbers, many, 7), (*numbers, many.transpose(0, 2))):
        assert draws.covers(words)
        assert torch.equal(draws.bits(*words), bits(*words))


def test_a_diverged_model_stays_diverged() -> None:
    x, w = torch.full((1, 1, 1, 4, 4), float("nan"), device=DEVICE), drawn(1, 2, 1, 3, 3)
    out, _ = convolution.forward(x, w, None, convolution.Layer(0, relu=True, pool=True))
    assert out.isnan().all()
    assert linear.forward(x.view(1, 1, 16), drawn(1, 3, 16), None, True, "ieee").isnan().all()
