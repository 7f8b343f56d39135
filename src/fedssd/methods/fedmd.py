"""FedMD: digest what all clients think of a public set, then revisit one's own data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedssd.core.contract import Batch, Reports
from fedssd.core.net import Outputs
from fedssd.core.plan import Phase
from fedssd.core.tree import Tree
from fedssd.methods.consensus import Consensus


@dataclass(frozen=True)
class FedMD(Consensus):
    """Digest: λ · mean over classes of |z − z̄| on the public set, z̄ the mean of the clients' logits; revisit: CE.

    In the first round nobody has said anything, and a client only trains on its own data.
    """

    name: ClassVar[str] = "fedmd"
    formula: ClassVar[str] = "digest: λ mean_k |z − z̄|_k on the public set, z̄ the clients' mean; then revisit: CE"
    paper: ClassVar[str] = "Li and Wang 2019, FedMD: Heterogenous Federated Learning via Model Distillation"
    tells_up: ClassVar[str] = "outputs on the public set"
    tells_down: ClassVar[str] = "their mean"
    strength: ClassVar[str] = "lam"

    lam: float = 1.0
    digest: int = 1

    def __post_init__(self) -> None:
        if self.digest < 1:
            raise ValueError(f"fedmd.digest expects a whole number of at least 1, got {self.digest}")

    def phases(self, sent: Tree) -> tuple[Phase, ...]:
        return (Phase("public", self.digest), Phase()) if "consensus" in sent else (Phase(),)

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        if not target:
            return out.logits.new_zeros(())
        apart: Tensor = (out.logits - target["consensus"]).abs().mean(-1)
        return self.lam * apart * (1 - batch.labelled)

    def absorb(self, memory: Tree, weights: Tree, reports: Reports) -> Tree:
        return {"consensus": reports.content["scores"].mean(0)}
