"""The last layers of every model: MOON's projection head where asked for, then the classifier."""

from __future__ import annotations

from torch import Tensor, nn

from fedssd.core.net import Outputs

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
