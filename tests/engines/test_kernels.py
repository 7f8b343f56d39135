"""Our kernels reach the stacked models: right under vmap, with or without gradients, shared or own inputs.

Triton's interpreter runs the kernels here, so sizes are tiny; ``test_kernel_values`` holds each kernel to float64.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.net import Net, Outputs, weights_of
from fedssd.core.step import mean_loss
from fedssd.engines.kernels import cpu_pool
from fedssd.engines.kernels.aside import Branch, beside, branch
from fedssd.engines.kernels.differentiable import layers, losses
from fedssd.engines.kernels.net import Losses, StackedNet
from fedssd.methods.fedssd import distillation_weights, selective_distillation, shares, weighted_square

MODELS, BATCH = 2, 2
Weights = dict[str, dict[str, Tensor]]


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
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was asked of the kernels: the layer and what went into it."""
    made: list[tuple[Any, ...]] = []
    for name in (
        "convolve", "linear", "largest", "entropy", "weighted_square", "distillation_weights", "shares", "cosine",
        "mean_loss",
    ):  # fmt: skip
        place = layers if hasattr(layers, name) else losses
        function = getattr(place, name)

        def note(*args: Any, _name: str = name, _function: Any = function) -> Tensor:
            made.append((_name, *(part for part in args if isinstance(part, bool))))
            return _function(*args)

        monkeypatch.setattr(place, name, note)
    return made


@pytest.fixture
def models() -> tuple[Net, Weights]:
    pytest.importorskip("triton", reason="the kernels are written in Triton")
    torch.manual_seed(0)
    stacked = tree.stack([weights_of(Layers()) for _ in range(MODELS)])
    return Net(Layers()), tree.map_tree(lambda leaf: leaf.requires_grad_(True), stacked)


def gradients(out: Outputs, weights: Weights) -> list[Tensor]:
    return list(torch.autograd.grad(out.logits.square().sum() + out.features.sum(), tree.leaves(weights)))


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_stacked_layers_and_their_gradients(calls: list[tuple[Any, ...]], models: tuple[Net, Weights]) -> None:
    net, weights = models
    x = torch.randn(MODELS, BATCH, 3, 10, 10)
    expected, found = (vmap(lambda w, one, n=n: n.train(w, one)[0])(weights, x) for n in (net, StackedNet(net, "ieee")))
    close(found, expected)
    for ours, theirs in zip(gradients(found, weights), gradients(expected, weights), strict=True):
        close(ours, theirs)
    assert calls == [
        ("convolve", True, True), ("convolve", True, False), ("largest",), ("linear", True), ("linear", False),
    ]  # fmt: skip


def test_models_that_share_their_inputs(models: tuple[Net, Weights]) -> None:
    net, weights = models
    x = torch.randn(BATCH, 3, 10, 10)
    expected, found = (vmap(lambda w, n=n: n(w, x))(weights) for n in (net, StackedNet(net, "ieee")))
    close(found, expected)


def test_one_model_asked_about_many_batches(models: tuple[Net, Weights]) -> None:
    net, weights = models
    one, x = tree.row(weights, 0), torch.randn(3, BATCH, 3, 10, 10)
    expected, found = (vmap(lambda batch, n=n: n(one, batch))(x) for n in (net, StackedNet(net, "ieee")))
    close(found, expected)


def test_one_model_without_vmap(models: tuple[Net, Weights]) -> None:
    net, weights = models
    one = tree.map_tree(lambda leaf: leaf[0].detach().requires_grad_(True), weights)
    x = torch.randn(BATCH, 3, 10, 10)
    expected, found = (gradients(n.train(one, x)[0], one) for n in (net, StackedNet(net, "ieee")))
    for ours, theirs in zip(found, expected, strict=True):
        close(ours, theirs)


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


@pytest.mark.parametrize("pools", [False, True], ids=["plain", "pooled"])
@pytest.mark.parametrize("activation", IN_PLACE)
def test_what_follows_a_layer_may_work_in_place(activation: str, pools: bool) -> None:
    pytest.importorskip("triton", reason="the kernels are written in Triton")
    torch.manual_seed(0)
    module = InPlace(IN_PLACE[activation], pools)
    net, x = Net(module), torch.randn(MODELS, BATCH, 2, 6, 6)
    stacked = tree.stack([weights_of(InPlace(None, pools)) for _ in range(MODELS)])
    plain = tree.map_tree(lambda leaf: leaf.double().requires_grad_(True), stacked)
    expected = [net.train(tree.row(plain, m), x[m].double())[0] for m in range(MODELS)]
    wanted = [sum(parts) for parts in zip(*(gradients(out, plain) for out in expected), strict=True)]
    ours = StackedNet(net, "ieee")
    stacked = tree.map_tree(lambda leaf: leaf.requires_grad_(True), stacked)
    together = vmap(lambda w, one: ours.train(w, one)[0])(stacked, x)
    close(together.logits.double(), torch.stack([out.logits for out in expected]))
    apart = [ours.train(tree.row(stacked, m), x[m])[0] for m in range(MODELS)]  # without vmap
    alone = [sum(parts) for parts in zip(*(gradients(out, stacked) for out in apart), strict=True)]
    for found in (gradients(together, stacked), alone):
        for a, b in zip(found, wanted, strict=True):
            close(a.double(), b)
    folded = vmap(lambda one: ours(tree.row(stacked, 0), one))(x[:1])  # many batches, one model
    close(folded.logits[0].double(), expected[0].logits)


