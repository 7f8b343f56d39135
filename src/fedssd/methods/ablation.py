"""The paper's ablation: distillation from the global model with one constant weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedssd.core.contract import Batch, Local
from fedssd.core.net import Net, Outputs
from fedssd.core.tree import Tree
from fedssd.methods.distillation import check_temperature, kl_divergence


@dataclass(frozen=True)
class Distillation(Local):
    """What both ablations share: the global model's logits as target."""

    paper: ClassVar[str] = "He et al., Learning Critically (FedSSD), Table 3"
    strength: ClassVar[str] = "alpha"

    def targets(self, net: Net, sent: Tree, memory: Tree, batch: Batch) -> Tree:
        return {"logits": net(sent["weights"], batch.x).logits}


@dataclass(frozen=True)
class KLDistillation(Distillation):
    """L = CE + α T² KL( softmax(z_g/T) ‖ softmax(z/T) )."""

    name: ClassVar[str] = "kl"
    formula: ClassVar[str] = "CE + α T² KL( softmax(z_g/T) ‖ softmax(z/T) )"

    alpha: float = 0.1
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_temperature(self.name, self.temperature)

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        return self.alpha * kl_divergence(target["logits"], out.logits, self.temperature)


@dataclass(frozen=True)
class MSEDistillation(Distillation):
    """L = CE + α ‖z_g − z‖²."""

    name: ClassVar[str] = "mse"
    formula: ClassVar[str] = "CE + α ‖z_g − z‖²"

    alpha: float = 0.01
    reduction: str = "sum"

    def __post_init__(self) -> None:
        if self.reduction not in ("sum", "mean"):
            raise ValueError(f"mse.reduction expects sum or mean, got {self.reduction!r}")

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        square: Tensor = (target["logits"] - out.logits).square()
        return self.alpha * (square.sum(-1) if self.reduction == "sum" else square.mean(-1))
