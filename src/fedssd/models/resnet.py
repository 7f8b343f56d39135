"""ResNet-50 with the CIFAR stem (3×3, stride 1, no max-pool), as MOON's code uses it, also at 64×64."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedssd.core.net import Outputs, outputs
from fedssd.models.head import Head

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
    """Stages of bottlenecks; (3, 4, 6, 3) is ResNet-50."""

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
