"""FedAvgM: the server moves with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Closing, Server
from fedssd.core.net import Net
from fedssd.core.tree import Tree
from fedssd.methods.servers.weighting import check_weighting, weighted


@dataclass(frozen=True)
class FedAvgM(Server):
    """v ← β v + Σ p_i (w_g − w_i);  w ← w_g − η v.  Buffers are averaged."""

    name: ClassVar[str] = "fedavgm"
    formula: ClassVar[str] = "v ← β v + Σ p_i (w_g − w_i), w ← w_g − η v"
    paper: ClassVar[str] = (
        "Hsu, Qi and Brown 2019, Measuring the Effects of Non-Identical Data Distribution for Federated Visual "
        "Classification"
    )

    server_lr: float = 1.0
    momentum: float = 0.9
    weighting: str = "samples"

    def __post_init__(self) -> None:
        check_weighting(self.name, self.weighting)

    def memory(self, weights: Tree) -> Tree:
        return {"velocity": tree.zeros_like(weights["params"])}

    def combine(self, net: Net, weights: Tree, memory: Tree, got: Tree, closing: Closing) -> tuple[Tree, Tree]:
        mean = tree.weighted_mean(weighted(closing.share, self.weighting), got)

        def sped(v: Tensor, w: Tensor, new: Tensor) -> Tensor:
            return self.momentum * v + (w - new)

        velocity = tree.map_tree(sped, memory["velocity"], weights["params"], mean["params"])
        params = tree.map_tree(lambda w, v: w - self.server_lr * v, weights["params"], velocity)
        return {"params": params, "buffers": mean["buffers"]}, {"velocity": velocity}
