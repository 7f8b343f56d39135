"""Our kernels reach the layers of stacked models: right under vmap, with or without gradients, shared or own inputs.

``test_layer_values`` and its like hold each kernel to float64.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_checks import (
    BATCH,
    MODELS,
    Weights,
    assert_same_gradients,
    close,
    gradients,
    needs_interpreter,
    note_calls,
    stacked,
    trained,
)
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.net import Net, Outputs, weights_of
from fedssd.engines.kernels import cpu_pool
from fedssd.engines.kernels.net import StackedNet


class Layers(nn.Module):
    """Layers that fuse, layers that are not covered, and one output that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3, padding=1, bias=False)
        self.grouped, self.pool = nn.Conv2d(5, 5, 1, groups=5), nn.MaxPool2d(2)
        self.norm, self.relu = nn.GroupNorm(1, 4), nn.ReLU(inplace=True)
        self.hidden, self.out = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Outputs:
        x = self.pool(torch.relu(self.first(x)))
        x = self.norm(x)
        y = self.second(x)
        self.relu(y)  # in place: what follows sees it
        y = self.pool(self.grouped(y) + y).mean((2, 3))
        features = F.relu(self.hidden(y))
        return Outputs(self.out(features), features)


@pytest.fixture
def models() -> tuple[Net, Weights]:
    torch.manual_seed(0)
    weights = stacked(Layers)
    return Net(Layers()), weights


@needs_interpreter
def test_stacked_layers_and_their_gradients(monkeypatch: pytest.MonkeyPatch, models: tuple[Net, Weights]) -> None:
    calls = note_calls(monkeypatch)
    net, weights = models
    x = torch.randn(MODELS, BATCH, 3, 10, 10)
    found, expected = trained(net, weights, x)
    close(found, expected)
    assert_same_gradients(found, expected, weights)
    assert calls == [
        ("convolve", True, True), ("convolve", True, False), ("largest",), ("linear", True), ("linear", False),
    ]  # fmt: skip


class Pooled(nn.Module):
    """Two convolutions with a pool, small as the interpreter is slow."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.pool, self.out = (
            nn.Conv2d(1, 2, 3),
            nn.Conv2d(2, 2, 1),
            nn.MaxPool2d(2),
            nn.Linear(2, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.first(x)))
        return self.out(self.pool(torch.relu(self.second(x))).flatten(1))


@needs_interpreter
def test_in_tf32_gradients_of_a_pooled_convolution_go_to_matrix_units(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedssd.engines.kernels import matrix_convolution

    torch.manual_seed(0)
    net, weights, asked = Net(Pooled()), stacked(Pooled), []
    for name in ("input_gradient", "weight_gradient"):
        work = getattr(matrix_convolution, name)
        monkeypatch.setattr(
            matrix_convolution, name, lambda *args, _name=name, _work=work: asked.append(_name) or _work(*args)
        )
    found, expected = trained(net, weights, torch.randn(MODELS, 16, 1, 8, 8), "tf32")
    close(found, expected)
    assert_same_gradients(found, expected, weights)
    assert sorted(asked) == ["input_gradient", "weight_gradient", "weight_gradient"]  # nobody asks for the pixels' own


@needs_interpreter
def test_models_that_share_their_inputs(models: tuple[Net, Weights]) -> None:
    net, weights = models
    x = torch.randn(BATCH, 3, 10, 10)
    expected, found = (vmap(lambda w, n=n: n(w, x))(weights) for n in (net, StackedNet(net, "ieee")))
    close(found, expected)


@needs_interpreter
def test_one_model_asked_about_many_batches(models: tuple[Net, Weights]) -> None:
    net, weights = models
    one, x = tree.row(weights, 0), torch.randn(3, BATCH, 3, 10, 10)
    expected, found = (vmap(lambda batch, n=n: n(one, batch))(x) for n in (net, StackedNet(net, "ieee")))
    close(found, expected)


@needs_interpreter
def test_one_model_without_vmap(models: tuple[Net, Weights]) -> None:
    net, weights = models
    one = tree.map_tree(lambda leaf: leaf[0].detach().requires_grad_(True), weights)
    x = torch.randn(BATCH, 3, 10, 10)
    expected, found = (gradients(n.train(one, x)[0], one) for n in (net, StackedNet(net, "ieee")))
    for ours, theirs in zip(found, expected, strict=True):
        close(ours, theirs)


@needs_interpreter
def test_a_convolution_called_with_fewer_arguments() -> None:
    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(4, 4, 3, 3) / 6), nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            x = F.conv2d(F.conv2d(x, self.weight), self.weight, self.bias)
            return F.conv2d(F.conv2d(x, self.weight, self.bias, 1), self.weight, self.bias, 1, 1).flatten(1)

    net, x = Net(Called()), torch.randn(BATCH, 4, 9, 9)
    weights = weights_of(Called())
    close(StackedNet(net, "ieee")(weights, x), net(weights, x))


@needs_interpreter
@pytest.mark.parametrize("bias", [lambda b: b[::2], lambda b: b[:1].expand(3)], ids=["every second", "one for all"])
def test_a_bias_with_gaps(bias: Any) -> None:
    class Gaps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(6))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight, bias(self.bias))

    net, x = Net(Gaps()), torch.randn(MODELS, BATCH, 4)
    weights = tree.stack([weights_of(Gaps()) for _ in range(MODELS)])
    expected, found = (vmap(lambda w, one, n=n: n(w, one))(weights, x) for n in (net, StackedNet(net, "ieee")))
    close(found, expected)


@needs_interpreter
def test_a_model_may_differentiate() -> None:
    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = nn.Conv2d(1, 2, 3), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Outputs:
            seen = self.conv(x)  # asked for inside only
            push = torch.func.grad(lambda one: (torch.relu(self.conv(one)).square() * torch.relu(seen)).sum())(x)
            return Outputs(self.out(push.flatten(1)), seen.flatten(1))

    torch.manual_seed(0)
    net, x = Net(Forces()), torch.randn(MODELS, BATCH, 1, 4, 4)
    weights = stacked(Forces)
    found, expected = trained(net, weights, x)
    close(found, expected)
    assert_same_gradients(found, expected, weights)


@pytest.mark.parametrize("shape", [(2, 3, 6, 8), (2, 3, 7, 9), (2, 2, 3, 4, 4)])
def test_the_pool_on_the_cpu_is_torchs(shape: tuple[int, ...]) -> None:
    x = torch.relu(torch.randn(shape)).requires_grad_(True)  # with ties at 0
    expected = F.max_pool2d(x.flatten(0, -4), 2).view(*shape[:-2], shape[-2] // 2, shape[-1] // 2)
    slope = torch.randn_like(expected)
    found = cpu_pool.pool(x.detach())
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=0)
    (wanted,) = torch.autograd.grad(expected, x, slope)
    torch.testing.assert_close(cpu_pool.pool_gradient(x.detach(), slope), wanted, rtol=0, atol=0)
