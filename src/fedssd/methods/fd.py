"""FD: clients tell each other how they see each class on average, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Batch, ClientData, Reports, Work, mean_over
from fedssd.core.net import Net, Outputs
from fedssd.core.tree import Tree
from fedssd.methods.distillation import is_class
from fedssd.methods.own_model import OwnModel


@dataclass(frozen=True)
class FD(OwnModel):
    """L = CE + γ CE( F̂_y, softmax(z) ), F̂_y the mean over the other clients of F_j[y].

    F_j[c] is the mean softmax output of client j's model over its samples of class c. The server keeps the sum over
    all clients of F_j and, for each class, how many of them hold it; a client subtracts its own part. A class that no
    other client holds has no teacher.
    """

    name: ClassVar[str] = "fd"
    formula: ClassVar[str] = "CE + γ CE( F̂_y, softmax(z) ), F̂_y the other clients' mean output on class y"
    paper: ClassVar[str] = (
        "Jeong et al. 2018, Communication-Efficient On-Device Machine Learning: "
        "Federated Distillation and Augmentation under Non-IID Private Data"
    )
    tells_up: ClassVar[str] = "mean outputs by class"
    tells_down: ClassVar[str] = "the others' mean outputs by class"
    strength: ClassVar[str] = "gamma"
    reads_data: ClassVar[bool] = True

    gamma: float = 0.1

    def broadcast(self, net: Net, weights: Tree, memory: Tree, auxiliary: Auxiliary | None) -> Tree:
        return memory

    def memory(self, sent: Tree) -> Tree:
        said = {name: torch.zeros_like(sent[name]) for name in ("outputs", "held") if name in sent}
        return {**super().memory(sent), **said}

    def targets(self, net: Net, sent: Tree, memory: Tree, batch: Batch) -> Tree:
        if "outputs" not in sent:
            return {}
        others, held = (sent[name] - memory[name] for name in ("outputs", "held"))
        teacher = others / held.clamp(min=1)[:, None]  # [K, K]; a row of zeros where nobody else holds the class
        return {"outputs": teacher[batch.y]}

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        if not target:
            return out.logits.new_zeros(())
        agreement: Tensor = (target["outputs"] * F.log_softmax(out.logits, -1)).sum(-1)
        return -self.gamma * agreement

    def finish(
        self, net: Net, weights: Tree, sent: Tree, memory: Tree, data: ClientData | None, work: Work
    ) -> tuple[Tree, Tree]:
        assert data is not None  # reads_data promises it
        said = class_outputs(net, weights, data)
        before = {name: memory[name] for name in said} if "outputs" in memory else tree.zeros_like(said)
        return {"model": weights, **said}, tree.subtract(said, before)

    def absorb(self, memory: Tree, weights: Tree, reports: Reports) -> Tree:
        change = tree.map_tree(lambda stacked: stacked.sum(0), reports.content)
        return tree.map_tree(torch.add, memory, change) if memory else change


def class_outputs(net: Net, weights: Tree, data: ClientData) -> Tree:
    """The mean softmax output for each class [K, K], and 1 for each class the client holds, else 0 [K]."""

    def by_class(x: Tensor, y: Tensor) -> Tree:
        output = F.softmax(net(weights, x[None]).logits[0], -1)  # [K]
        member = is_class(y, len(output)).to(output.dtype)  # [K]
        return {"outputs": member[:, None] * output, "held": member}

    mean = mean_over(data, by_class)
    held = (mean["held"] > 0).to(mean["held"].dtype)
    share = torch.where(held > 0, mean["held"], 1)
    return {"outputs": mean["outputs"] / share[:, None], "held": held}
