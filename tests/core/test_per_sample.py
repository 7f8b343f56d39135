"""Squares of per-sample gradients, against one gradient after another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedssd.core import per_sample, tree
from fedssd.core.contract import ClientData
from fedssd.core.net import Net, load_weights, weights_of
from fedssd.core.tree import Tree
from fedssd.models.cnn import CNN, SmallCNN

SAMPLES, CLASSES = 11, 4


class Twice(nn.Module):
    """Uses a layer two times."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(12, 12), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.inner(torch.relu(self.inner(x.flatten(1))))))


class Rows(nn.Module):
    """A linear layer over the rows of an image, which are no samples."""

    def __init__(self) -> None:
        super().__init__()
        self.row, self.last = nn.Linear(4, 2), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.row(x.view(-1, 4))).view(len(x), -1))


class Scaled(nn.Module):
    """A parameter outside any layer."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.scale = nn.Linear(12, CLASSES), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.last(x.flatten(1))


def strided() -> nn.Module:
    first = nn.Conv2d(3, 5, (3, 5), stride=2, padding=(1, 2))
    second = nn.Conv2d(5, 4, 2, dilation=2, bias=False)
    return nn.Sequential(first, nn.Tanh(), second, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, CLASSES))


TAPPED = {
    "cnn": (lambda: CNN((3, 32, 32), CLASSES), (3, 32, 32)),
    "cnn with head": (lambda: CNN((3, 16, 16), CLASSES, head=True), (3, 16, 16)),
    "small cnn": (lambda: SmallCNN((1, 8, 8), CLASSES), (1, 8, 8)),
    "strided": (strided, (3, 8, 8)),
}
UNTAPPED = {
    "layer used twice": (Twice, (3, 2, 2)),
    "rows": (Rows, (1, 3, 4)),
    "parameter alone": (Scaled, (3, 2, 2)),
    "batch norm": (lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, CLASSES)), (3, 2, 2)),
    "groups": (lambda: nn.Sequential(nn.Conv2d(4, 4, 2, groups=2), nn.Flatten(), nn.Linear(4, CLASSES)), (4, 2, 2)),
}


def entropy(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


def of_samples(shape: tuple[int, ...], at_once: int) -> ClientData:
    mask = torch.ones(SAMPLES, dtype=torch.float64)
    mask[-2:] = 0  # padding
    x = torch.randn(SAMPLES, *shape, dtype=torch.float64)
    return ClientData(x, torch.arange(SAMPLES) % CLASSES, mask, lambda stored: 2 * stored, at_once=at_once)


def one_after_another(module: nn.Module, data: ClientData) -> dict[str, Tensor]:
    total = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    count = int(data.mask.sum())
    for x, y in zip(data.x[:count], data.y[:count], strict=True):
        module.zero_grad()
        out = module(2 * x[None])
        F.cross_entropy(out[0] if isinstance(out, tuple) else out, y[None]).backward()
        for name, p in module.named_parameters():
            assert p.grad is not None
            total[name] += p.grad**2 / count
    return total


@pytest.mark.parametrize("at_once", [4, 64])
@pytest.mark.parametrize(("make", "shape"), [*TAPPED.values(), *UNTAPPED.values()], ids=[*TAPPED, *UNTAPPED])
def test_equals_one_gradient_after_another(make: type[nn.Module], shape: tuple[int, ...], at_once: int) -> None:
    torch.manual_seed(0)
    module, data = make().double().eval(), of_samples(shape, at_once)
    net, weights = Net(module), weights_of(module)
    other = tree.map_tree(lambda leaf: leaf * 1.25, weights)
    both: Tree = tree.stack([weights, other])
    found = per_sample.mean_squared_gradient(net, weights, data, entropy)
    stacked = torch.func.vmap(lambda w: per_sample.mean_squared_gradient(net, w, data, entropy))(both)
    for name, expected in one_after_another(module, data).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(stacked[name][0], expected, rtol=1e-10, atol=1e-14)
    for name, expected in one_after_another(load_weights(module, other), data).items():
        torch.testing.assert_close(stacked[name][1], expected, rtol=1e-10, atol=1e-14)


def test_models_of_plain_layers_take_one_gradient_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(per_sample, "_one_by_one", lambda *_: pytest.fail("differentiated sample by sample"))
    for make, shape in TAPPED.values():
        module = make().double()
        per_sample.mean_squared_gradient(Net(module), weights_of(module), of_samples(shape, 64), entropy)


def test_what_else_a_model_has_is_differentiated_sample_by_sample() -> None:
    for make, shape in UNTAPPED.values():
        module = make().double()
        with pytest.raises(per_sample._NotTappedError):
            per_sample._by_taps(Net(module), weights_of(module), of_samples(shape, 64), entropy)
