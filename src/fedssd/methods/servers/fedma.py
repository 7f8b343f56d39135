"""FedMA: match and average layer by layer, and re-train what lies above before matching on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedssd.core import tree
from fedssd.core.contract import Closing
from fedssd.core.net import Net
from fedssd.core.tree import Tree
from fedssd.methods.servers.matching import Layer, MatchedAveraging, chain, incoming, match, reordered
from fedssd.methods.servers.weighting import weighted


@dataclass(frozen=True)
class FedMA(MatchedAveraging):
    """Round by round: match the lowest layer that is not yet frozen and those above it, average, freeze one layer more.

    Layers are matched from the input up, each unit by what it reads and its bias. A model of N layers takes N rounds:
    all layers are trained in the first, the classifier alone in the last; then all are free again.
    """

    name: ClassVar[str] = "fedma"
    formula: ClassVar[str] = (
        "w ← Σ p_i Π_i w_i, Π_i from an assignment, from the input up; one layer more frozen a round"
    )
    paper: ClassVar[str] = "Wang et al. 2020, Federated Learning with Matched Averaging"

    def memory(self, weights: Tree) -> Tree:
        return {"frozen": next(iter(weights["params"].values())).new_zeros(())}

    def broadcast(self, memory: Tree) -> Tree:
        return {"frozen": memory["frozen"]}

    def hold(self, sent: Tree, before: Tree, after: Tree) -> Tree:
        held = {}
        for depth, layer in enumerate(chain(before)):
            for name in _names(layer):
                held[name] = torch.where(sent["frozen"] > depth, before[name], after[name])
        return held

    def combine(self, net: Net, weights: Tree, memory: Tree, got: Tree, closing: Closing) -> tuple[Tree, Tree]:
        params, layers = got["params"], chain(weights["params"])
        frozen = int(memory["frozen"])
        for place in range(frozen, len(layers) - 1):
            layer, above = layers[place], layers[place + 1]
            order = match(incoming(params, layer), self.sweeps).to(closing.share.device)
            params = reordered(params, layer, above, order)
        mean = tree.weighted_mean(weighted(closing.share, self.weighting), params)
        for layer in layers[:frozen]:  # the mean of equal layers, without its rounding
            mean |= {name: weights["params"][name] for name in _names(layer)}
        return (
            {"params": mean, "buffers": weights["buffers"]},
            {"frozen": torch.full_like(memory["frozen"], (frozen + 1) % len(layers))},
        )


def _names(layer: Layer) -> tuple[str, ...]:
    return (layer.weight,) if layer.bias is None else (layer.weight, layer.bias)
