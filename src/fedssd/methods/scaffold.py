"""SCAFFOLD: correct every local step by the difference between the clients' and the client's drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Batch, ClientData, Local, Reports, Work
from fedssd.core.net import Net, Outputs
from fedssd.core.tree import Tree


@dataclass(frozen=True)
class Scaffold(Local):
    """g − c_i + c in place of g, written as the gradient of the linear penalty ⟨c − c_i, w⟩.

    After the round (option II of the paper) c_i⁺ = c_i − c + (w_g − w)/(η‖a_i‖₁), and c ← c + |S|/N · mean(c_i⁺ − c_i).
    Both variates start at zero. η‖a_i‖₁ is Kη without momentum; with momentum it is the length the solver walked, so
    that c_i⁺ stays a mean gradient.
    """

    name: ClassVar[str] = "scaffold"
    formula: ClassVar[str] = "CE + ⟨c − c_i, w⟩, c_i ← c_i − c + (w_g − w)/(η‖a_i‖₁)"
    paper: ClassVar[str] = "Karimireddy et al. 2020, SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
    tells_up: ClassVar[str] = "weights, a mean gradient"
    tells_down: ClassVar[str] = "mean weights, a mean gradient"
    tied_to_places: ClassVar[str] = "its control variates"
    needs_length: ClassVar[bool] = True

    def server_memory(self, weights: Tree) -> Tree:
        return {"variate": tree.zeros_like(weights["params"])}

    def broadcast(self, net: Net, weights: Tree, memory: Tree, auxiliary: Auxiliary | None) -> Tree:
        return memory

    def memory(self, sent: Tree) -> Tree:
        return self.server_memory(sent["weights"])

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        return ((tree.line(sent["variate"]) - tree.line(memory["variate"])) * tree.line(params)).sum()

    def finish(
        self, net: Net, weights: Tree, sent: Tree, memory: Tree, data: ClientData | None, work: Work
    ) -> tuple[Tree, Tree]:
        new = tree.map_tree(
            lambda own, common, before, after: own - common + (before - after) / work.length,
            memory["variate"],
            sent["variate"],
            sent["weights"]["params"],
            weights["params"],
        )
        return {"variate": new}, {"change": tree.subtract(new, memory["variate"])}

    def absorb(self, memory: Tree, weights: Tree, reports: Reports) -> Tree:
        def moved(variate: Tensor, change: Tensor) -> Tensor:
            return variate + reports.cohort * change.mean(0)

        return {"variate": tree.map_tree(moved, memory["variate"], reports.content["change"])}