def test_what_follows_a_loss_may_work_in_place() -> None:
    pytest.importorskip("triton", reason="the kernels are written in Triton")
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


def test_a_convolution_called_with_fewer_arguments() -> None:
    pytest.importorskip("triton", reason="the kernels are written in Triton")

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


class Tied(nn.Module):
    """One layer used twice, one whose output is needed with and without ReLU, one with a computed weight, one plain."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.both = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scaled, self.plain = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.both(torch.relu(self.twice(torch.relu(self.twice(x)))))
        x = torch.relu(x) + x
        return self.plain(F.linear(x, 2 * self.scaled.weight, self.scaled.bias))


def test_only_gradients_nobody_adds_to_are_made_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="the kernels are written in Triton")
    made: list[torch.Size] = []

    def note(_branch: Branch, work: Any, *_: Any) -> Any:
        found = work()
        made.append(found[0].shape)
        return found

    monkeypatch.setattr(Branch, "run", note)
    net, x = Net(Tied()), torch.randn(MODELS, BATCH, 4)
    weights = tree.map_tree(
        lambda leaf: leaf.requires_grad_(True), tree.stack([weights_of(Tied()) for _ in range(MODELS)])
    )
    expected, found = (vmap(lambda w, one, n=n: n.train(w, one)[0])(weights, x) for n in (net, StackedNet(net, "ieee")))
    for ours, theirs in zip(gradients(found, weights), gradients(expected, weights), strict=True):
        close(ours, theirs)
    assert made == [(MODELS, 3, 4)]


def test_losses(calls: list[tuple[Any, ...]]) -> None:
    pytest.importorskip("triton", reason="the kernels are written in Triton")
    logits, teacher = torch.randn(MODELS, 4, 3, requires_grad=True), torch.randn(MODELS, 4, 3)
    y, mask, matrix = torch.randint(0, 3, (MODELS, 4)), torch.tensor([1.0, 1, 0, 1]), torch.rand(3, 3)
    m_max, floor, exponent = torch.rand(3, MODELS)

    def total(z: Tensor, labels: Tensor, t: Tensor, *numbers: Tensor) -> tuple[Tensor, Tensor]:
        entropy = F.cross_entropy(z, labels, reduction="none")
        weight = distillation_weights(t, labels, matrix, numbers[1], numbers[2])
        penalty = weighted_square(z, t, weight, numbers[0], "inside", "sum") + F.cosine_similarity(z, t, dim=-1)
        return mean_loss(mask, entropy, penalty, *shares(weight))

    def values(of: Any) -> list[Tensor]:
        loss, sums = of(total)
        return [loss, sums.detach(), torch.autograd.grad(loss.square().sum(), logits)[0]]

    def single(function: Any) -> Any:  # one model, without vmap
        rows = [part[0] for part in (logits, y, teacher, m_max, floor, exponent)]
        return function(*rows)

    for of in (lambda f: vmap(f)(logits, y, teacher, m_max, floor, exponent), single):
        expected = values(of)
        assert not calls
        with Losses():
            found = values(of)
        for ours, theirs in zip(found, expected, strict=True):
            close(ours, theirs)
        assert [call[0] for call in calls] == [
            "entropy", "distillation_weights", "weighted_square", "cosine", "shares", "mean_loss",
        ]  # fmt: skip
        calls.clear()


def test_what_the_losses_kernels_do_not_cover_stays_torchs(calls: list[tuple[Any, ...]]) -> None:
    logits, y = torch.randn(4, 3, dtype=torch.float64), torch.randint(0, 3, (4,))
    with Losses():
        found = F.cross_entropy(logits, y, reduction="none"), F.cosine_similarity(logits.T, logits.T, dim=0)
        F.cosine_similarity(logits.float(), logits.float().requires_grad_(True), dim=-1)
        selective_distillation(logits.float(), logits.float(), y, torch.eye(3))
        mean_loss(torch.ones(4), *torch.rand(6, 4))
    close(found[0], -logits.log_softmax(1).gather(1, y[:, None])[:, 0])
    a, b = torch.randn(MODELS, 4, 3), torch.randn(MODELS, 4, 3, requires_grad=True)
    expected = torch.autograd.grad(vmap(lambda p, q: F.cosine_similarity(p, q, dim=-1))(a, b).sum(), b)
    with Losses():  # inside vmap a tensor does not say by itself that it learns
        cosines = vmap(lambda p, q: F.cosine_similarity(p, q, dim=-1))(a, b)
    close(torch.autograd.grad(cosines.sum(), b), expected)
    close(found[1], torch.ones(4, dtype=torch.float64))
    assert not calls


@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "alone"])
@pytest.mark.parametrize(
    "call",
    [
        lambda z, y: F.cross_entropy(input=z, target=y, reduction="none"),
        lambda z, y: F.cross_entropy(z, target=torch.where(y == 0, -100, y), reduction="none"),
        lambda z, y: F.cross_entropy(z, torch.where(y == 0, -1, y), ignore_index=-1, reduction="none"),
        lambda z, y: F.cosine_similarity(x1=z, x2=z.detach() + y[:, None], dim=-1),
    ],
    ids=["by name", "some ignored", "some ignored by another number", "cosine by name"],
)
def test_losses_called_in_other_ways(call: Any, stacked: bool) -> None:
    pytest.importorskip("triton", reason="the kernels are written in Triton")
    torch.manual_seed(0)
    logits, y = torch.randn(MODELS, 6, 3, requires_grad=True), torch.arange(6).expand(MODELS, 6) % 3

    def values() -> tuple[Tensor, ...]:
        found = vmap(call)(logits, y) if stacked else call(logits[0], y[0])
        return found.detach(), *torch.autograd.grad(found.square().sum() + found.sum(), logits)

    expected = values()
    with Losses():
        close(values(), expected)


@pytest.mark.parametrize("bias", [lambda b: b[::2], lambda b: b[:1].expand(3)], ids=["every second", "one for all"])
def test_a_bias_with_gaps(bias: Any) -> None:
    pytest.importorskip("triton", reason="the kernels are written in Triton")

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


def test_a_model_may_differentiate() -> None:
    pytest.importorskip("triton", reason="the kernels are written in Triton")

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
    weights = tree.stack([weights_of(Forces()) for _ in range(MODELS)])
    weights = tree.map_tree(lambda leaf: leaf.requires_grad_(True), weights)
    expected, found = (vmap(lambda w, one, n=n: n.train(w, one)[0])(weights, x) for n in (net, StackedNet(net, "ieee")))
    close(found, expected)
    for ours, theirs in zip(gradients(found, weights), gradients(expected, weights), strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("call", [F.max_pool2d, torch.max_pool2d])
def test_what_follows_a_pool_may_work_in_place(call: Any) -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(1, 4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(call(input=self.scale * x, kernel_size=2), inplace=True).flatten(1)

    net, x = Net(Pooled()), torch.randn(MODELS, BATCH, 1, 4, 4)
    weights = tree.map_tree(
        lambda leaf: leaf.requires_grad_(True), tree.stack([weights_of(Pooled()) for _ in range(MODELS)])
    )
    expected, found = (vmap(lambda w, one, n=n: n.train(w, one)[0])(weights, x) for n in (net, StackedNet(net, None)))
    for ours, theirs in zip(gradients(found, weights), gradients(expected, weights), strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("shape", [(2, 3, 6, 8), (2, 3, 7, 9), (2, 2, 3, 4, 4)])
def test_the_pool_on_the_cpu_is_torchs(shape: tuple[int, ...]) -> None:
    x = torch.relu(torch.randn(shape)).requires_grad_(True)  # with ties at 0
    expected = F.max_pool2d(x.flatten(0, -4), 2).view(*shape[:-2], shape[-2] // 2, shape[-1] // 2)
    slope = torch.randn_like(expected)
    found = cpu_pool.pool(x.detach())
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=0)
    (wanted,) = torch.autograd.grad(expected, x, slope)
    torch.testing.assert_close(cpu_pool.pool_gradient(x.detach(), slope), wanted, rtol=0, atol=0)


class Stream:
    """Stands in for a device's stream, and knows whom it waited for."""

    def __init__(self, name: str) -> None:
        self.name, self.waited = name, []

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other.name)


