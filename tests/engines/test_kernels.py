"""Our convolutions reach the stacked models: right under vmap, with or without gradients, shared or own inputs.

The Triton kernels themselves need an accelerator (``benchmarks/agreement.py`` compares them with float64 there); here
plain torch stands in for them, and everything between a model's layer and the kernel is what is tested.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.net import Net, Outputs, weights_of
from fedssd.engines import vectorised
from fedssd.engines.vectorised import cpu_pool
from fedssd.engines.vectorised.kernels import StackedNet

MODELS, BATCH = 3, 2


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3, padding=1, bias=False)
        self.strided, self.pool = nn.Conv2d(5, 5, 2, stride=1, groups=5), nn.MaxPool2d(2)
        self.out = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Outputs:
        x = self.pool(torch.relu(self.strided(torch.relu(self.second(torch.relu(self.first(x)))))))
        logits = self.out(x.flatten(1))
        return Outputs(logits, logits)


def convolve(x: Tensor, w: Tensor, bias: Tensor | None, padding: int, precision: str) -> Tensor:
    assert precision == "ieee"
    ours = [F.conv2d(x[m], w[m], None if bias is None else bias[m], padding=padding) for m in range(len(w))]
    return torch.stack(ours)


def turned(w: Tensor, dy: Tensor, padding: int, _: str) -> Tensor:
    return torch.stack([F.conv_transpose2d(dy[m], w[m], padding=padding) for m in range(len(w))])


def by_weight(x: Tensor, dy: Tensor, _: torch.Size, padding: int, __: str) -> tuple[Tensor, Tensor]:
    """Correlate inputs with slopes: the batch is summed over, so it takes the place of the channels."""
    ours = [
        F.conv2d(x[m].transpose(0, 1), dy[m].transpose(0, 1), padding=padding).transpose(0, 1) for m in range(len(x))
    ]
    return torch.stack(ours), dy.sum((1, 3, 4))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []

    def note(name: str, function: object) -> object:
        return lambda *args: (made.append(name), function(*args))[1]  # type: ignore[operator]

    stand_in = SimpleNamespace(
        forward=note("forward", convolve),
        input_gradient=note("input", turned),
        weight_gradient=note("weight", by_weight),
    )
    monkeypatch.setattr(vectorised, "triton_conv", stand_in, raising=False)
    return made


@pytest.fixture
def models() -> tuple[Net, dict[str, dict[str, Tensor]]]:
    torch.manual_seed(0)
    stacked = tree.stack([weights_of(Layers()) for _ in range(MODELS)])
    return Net(Layers()), tree.map_tree(lambda leaf: leaf.requires_grad_(True), stacked)


def gradients(out: Tensor, weights: dict[str, dict[str, Tensor]]) -> list[Tensor]:
    return list(torch.autograd.grad(out.square().sum(), tree.leaves(weights)))


def test_stacked_convolutions_and_their_gradients(
    calls: list[str], models: tuple[Net, dict[str, dict[str, Tensor]]]
) -> None:
    net, weights = models
    x = torch.randn(MODELS, BATCH, 3, 8, 8)
    answers = [vmap(lambda w, one, n=n: n.train(w, one)[0].logits)(weights, x) for n in (net, StackedNet(net, "ieee"))]
    torch.testing.assert_close(answers[1], answers[0])
    for a, b in zip(*(gradients(answer, weights) for answer in answers), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
    # The grouped layer goes the usual way; the first layer's input needs no gradient.
    assert sorted(calls) == ["forward", "forward", "input", "weight", "weight"]


def test_models_that_share_their_inputs(calls: list[str], models: tuple[Net, dict[str, dict[str, Tensor]]]) -> None:
    net, weights = models
    x = torch.randn(BATCH, 3, 8, 8)
    answers = [vmap(lambda w, n=n: n(w, x).logits)(weights) for n in (net, StackedNet(net, "ieee"))]
    torch.testing.assert_close(answers[1], answers[0])
    assert calls == ["forward", "forward"]


def test_one_model_asked_about_many_batches_is_one_call(
    calls: list[str], models: tuple[Net, dict[str, dict[str, Tensor]]]
) -> None:
    net, weights = models
    one = tree.row(weights, 0)
    x = torch.randn(4, BATCH, 3, 8, 8)
    answers = [vmap(lambda batch, n=n: n(one, batch).logits)(x) for n in (net, StackedNet(net, "ieee"))]
    torch.testing.assert_close(answers[1], answers[0])
    assert calls == ["forward", "forward"]


@pytest.mark.usefixtures("calls")
def test_one_model_without_vmap(models: tuple[Net, dict[str, dict[str, Tensor]]]) -> None:
    net, weights = models
    one = tree.map_tree(lambda leaf: leaf[0].detach().requires_grad_(True), weights)
    x = torch.randn(BATCH, 3, 8, 8)
    found = [gradients(n.train(one, x)[0].logits, one) for n in (net, StackedNet(net, "ieee"))]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 6, 8), (2, 3, 7, 9), (2, 2, 3, 4, 4)])
def test_the_pool_on_the_cpu_is_torchs(shape: tuple[int, ...]) -> None:
    x = torch.relu(torch.randn(shape)).requires_grad_(True)  # with ties at 0
    expected = F.max_pool2d(x.flatten(0, -4), 2).view(*shape[:-2], shape[-2] // 2, shape[-1] // 2)
    slope = torch.randn_like(expected)
    found = cpu_pool.pool(x.detach())
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=0)
    (wanted,) = torch.autograd.grad(expected, x, slope)
    torch.testing.assert_close(cpu_pool.pool_gradient(x.detach(), found, slope), wanted, rtol=0, atol=0)
