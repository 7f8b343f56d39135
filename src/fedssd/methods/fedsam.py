"""FedSAM: look for flat minima by taking every gradient uphill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedssd.core import tree
from fedssd.core.contract import Local
from fedssd.core.tree import Tree


@dataclass(frozen=True)
class FedSAM(Local):
    """Each step's gradient is that of CE at w + ρ g/‖g‖, g the gradient at w. It takes two passes a step."""

    name: ClassVar[str] = "fedsam"
    formula: ClassVar[str] = "CE( w + ρ g/‖g‖ ), g = ∇CE(w)"
    paper: ClassVar[str] = "Qu et al. 2022, Generalized Federated Learning via Sharpness Aware Minimization"
    strength: ClassVar[str] = "rho"

    rho: float = 0.05

    def point(self, params: Tree, gradient: Tree, sent: Tree, memory: Tree) -> Tree:
        line = tree.line(gradient)
        uphill = self.rho / line.norm().clamp(min=torch.finfo(line.dtype).tiny)
        return tree.map_tree(lambda p, g: p + uphill * g, params, gradient)
