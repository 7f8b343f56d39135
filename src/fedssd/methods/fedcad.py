"""FedCAD: self-distillation weighted by how well the global model knows the sample's class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedssd.core.contract import Auxiliary, Batch, Local
from fedssd.core.net import Net, Outputs
from fedssd.core.tree import Tree
from fedssd.methods.distillation import check_temperature, kl_divergence, measure_credibility


@dataclass(frozen=True)
class FedCAD(Local):
    """L = CE + λ a_y T² KL( softmax(z_g/T) ‖ softmax(z/T) ), a_y the global model's recall on the sample's class."""

    name: ClassVar[str] = "fedcad"
    formula: ClassVar[str] = "CE + λ a_y T² KL( softmax(z_g/T) ‖ softmax(z/T) ), a_y = A[y,y]"
    paper: ClassVar[str] = (
        "He et al. 2022, Class-wise Adaptive Self Distillation for Federated Learning on Non-IID Data"
    )
    tells_down: ClassVar[str] = "mean weights, K accuracies on D_V"
    strength: ClassVar[str] = "lam"
    needs_auxiliary: ClassVar[bool] = True

    lam: float = 0.1
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_temperature(self.name, self.temperature)

    def broadcast(self, net: Net, weights: Tree, memory: Tree, auxiliary: Auxiliary | None) -> Tree:
        return {"recall": measure_credibility(net, weights, auxiliary).diagonal().clone()}

    def targets(self, net: Net, sent: Tree, memory: Tree, batch: Batch) -> Tree:
        return {"logits": net(sent["weights"], batch.x).logits, "weight": sent["recall"][batch.y]}

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        weight: Tensor = self.lam * target["weight"]
        return weight * kl_divergence(target["logits"], out.logits, self.temperature)

    def distilled(self, batch: Batch, target: Tree) -> dict[str, Tensor]:
        weight = target["weight"]
        return {"weight": weight, "active": (weight > 0).to(weight.dtype)}
