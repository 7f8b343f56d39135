"""FedAdagrad, FedYogi and FedAdam: the server takes the clients' mean move for a gradient, of an adaptive optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Closing, Server
from fedssd.core.net import Net
from fedssd.core.tree import Tree
from fedssd.methods.servers.weighting import check_weighting, weighted

FORMULA = "Δ = Σ p_i (w_i − w_g), m ← β₁ m + (1 − β₁) Δ, {square}, w ← w_g + η m/(√v + τ)"


@dataclass(frozen=True)
class FedAdam(Server):
    """Algorithm 2 of the paper: Δ the clients' mean move, m its mean over rounds, v that of its square, from τ².

    No bias correction, as there. ``weighting`` is p_i = n_i/n or equal. Buffers are averaged.
    """

    name: ClassVar[str] = "fedadam"
    formula: ClassVar[str] = FORMULA.format(square="v ← β₂ v + (1 − β₂) Δ²")
    paper: ClassVar[str] = "Reddi et al. 2021, Adaptive Federated Optimization"

    server_lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    weighting: str = "samples"

    def __post_init__(self) -> None:
        check_weighting(self.name, self.weighting)

    def memory(self, weights: Tree) -> Tree:
        zero = tree.zeros_like(weights["params"])
        return {"mean": zero, "square": tree.map_tree(lambda leaf: leaf + self.tau**2, zero)}

    def combine(self, net: Net, weights: Tree, memory: Tree, got: Tree, closing: Closing) -> tuple[Tree, Tree]:
        average = tree.weighted_mean(weighted(closing.share, self.weighting), got)
        move = tree.subtract(average["params"], weights["params"])
        mean = tree.map_tree(lambda m, d: self.beta1 * m + (1 - self.beta1) * d, memory["mean"], move)
        square = tree.map_tree(self.squared, memory["square"], move)

        def stepped(w: Tensor, m: Tensor, v: Tensor) -> Tensor:
            return w + self.server_lr * m / (v.sqrt() + self.tau)

        params = tree.map_tree(stepped, weights["params"], mean, square)
        return {"params": params, "buffers": average["buffers"]}, {"mean": mean, "square": square}

    def squared(self, v: Tensor, move: Tensor) -> Tensor:
        """The next mean of the squares."""
        return self.beta2 * v + (1 - self.beta2) * move.square()


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedAdam, but v goes towards Δ² by steps whose size does not depend on v."""

    name: ClassVar[str] = "fedyogi"
    formula: ClassVar[str] = FORMULA.format(square="v ← v − (1 − β₂) Δ² sign(v − Δ²)")

    def squared(self, v: Tensor, move: Tensor) -> Tensor:
        return v - (1 - self.beta2) * move.square() * torch.sign(v - move.square())


@dataclass(frozen=True)
class FedAdagrad(FedAdam):
    """FedAdam, but v is the sum of all squares; β₂ has no part in it, and β₁ is 0 as in the paper's experiments."""

    name: ClassVar[str] = "fedadagrad"
    formula: ClassVar[str] = FORMULA.format(square="v ← v + Δ²")

    beta1: float = 0.0

    def squared(self, v: Tensor, move: Tensor) -> Tensor:
        return v + move.square()