def test_each_thread_works_aside_on_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    main, taken = {}, threading.local()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: getattr(taken, "stream", None) or main[taken.name])

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        taken.stream = stream
        yield
        taken.stream = None

    monkeypatch.setattr(torch.cuda, "stream", on)
    both = threading.Barrier(2)

    def step(name: str) -> tuple[str, str, Branch]:
        taken.name, second = name, Stream(f"{name}'s second")
        main[name] = Stream(name)
        both.wait()
        with beside(second):  # type: ignore[arg-type]
            both.wait()  # the other is inside too
            there = branch()
            forth = there.run(lambda: torch.cuda.current_stream().name)

            def back() -> str:  # in a thread of autograd's, which has no step of its own
                taken.name = name
                assert branch().run(lambda: torch.cuda.current_stream().name) == name
                return there.run(lambda: torch.cuda.current_stream().name)

            with ThreadPoolExecutor(1) as autograd:
                returned = autograd.submit(back).result()
            both.wait()
        assert second.waited == [name] * 3  # as it began, and before each work
        assert main[name].waited == [second.name]  # at the end
        assert branch().run(lambda: torch.cuda.current_stream().name) == name
        return forth, returned, there

    with ThreadPoolExecutor(2) as pool:
        for name, found in [(name, pool.submit(step, name)) for name in ("a", "b")]:
            forth, returned, there = found.result()
            assert forth == returned == f"{name}'s second"
            assert not there._read
