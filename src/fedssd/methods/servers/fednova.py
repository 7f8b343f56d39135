"""FedNova: average how clients moved per unit of walking, not how far they walked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedssd.core import tree
from fedssd.core.contract import Closing, Server
from fedssd.core.net import Net
from fedssd.core.tree import Tree
from fedssd.methods.servers.weighting import check_weighting, weighted


@dataclass(frozen=True)
class FedNova(Server):
    """w ← w_g − (Σ p_i a_i) Σ p_i (w_g − w_i)/a_i, a_i = ‖a_i‖₁ the length client i's solver walked.

    ``weighting`` is p_i = n_i/n (as NIID-Bench) or equal. Buffers, which no solver moves, are averaged.
    """

    name: ClassVar[str] = "fednova"
    formula: ClassVar[str] = "w ← w_g − (Σ p_i a_i) Σ p_i (w_g − w_i)/a_i"
    paper: ClassVar[str] = (
        "Wang et al. 2020, Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization"
    )
    needs_length: ClassVar[bool] = True

    weighting: str = "samples"

    def __post_init__(self) -> None:
        check_weighting(self.name, self.weighting)

    def combine(self, net: Net, weights: Tree, memory: Tree, got: Tree, closing: Closing) -> tuple[Tree, Tree]:
        p = weighted(closing.share, self.weighting)
        scale = p * (p @ closing.work.length) / closing.work.length  # [C]
        moved = tree.map_tree(
            lambda w, w_i: w + torch.tensordot(scale.to(w.dtype), w_i - w, dims=1), weights["params"], got["params"]
        )
        return {"params": moved, "buffers": tree.weighted_mean(p, got["buffers"])}, memory
