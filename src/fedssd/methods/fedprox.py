"""FedProx: stay close to where the round began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Batch, Local
from fedssd.core.net import Outputs
from fedssd.core.tree import Tree


@dataclass(frozen=True)
class FedProx(Local):
    """L = CE + (μ/2) ‖w − w_g‖²."""

    name: ClassVar[str] = "fedprox"
    formula: ClassVar[str] = "CE + (μ/2) ‖w − w_g‖²"
    paper: ClassVar[str] = "Li et al. 2020, Federated Optimization in Heterogeneous Networks"
    strength: ClassVar[str] = "mu"
    published: ClassVar = {"cifar10": {"mu": 0.01}, "cifar100": {"mu": 0.001}, "tiny-imagenet": {"mu": 0.001}}

    mu: float = 0.01

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        drift = tree.line(params) - tree.line(sent["weights"]["params"])
        return self.mu / 2 * drift.square().sum()
