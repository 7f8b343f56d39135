"""FedGKD: distil the average of the last few global models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Batch, Local, Reports
from fedssd.core.net import Net, Outputs
from fedssd.core.tree import Tree
from fedssd.methods.distillation import check_temperature, kl_divergence


@dataclass(frozen=True)
class FedGKD(Local):
    """L = CE + (γ/2) T² KL( softmax(z̄/T) ‖ softmax(z/T) ), z̄ the logits of the mean of the last M global models.

    The server keeps the last M global models and sends their mean beside the current one.
    """

    name: ClassVar[str] = "fedgkd"
    formula: ClassVar[str] = (
        "CE + (γ/2) T² KL( softmax(z̄/T) ‖ softmax(z/T) ), z̄ from the mean of the last M global models"
    )
    paper: ClassVar[str] = "Yao et al. 2021, Local-Global Knowledge Distillation in Heterogeneous Federated Learning"
    tells_down: ClassVar[str] = "the last M mean weights"
    strength: ClassVar[str] = "gamma"
    tied_to_places: ClassVar[str] = "the mean of the last global models"

    gamma: float = 0.2
    temperature: float = 1.0
    models: int = 5

    def __post_init__(self) -> None:
        check_temperature(self.name, self.temperature)
        if self.models < 1:
            raise ValueError(f"fedgkd.models expects a whole number of at least 1, got {self.models}")

    def server_memory(self, weights: Tree) -> Tree:
        first = tree.map_tree(lambda w: torch.stack([w, *[torch.zeros_like(w)] * (self.models - 1)]), weights)
        return {"last": first, "count": tree.leaves(weights)[0].new_ones(())}

    def broadcast(self, net: Net, weights: Tree, memory: Tree, auxiliary: Auxiliary | None) -> Tree:
        return {"teacher": tree.map_tree(lambda last: last.sum(0) / memory["count"], memory["last"])}

    def targets(self, net: Net, sent: Tree, memory: Tree, batch: Batch) -> Tree:
        return {"logits": net(sent["teacher"], batch.x).logits}

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        return self.gamma / 2 * kl_divergence(target["logits"], out.logits, self.temperature)

    def absorb(self, memory: Tree, weights: Tree, reports: Reports) -> Tree:
        """The newest model first; slots not yet filled are zeros and do not count."""
        last = tree.map_tree(lambda kept, new: torch.cat([new[None], kept[:-1]]), memory["last"], weights)
        return {"last": last, "count": (memory["count"] + 1).clamp(max=self.models)}
