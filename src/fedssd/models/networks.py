"""The networks: the paper's CNN and a smaller one, a multilayer perceptron, ResNet-50, and the head they share."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedssd.core.net import Outputs, outputs

PROJECTION = 256


class Head(nn.Module):
    """With projection: n → n, ReLU, n → 256, then 256 → K; features are the projection's output. Without: n → K."""

    def __init__(self, width: int, classes: int, projection: bool) -> None:
        super().__init__()
        self.projection: nn.Module | None = None
        if projection:
            self.projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, PROJECTION))
        self.classifier = nn.Linear(PROJECTION if projection else width, classes)

    def forward(self, x: Tensor) -> Outputs:
        features = self.projection(x) if self.projection is not None else x
        return Outputs(self.classifier(features), features)


class CNN(nn.Module):
    """conv 5×5 → 6, ReLU, pool; conv 5×5 → 16, ReLU, pool; 120, 84, K (62,006 parameters on CIFAR-10)."""

    def __init__(self, shape: tuple[int, ...], classes: int, head: bool = False) -> None:
        super().__init__()
        channels, height, width = shape
        self.conv1, self.conv2 = nn.Conv2d(channels, 6, 5), nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2)
        flat = 16 * _after(height) * _after(width)
        self.fc1, self.fc2 = nn.Linear(flat, 120), nn.Linear(120, 84)
        self.head = Head(84, classes, head)

    def forward(self, x: Tensor) -> Outputs:
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.relu(self.fc1(x.flatten(1)))
        return outputs(self.head(torch.relu(self.fc2(x))))


def _after(side: int) -> int:
    """What two 5×5 convolutions, each pooled by 2, leave of a side."""
    return ((side - 4) // 2 - 4) // 2


class SmallCNN(nn.Module):
    """conv 3×3 → 8, ReLU, pool; conv 3×3 → 16, ReLU, pool; 64, K: about 6,000 parameters on 8×8 digits."""

    def __init__(self, shape: tuple[int, ...], classes: int, head: bool = False) -> None:
        super().__init__()
        channels, height, width = shape
        self.conv1, self.conv2 = nn.Conv2d(channels, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(16 * (height // 4) * (width // 4), 64)
        self.head = Head(64, classes, head)

    def forward(self, x: Tensor) -> Outputs:
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        return outputs(self.head(torch.relu(self.fc(x.flatten(1)))))


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


EXPANSION = 4


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 with batch norm, and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Stages of bottlenecks; (3, 4, 6, 3) is ResNet-50, with the CIFAR stem (3×3, no max-pool) as in MOON's code."""

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        head: bool = False,
        stages: tuple[int, ...] = (3, 4, 6, 3),
        width: int = 64,
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(shape[0], width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        blocks, inputs = [], width
        for stage, count in enumerate(stages):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Bottleneck(inputs, width << stage, stride))
                inputs = (width << stage) * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.head = Head(inputs, classes, head)

    def forward(self, x: Tensor) -> Outputs:
        x = self.blocks(torch.relu(self.bn1(self.conv1(x))))
        return outputs(self.head(x.mean((2, 3))))
