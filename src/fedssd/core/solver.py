"""Stochastic gradient descent with momentum and weight decay, as PyTorch's: state in, state out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.tree import Tree


@dataclass(frozen=True)
class SGD:
    """v ← ρ v + g + λ w;  w ← w − η v.  The velocity starts at zero every round."""

    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0

    def init(self, params: Tree) -> Tree:
        """The velocity before the first step."""
        return tree.zeros_like(params)

    def step(self, params: Tree, velocity: Tree, gradients: Tree) -> tuple[Tree, Tree]:
        """One step: the new parameters and the new velocity."""
        velocity = tree.map_tree(
            lambda v, g, p: self.momentum * v + (g + self.weight_decay * p), velocity, gradients, params
        )
        return tree.map_tree(lambda p, v: p - self.lr * v, params, velocity), velocity

    def length(self, steps: Tensor) -> Tensor:
        """η‖a‖₁ after so many steps: η times the sum of the weights that each step's gradient carries at the end.

        ‖a‖₁ = (τ − ρ(1 − ρ^τ)/(1 − ρ)) / (1 − ρ), which is τ without momentum.
        """
        rest = 1 - self.momentum
        momentum = torch.as_tensor(self.momentum, dtype=steps.dtype, device=steps.device)
        return self.lr * (steps - momentum * (1 - momentum**steps) / rest) / rest
