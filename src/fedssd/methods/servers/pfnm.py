"""PFNM: find out which neurons of the clients are the same before averaging them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedssd.core import tree
from fedssd.core.contract import Closing
from fedssd.core.net import Net
from fedssd.core.tree import Tree
from fedssd.methods.servers.matching import MatchedAveraging, chain, incoming, match, outgoing, reordered
from fedssd.methods.servers.weighting import weighted


@dataclass(frozen=True)
class PFNM(MatchedAveraging):
    """w ← J/(J + s) Σ p_i Π_i w_i, Π_i the order of client i's hidden units that agrees best with the others'.

    Layers are matched from the output down, each unit by its bias and what the layer above makes of it; in the first
    layer by what it reads too. ``prior`` is s = σ²/σ₀², how strongly the prior pulls weights towards zero.
    """

    name: ClassVar[str] = "pfnm"
    formula: ClassVar[str] = "w ← J/(J + s) Σ p_i Π_i w_i, Π_i from an assignment, from the output down"
    paper: ClassVar[str] = "Yurochkin et al. 2019, Bayesian Nonparametric Federated Learning of Neural Networks"

    prior: float = 0.0

    def combine(self, net: Net, weights: Tree, memory: Tree, got: Tree, closing: Closing) -> tuple[Tree, Tree]:
        params, layers = got["params"], chain(weights["params"])
        for place in reversed(range(len(layers) - 1)):
            layer, above = layers[place], layers[place + 1]
            atoms = outgoing(params, layer, above)
            if place == 0:
                atoms = torch.cat([incoming(params, layer), atoms], dim=2)
            elif layer.bias is not None:
                atoms = torch.cat([params[layer.bias][:, :, None], atoms], dim=2)
            params = reordered(params, layer, above, match(atoms, self.sweeps).to(closing.share.device))
        clients = len(closing.share)
        mean = tree.weighted_mean(weighted(closing.share, self.weighting), params)
        shrunk = tree.map_tree(lambda w: w * (clients / (clients + self.prior)), mean)
        return {"params": shrunk, "buffers": weights["buffers"]}, memory
