"""Norm clipping: nobody moves the global model further than the others do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Closing, Server
from fedssd.core.net import Net
from fedssd.core.tree import Tree
from fedssd.methods.servers.trimmed_mean import middle_mean


@dataclass(frozen=True)
class Clipping(Server):
    """w ← w_g + Σ p_i Δ_i · min(1, b/‖Δ_i‖), Δ_i = w_i − w_g.

    b is ``bound`` times the median of the cohort's ‖Δ_i‖, or with ``relative`` off ``bound`` itself. Parameters and
    buffers are clipped apart, each by their own norms.
    """

    name: ClassVar[str] = "clipping"
    formula: ClassVar[str] = "w ← w_g + Σ p_i Δ_i · min(1, b/‖Δ_i‖), Δ_i = w_i − w_g"
    paper: ClassVar[str] = "Sun et al. 2019, Can You Really Backdoor Federated Learning?"

    bound: float = 1.0
    relative: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.bound, float) and not self.bound > 0:
            raise ValueError(
                f"clipping.bound expects a number above 0, got {self.bound:g}: nobody would move the model"
            )

    def combine(self, net: Net, weights: Tree, memory: Tree, got: Tree, closing: Closing) -> tuple[Tree, Tree]:
        return {part: self._clipped(weights[part], got[part], closing.share) for part in weights}, memory

    def _clipped(self, weights: Tree, got: Tree, share: Tensor) -> Tree:
        norms = update_norms(weights, got, share)
        bound = self.bound * (middle_mean(norms, cut=len(norms)) if self.relative else torch.ones_like(norms[0]))
        factor = torch.where(norms > bound, bound / norms, torch.ones_like(norms))

        def moved(w: Tensor, w_i: Tensor) -> Tensor:
            if not w.is_floating_point():
                return w
            step: Tensor = torch.tensordot((share * factor).to(w.dtype), w_i - w, dims=1)
            return w + step

        return tree.map_tree(moved, weights, got)


def update_norms(weights: Tree, got: Tree, share: Tensor) -> Tensor:
    """‖w_i − w_g‖ of every client over one part of the weights, [C]; 0 where the part is empty."""
    squares = torch.zeros_like(share)
    for w, w_i in zip(tree.leaves(weights), tree.leaves(got), strict=True):
        if w.is_floating_point():
            squares = squares + (w_i - w).flatten(1).square().sum(1).to(squares.dtype)
    return squares.sqrt()
