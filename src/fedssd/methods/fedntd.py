"""FedNTD: distil the global model's opinion of the classes a sample does not belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from fedssd.core.contract import Batch, Local
from fedssd.core.net import Net, Outputs
from fedssd.core.tree import Tree
from fedssd.methods.distillation import check_temperature, is_class


@dataclass(frozen=True)
class FedNTD(Local):
    """L = CE + β T² KL( softmax(z̃_g/T) ‖ softmax(z̃/T) ), z̃ the logits without the true class."""

    name: ClassVar[str] = "fedntd"
    formula: ClassVar[str] = "CE + β T² KL( softmax(z̃_g/T) ‖ softmax(z̃/T) ), z̃ without the true class"
    paper: ClassVar[str] = "Lee et al. 2022, Preservation of the Global Knowledge by Not-True Distillation"
    strength: ClassVar[str] = "beta"

    beta: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_temperature(self.name, self.temperature)

    def targets(self, net: Net, sent: Tree, memory: Tree, batch: Batch) -> Tree:
        return {"logits": net(sent["weights"], batch.x).logits}

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        true = is_class(batch.y, out.logits.shape[-1])

        def log_not_true(logits: Tensor) -> Tensor:
            return F.log_softmax((logits / self.temperature).masked_fill(true, float("-inf")), dim=-1)

        log_p, log_q = log_not_true(target["logits"]), log_not_true(out.logits)
        difference = (log_p - log_q).masked_fill(true, 0.0)  # −∞ − −∞ at the true class
        return self.beta * self.temperature**2 * (log_p.exp() * difference).sum(-1)
