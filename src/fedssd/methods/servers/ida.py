"""IDA: clients far from the mean model count less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedssd.core import tree
from fedssd.core.contract import Closing, Server
from fedssd.core.net import Net
from fedssd.core.tree import Tree


@dataclass(frozen=True)
class IDA(Server):
    """w ← Σ k_i w_i, k_i ∝ 1/‖w_i − w̄‖, w̄ the plain mean; ``norm`` 1 sums absolute differences instead.

    ``by_samples`` multiplies k_i by n_i. Clients that all equal the mean share equally.
    """

    name: ClassVar[str] = "ida"
    formula: ClassVar[str] = "w ← Σ k_i w_i, k_i ∝ 1/‖w_i − w̄‖"
    paper: ClassVar[str] = "Yeganeh et al. 2020, Inverse Distance Aggregation for Federated Learning with Non-IID Data"

    norm: int = 2
    by_samples: bool = False

    def __post_init__(self) -> None:
        if self.norm not in (1, 2):
            raise ValueError(f"ida.norm expects 1 or 2, got {self.norm}")

    def combine(self, net: Net, weights: Tree, memory: Tree, got: Tree, closing: Closing) -> tuple[Tree, Tree]:
        flat = torch.cat([leaf.flatten(1) for leaf in tree.leaves(got["params"])], dim=1)  # [C, P]
        distance = torch.linalg.vector_norm(flat - flat.mean(0), ord=self.norm, dim=1)  # [C]
        tiny = torch.finfo(flat.dtype).tiny
        inverse = distance.clamp(min=tiny).min() / distance.clamp(min=tiny)  # scaled, so that no client overflows
        inverse = inverse * closing.share if self.by_samples else inverse
        return tree.weighted_mean(inverse / inverse.sum(), got), memory
