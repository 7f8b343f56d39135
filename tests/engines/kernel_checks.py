"""What the tests of our kernels in stacked models share: tiny sizes, as Triton's interpreter runs the kernels here."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from interpreted import INTERPRETED
from torch import Tensor, nn
from torch.func import vmap

from fedssd.core import tree
from fedssd.core.net import Net, Outputs, weights_of
from fedssd.engines.kernels import layers, losses
from fedssd.engines.kernels.net import StackedNet

MODELS, BATCH = 2, 2
Weights = dict[str, dict[str, Tensor]]

COMPILED = find_spec("triton") is not None and not INTERPRETED and torch.cuda.is_available()
PLACE = torch.device("cuda" if COMPILED else "cpu")  # where kernels run in this process
needs_kernels = pytest.mark.skipif(
    not INTERPRETED and not COMPILED, reason="no Triton, or neither a GPU nor its interpreter"
)
needs_interpreter = pytest.mark.skipif(not INTERPRETED, reason="kernels on the CPU need Triton, and TRITON_INTERPRET=1")


def note_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is asked of the kernels from now on: the layer and what went into it."""
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


def stacked(make: Callable[[], nn.Module]) -> Weights:
    """The weights of some models of one kind, which learn."""
    weights = tree.stack([weights_of(make()) for _ in range(MODELS)])
    return tree.map_tree(lambda leaf: leaf.requires_grad_(True), weights)


def trained(net: Net, weights: Weights, x: Tensor, precision: str | None = "ieee") -> tuple[Any, Any]:
    """What stacked models make of their own inputs as they train: with our kernels, and without."""
    ours, plain = (vmap(lambda w, one, n=n: n.train(w, one)[0])(weights, x) for n in (StackedNet(net, precision), net))
    return ours, plain


def assert_same_gradients(found: Outputs, expected: Outputs, weights: Weights) -> None:
    for ours, theirs in zip(gradients(found, weights), gradients(expected, weights), strict=True):
        close(ours, theirs)


def gradients(out: Outputs, weights: Weights) -> list[Tensor]:
    return list(torch.autograd.grad(out.logits.square().sum() + out.features.sum(), tree.leaves(weights)))


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
