"""The convolutional networks: the paper's for 32×32 images, and a small one for digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedssd.core.net import Outputs, outputs
from fedssd.models.head import Head


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
