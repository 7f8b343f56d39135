"""MOON: contrast a client's features with those of the global model and of its own previous model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.contract import Batch, ClientData, Local, Work
from fedssd.core.net import Net, Outputs
from fedssd.core.tree import Tree
from fedssd.methods.distillation import check_temperature


@dataclass(frozen=True)
class MOON(Local):
    """L = CE − μ log( e^{s(h,h_g)/T} / (e^{s(h,h_g)/T} + e^{s(h,h_prev)/T}) ), s the cosine of two features.

    h_prev comes from the client's own last local model, however long ago that was. Before a client has one the term
    is zero.
    """

    name: ClassVar[str] = "moon"
    formula: ClassVar[str] = "CE − μ log( e^{s(h,h_g)/T} / (e^{s(h,h_g)/T} + e^{s(h,h_prev)/T}) )"
    paper: ClassVar[str] = "Li, He and Song 2021, Model-Contrastive Federated Learning"
    strength: ClassVar[str] = "mu"
    published: ClassVar = {"cifar10": {"mu": 5.0}, "cifar100": {"mu": 1.0}, "tiny-imagenet": {"mu": 1.0}}
    needs_head: ClassVar[bool] = True
    tied_to_places: ClassVar[str] = "the features of its previous model"

    mu: float = 5.0
    temperature: float = 0.5

    def __post_init__(self) -> None:
        check_temperature(self.name, self.temperature)

    def memory(self, sent: Tree) -> Tree:
        return {"previous": sent["weights"], "known": tree.leaves(sent["weights"])[0].new_zeros(())}

    def targets(self, net: Net, sent: Tree, memory: Tree, batch: Batch) -> Tree:
        return {
            "global": net(sent["weights"], batch.x).features,
            "previous": net(memory["previous"], batch.x).features,
        }

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        towards = F.cosine_similarity(out.features, target["global"], dim=-1)
        away = F.cosine_similarity(out.features, target["previous"], dim=-1)
        # −log(e^a / (e^a + e^b)) = softplus(b − a)
        strength: Tensor = self.mu * memory["known"]
        return strength * F.softplus((away - towards) / self.temperature)

    def finish(
        self, net: Net, weights: Tree, sent: Tree, memory: Tree, data: ClientData | None, work: Work
    ) -> tuple[Tree, Tree]:
        return {"previous": weights, "known": torch.ones_like(memory["known"])}, {}
