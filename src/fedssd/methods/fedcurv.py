"""FedCurv: elastic weight consolidation towards every other client's model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Batch, ClientData, Local, Reports, Work, mean_over
from fedssd.core.net import Net, Outputs
from fedssd.core.tree import Tree


@dataclass(frozen=True)
class FedCurv(Local):
    """L = CE + λ Σ_{j≠i} Σ_p F_j[p] (w[p] − w_j[p])² = CE + λ(⟨P, w²⟩ − 2⟨Q, w⟩) + constant.

    P = Σ_{j≠i} F_j and Q = Σ_{j≠i} F_j ⊙ w_j. F_j is the diagonal Fisher information: the mean of squared per-sample
    gradients of the log-likelihood at w_j on client j's data. The server keeps the sums over all clients; a client
    subtracts its own part. Everything starts at zero, so the first round is FedAvg.
    """

    name: ClassVar[str] = "fedcurv"
    formula: ClassVar[str] = "CE + λ Σ_{j≠i} Σ_p F_j[p] (w[p] − w_j[p])²"
    paper: ClassVar[str] = "Shoham et al. 2019, Overcoming Forgetting in Federated Learning on Non-IID Data"
    tells_up: ClassVar[str] = "weights, mean squared gradients of single samples"
    tells_down: ClassVar[str] = "mean weights, the others' squared gradients"
    strength: ClassVar[str] = "lam"
    published: ClassVar = {"cifar10": {"lam": 1e-3}, "cifar100": {"lam": 1e-4}, "tiny-imagenet": {"lam": 1e-5}}
    reads_data: ClassVar[bool] = True
    tied_to_places: ClassVar[str] = "the Fisher information of other rounds' models"

    lam: float = 1e-3

    def server_memory(self, weights: Tree) -> Tree:
        zero = tree.zeros_like(weights["params"])
        return {"fisher": zero, "fisher_weights": zero}

    def broadcast(self, net: Net, weights: Tree, memory: Tree, auxiliary: Auxiliary | None) -> Tree:
        return memory

    def memory(self, sent: Tree) -> Tree:
        return self.server_memory(sent["weights"])

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        fisher, centre = (tree.line(sent[name]) - tree.line(memory[name]) for name in ("fisher", "fisher_weights"))
        w = tree.line(params)
        return self.lam * ((fisher * w - 2 * centre) * w).sum()

    def finish(
        self, net: Net, weights: Tree, sent: Tree, memory: Tree, data: ClientData | None, work: Work
    ) -> tuple[Tree, Tree]:
        assert data is not None  # reads_data promises it
        fisher = diagonal_fisher(net, weights, data)
        new = {"fisher": fisher, "fisher_weights": tree.map_tree(torch.mul, fisher, weights["params"])}
        return new, tree.subtract(new, memory)

    def absorb(self, memory: Tree, weights: Tree, reports: Reports) -> Tree:
        return tree.map_tree(lambda total, change: total + change.sum(0), memory, reports.content)


def diagonal_fisher(net: Net, weights: Tree, data: ClientData) -> Tree:
    """The mean over samples of the squared gradient of log p(y|x), one number per parameter."""

    def squared_gradient(x: Tensor, y: Tensor) -> Tree:
        def loss(params: Tree) -> Tensor:
            logits = net({"params": params, "buffers": weights["buffers"]}, x[None]).logits
            return F.cross_entropy(logits, y[None])

        return tree.map_tree(torch.square, torch.func.grad(loss)(weights["params"]))

    return mean_over(data, squared_gradient)
