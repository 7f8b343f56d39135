"""FedRS: hold back the logits of classes that the client does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedssd.core.contract import Batch, Local
from fedssd.core.net import Outputs
from fedssd.core.step import cross_entropy
from fedssd.core.tree import Tree


@dataclass(frozen=True)
class FedRS(Local):
    """CE of the restricted softmax, where the logits of missing classes are multiplied by 1 − ``restriction``.

    The paper's α is 1 − ``restriction``: 0.5 by default. At 0 this is FedAvg.
    """

    name: ClassVar[str] = "fedrs"
    formula: ClassVar[str] = "CE( α_k z_k ), α_k = α for classes that the client has not, else 1"
    paper: ClassVar[str] = (
        "Li and Zhan 2021, FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data"
    )
    strength: ClassVar[str] = "restriction"

    restriction: float = 0.5

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        scale = 1 - self.restriction * (batch.counts == 0).to(out.logits.dtype)  # [K]
        return cross_entropy(out.logits * scale, batch.y) - cross_entropy(out.logits, batch.y)  # [B]
