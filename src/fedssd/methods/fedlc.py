"""FedLC: lift the logits of classes that the client has few samples of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedssd.core.contract import Batch, Local
from fedssd.core.net import Outputs
from fedssd.core.step import cross_entropy
from fedssd.core.tree import Tree


@dataclass(frozen=True)
class FedLC(Local):
    """CE of z_k − τ n_k^(−1/4), n_k the client's samples of class k, written as a penalty beside the plain one.

    A class without samples counts as one with ``missing`` of them. At τ = 0 this is FedAvg.
    """

    name: ClassVar[str] = "fedlc"
    formula: ClassVar[str] = "CE( z_k − τ n_k^(−1/4) ), n_k the client's samples of class k"
    paper: ClassVar[str] = "Zhang et al. 2022, Federated Learning with Label Distribution Skew via Logits Calibration"
    strength: ClassVar[str] = "tau"

    tau: float = 1.0
    missing: float = 1e-8

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        margin = self.tau * batch.counts.clamp(min=self.missing) ** -0.25  # [K]
        return cross_entropy(out.logits - margin, batch.y) - cross_entropy(out.logits, batch.y)  # [B]
