"""PFNM: find out which neurons of the clients are the same before averaging them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Server, Work
from fedssd.core.net import Net
from fedssd.core.tree import Tree
from fedssd.methods.servers.matching import chain, check_model, incoming, match, outgoing, reordered

WEIGHTINGS = ("samples", "equal")


@dataclass(frozen=True)
class PFNM(Server):
    """w ← J/(J + s) Σ p_i Π_i w_i, Π_i the order of client i's hidden units that agrees best with the others'.

    Layers are matched from the output down, each unit by its bias and what the layer above makes of it; in the first
    layer by what it reads too. ``prior`` is s = σ²/σ₀², how strongly the prior pulls weights towards zero.
    """

    name: ClassVar[str] = "pfnm"
    formula: ClassVar[str] = "w ← J/(J + s) Σ p_i Π_i w_i, Π_i from an assignment, from the output down"
    paper: ClassVar[str] = "Yurochkin et al. 2019, Bayesian Nonparametric Federated Learning of Neural Networks"
    moves_units: ClassVar[bool] = True

    prior: float = 0.0
    weighting: str = "samples"
    sweeps: int = 5

    def __post_init__(self) -> None:
        check_options(self.name, self.weighting, self.sweeps)

    def check(self, net: Net, weights: Tree, x: Tensor) -> None:
        check_model(net, weights, x, self.name)

    def combine(
        self, net: Net, weights: Tree, memory: Tree, got: Tree, share: Tensor, work: Work, auxiliary: Auxiliary | None
    ) -> tuple[Tree, Tree]:
        params, layers = got["params"], chain(weights["params"])
        for place in reversed(range(len(layers) - 1)):
            layer, above = layers[place], layers[place + 1]
            atoms = outgoing(params, layer, above)
            if place == 0:
                atoms = torch.cat([incoming(params, layer), atoms], dim=2)
            elif layer.bias is not None:
                atoms = torch.cat([params[layer.bias][:, :, None], atoms], dim=2)
            params = reordered(params, layer, above, match(atoms, self.sweeps).to(share.device))
        mean = matched_mean(params, share, self.weighting)
        shrunk = tree.map_tree(lambda w: w * (len(share) / (len(share) + self.prior)), mean)
        return {"params": shrunk, "buffers": weights["buffers"]}, memory


def matched_mean(params: Tree, share: Tensor, weighting: str) -> Tree:
    """The mean of stacked parameters whose units are in a common order."""
    return tree.weighted_mean(share if weighting == "samples" else torch.full_like(share, 1 / len(share)), params)


def check_options(name: str, weighting: str, sweeps: int) -> None:
    """Options that PFNM and FedMA share."""
    if weighting not in WEIGHTINGS:
        raise ValueError(f"{name}.weighting expects one of {', '.join(WEIGHTINGS)}, got {weighting!r}")
    if sweeps < 0:
        raise ValueError(f"{name}.sweeps expects a whole number that is not negative, got {sweeps}")
