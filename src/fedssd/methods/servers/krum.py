"""Krum: believe the client that has the most others close to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Closing, Server
from fedssd.core.net import Net
from fedssd.core.tree import Tree


@dataclass(frozen=True)
class Krum(Server):
    """w ← w_i*, i* = argmin Σ ‖w_i − w_j‖² over the C − f − 2 clients j nearest to i.

    f is ``bad``, the number of clients assumed to lie. ``keep`` above 1 is multi-Krum: the plain mean of that many
    clients with the best scores. Distances are those of the parameters.
    """

    name: ClassVar[str] = "krum"
    formula: ClassVar[str] = "w ← w_i*, i* = argmin Σ ‖w_i − w_j‖² over the C − f − 2 clients j nearest to i"
    paper: ClassVar[str] = (
        "Blanchard et al. 2017, Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent"
    )
    tells_down: ClassVar[str] = "one client's weights"

    bad: int = 2
    keep: int = 1

    def __post_init__(self) -> None:
        if self.bad < 0 or self.keep < 1:
            raise ValueError(f"krum expects bad of at least 0 and keep of at least 1, got {self.bad} and {self.keep}")

    def combine(self, net: Net, weights: Tree, memory: Tree, got: Tree, closing: Closing) -> tuple[Tree, Tree]:
        scores = krum_scores(squared_distances(got["params"]), self.bad)
        chosen = torch.sort(scores, stable=True).indices[: self.keep]  # NaN sorts last
        if self.keep == 1:
            return tree.map_tree(lambda leaf: leaf[chosen][0], got), memory
        equal = torch.full_like(closing.share[: len(chosen)], 1 / len(chosen))
        return tree.weighted_mean(equal, tree.map_tree(lambda leaf: leaf[chosen], got)), memory


def squared_distances(stacked: Tree) -> Tensor:
    """‖w_i − w_j‖² of every two clients, [C, C]; leaf by leaf, so that no second copy of all models is made."""
    total = torch.zeros(())
    for leaf in tree.leaves(stacked):
        flat = leaf.flatten(1)
        exact = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist")
        total = total.to(exact) + exact.square()
    return total


def krum_scores(distances: Tensor, bad: int) -> Tensor:
    """For each client the sum over its C − f − 2 nearest others, at least one where there is any; [C]."""
    clients = len(distances)
    nearest = max(clients - bad - 2, min(1, clients - 1))
    return distances.sort(dim=1).values[:, 1 : 1 + nearest].sum(1)  # the first is the client itself, at distance 0
