"""What follows a layer, a pool or a loss of ours may work in place, forwards and backwards."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from kernel_checks import BATCH, MODELS, assert_same_gradients, close, gradients, needs_interpreter, stacked, trained
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.net import Net, Outputs, weights_of
from fedssd.engines.kernels.net import Losses, StackedNet

IN_PLACE = {
    "elu": nn.ELU(inplace=True),
    "leaky": nn.LeakyReLU(0.2, inplace=True),
    "hardtanh": nn.Hardtanh(-0.3, 0.3, inplace=True),
    "elu_": F.elu_,
    "tanh_": torch.tanh_,
    "a method": lambda x: x.sigmoid_(),
    "a sum": lambda x: x.add_(1).mul_(0.5),
    "an operator": lambda x: operator.imul(x, 3),
    "an entry": lambda x: (operator.setitem(x, 0, 0.5), x)[1],
    "relu, after a look": lambda x: (x + 1, F.relu(x, inplace=True), x)[2],
}


class InPlace(nn.Module):
    """Layers of ours, each followed by something that works in place."""

    def __init__(self, activation: Any, pools: bool) -> None:
        super().__init__()
        self.conv, self.hidden, self.out = nn.Conv2d(2, 3, 3), nn.Linear(12, 5), nn.Linear(5, 3)
        self.activation, self.pool = activation, nn.MaxPool2d(2) if pools else nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Outputs:
        x = self.conv(x)
        if isinstance(self.pool, nn.MaxPool2d):
            x = self.pool(x)
            self.activation(x)
        else:
            self.activation(x)
            x = self.pool(x)
        x = self.hidden(x.flatten(1))
        self.activation(x)
        return Outputs(self.out(x), x)


CASES = [(activation, pools) for activation in IN_PLACE for pools in (False, True)]
LONGER = [(activation, True) for activation in IN_PLACE if activation not in ("leaky", "a method", "an entry")]


@needs_interpreter
@pytest.mark.parametrize(
    ("activation", "pools"),
    [
        pytest.param(
            *case, id=f"{case[0]}, {'pooled' if case[1] else 'plain'}", marks=[pytest.mark.slow] * (case in LONGER)
        )
        for case in CASES
    ],
)
def test_what_follows_a_layer_may_work_in_place(activation: str, pools: bool) -> None:
    torch.manual_seed(0)
    module = InPlace(IN_PLACE[activation], pools)
    net, x = Net(module), torch.randn(MODELS, BATCH, 2, 6, 6)
    weights = tree.stack([weights_of(InPlace(None, pools)) for _ in range(MODELS)])
    plain = tree.map_tree(lambda leaf: leaf.double().requires_grad_(True), weights)
    expected = [net.train(tree.row(plain, m), x[m].double())[0] for m in range(MODELS)]
    wanted = [sum(parts) for parts in zip(*(gradients(out, plain) for out in expected), strict=True)]
    ours = StackedNet(net, "ieee")
    weights = tree.map_tree(lambda leaf: leaf.requires_grad_(True), weights)
    together = vmap(lambda w, one: ours.train(w, one)[0])(weights, x)
    close(together.logits.double(), torch.stack([out.logits for out in expected]))
    apart = [ours.train(tree.row(weights, m), x[m])[0] for m in range(MODELS)]  # without vmap
    alone = [sum(parts) for parts in zip(*(gradients(out, weights) for out in apart), strict=True)]
    for found in (gradients(together, weights), alone):
        for a, b in zip(found, wanted, strict=True):
            close(a.double(), b)
    folded = vmap(lambda one: ours(tree.row(weights, 0), one))(x[:1])  # many batches, one model
    close(folded.logits[0].double(), expected[0].logits)


@needs_interpreter
def test_what_follows_a_loss_may_work_in_place() -> None:
    logits, teacher = torch.randn(MODELS, 4, 3, requires_grad=True), torch.randn(MODELS, 4, 3)
    y = torch.randint(0, 3, (MODELS, 4))

    def total(z: Tensor, labels: Tensor, t: Tensor) -> Tensor:
        entropy = F.cross_entropy(z, labels, reduction="none").exp_()
        return entropy.sum() + F.cosine_similarity(z, t, dim=-1).mul_(2).exp_().sum()

    def slopes(of: Any) -> Tensor:
        return torch.autograd.grad(of().sum(), logits)[0]

    for of in (lambda: vmap(total)(logits, y, teacher), lambda: total(logits[0], y[0], teacher[0])):
        expected = slopes(of)
        with Losses():
            close(slopes(of), expected)


@pytest.mark.parametrize("call", [F.max_pool2d, torch.max_pool2d])
def test_what_follows_a_pool_may_work_in_place(call: Any) -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(1, 4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(call(input=self.scale * x, kernel_size=2), inplace=True).flatten(1)

    net, x = Net(Pooled()), torch.randn(MODELS, BATCH, 1, 4, 4)
    weights = stacked(Pooled)
    found, expected = trained(net, weights, x, precision=None)
    assert_same_gradients(found, expected, weights)
