"""A multilayer perceptron, for tables and anything else that is a row of numbers."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import Tensor, nn

from fedssd.core.net import Outputs, outputs
from fedssd.models.head import Head

HIDDEN = (128, 64)


class MLP(nn.Module):
    """inputs → 128 → 64 → K with ReLU between; images are flattened."""

    def __init__(
        self, shape: tuple[int, ...], classes: int, head: bool = False, hidden: tuple[int, ...] = HIDDEN
    ) -> None:
        super().__init__()
        widths = (math.prod(shape), *hidden)
        layers = [layer for n, m in pairwise(widths) for layer in (nn.Linear(n, m), nn.ReLU())]
        self.body = nn.Sequential(nn.Flatten(), *layers)
        self.head = Head(widths[-1], classes, head)

    def forward(self, x: Tensor) -> Outputs:
        return outputs(self.head(self.body(x)))
