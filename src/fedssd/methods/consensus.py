"""What methods share whose clients agree on a public set: each says what it thinks, and hears what all think."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedssd.core.contract import Auxiliary, Batch, ClientData, Work
from fedssd.core.net import Net
from fedssd.core.tree import Tree
from fedssd.methods.own_model import OwnModel

CHUNK = 128  # public samples that go through a model at once


@dataclass(frozen=True)
class Consensus(OwnModel):
    """Own models and a public set: scores go up, and their consensus, which ``absorb`` makes, comes down."""

    needs_auxiliary: ClassVar[bool] = True
    needs_public: ClassVar[bool] = True
    reads_data: ClassVar[bool] = True

    def scores(self, logits: Tensor) -> Tensor:
        """What a client says about a sample."""
        return logits

    def broadcast(self, net: Net, weights: Tree, memory: Tree, auxiliary: Auxiliary | None) -> Tree:
        return memory

    def targets(self, net: Net, sent: Tree, memory: Tree, batch: Batch) -> Tree:
        return {"consensus": sent["consensus"][batch.public]} if "consensus" in sent else {}

    def finish(
        self, net: Net, weights: Tree, sent: Tree, memory: Tree, data: ClientData | None, work: Work
    ) -> tuple[Tree, Tree]:
        if data is None or data.public is None:
            raise ValueError(f"{self.name} needs a public set, and there is none")
        said = [self.scores(net(weights, part).logits) for part in torch.split(data.public, CHUNK)]
        return {"model": weights}, {"scores": torch.cat(said)}
