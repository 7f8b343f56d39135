"""FedDF: after averaging, teach the global model what the clients' models say together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.contract import Closing, Server
from fedssd.core.net import Net
from fedssd.core.randomness import Purpose, permutation
from fedssd.core.tree import Tree

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class FedDF(Server):
    """w ← FedAvg, then Adam on KL( softmax(mean of client logits) ‖ softmax(student) ) over unlabelled data.

    The auxiliary set serves as the unlabelled data; its labels are not looked at. The learning rate falls to zero on
    a cosine. The order of the samples is a pure function of the step.
    """

    name: ClassVar[str] = "feddf"
    formula: ClassVar[str] = "w ← Σ p_i w_i, then Adam on KL( softmax(mean_i z_i) ‖ softmax(z) ) over unlabelled data"
    paper: ClassVar[str] = "Lin et al. 2020, Ensemble Distillation for Robust Model Fusion in Federated Learning"
    tells_down: ClassVar[str] = "mean weights, trained on D_V"
    needs_auxiliary: ClassVar[bool] = True
    mixes_models: ClassVar[bool] = True

    lr: float = 1e-3
    steps: int = 100
    batch: int = 128

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1:
            raise ValueError(f"feddf.steps and feddf.batch expect at least 1, got {self.steps} and {self.batch}")

    def combine(self, net: Net, weights: Tree, memory: Tree, got: Tree, closing: Closing) -> tuple[Tree, Tree]:
        return self.combine_models({"": net}, {"": weights}, memory, {"": got}, {"": closing})[0][""], memory

    def combine_models(
        self,
        nets: Mapping[str, Net],
        weights: Mapping[str, Tree],
        memory: Tree,
        got: Mapping[str, Tree],
        closing: Mapping[str, Closing],
    ) -> tuple[dict[str, Tree], Tree]:
        """One global model of each kind; all clients' models together teach every one of them."""
        auxiliary = next(iter(closing.values())).auxiliary
        if auxiliary is None:
            raise ValueError("feddf distils on an auxiliary set, and there is none")
        teacher = ensemble(nets, got, auxiliary.x)  # [N, K]
        means = {name: tree.weighted_mean(closing[name].share, own) for name, own in got.items()}
        starts = {**weights, **means}  # a model that nobody of the round holds is taught where it stands
        return {name: self._distil(net, starts[name], auxiliary.x, teacher) for name, net in nets.items()}, memory

    def _distil(self, net: Net, start: Tree, x: Tensor, teacher: Tensor) -> Tree:
        student = dict(start)
        first = second = tree.zeros_like(student["params"])
        for step in range(self.steps):
            rows = self._rows(step, len(teacher)).to(teacher.device)
            gradients = self._gradients(net, student, x[rows], teacher[rows])
            rate = self.lr * 0.5 * (1 + math.cos(math.pi * step / self.steps))
            student["params"], first, second = adam(student["params"], gradients, first, second, rate, step + 1)
        return student

    def _rows(self, step: int, count: int) -> Tensor:
        """Batches of a fresh order every pass over the data."""
        size = min(self.batch, count)
        per_pass = count // size
        order = permutation(count, Purpose.SERVER, step // per_pass)
        place = step % per_pass
        return order[place * size : (place + 1) * size]

    def _gradients(self, net: Net, student: Tree, x: Tensor, teacher: Tensor) -> Tree:
        def loss(params: Tree) -> Tensor:
            logits = net({"params": params, "buffers": student["buffers"]}, x).logits
            return F.kl_div(F.log_softmax(logits, -1), teacher, reduction="batchmean", log_target=True)

        with torch.enable_grad():
            return torch.func.grad(loss)(student["params"])


def ensemble(nets: Mapping[str, Net], models: Mapping[str, Tree], x: Tensor) -> Tensor:
    """log softmax of the clients' mean logits, whatever their models, a chunk of samples at a time."""

    def mean_logits(part: Tensor) -> Tensor:
        found = [vmap(lambda w, net=nets[name]: net(w, part).logits)(own) for name, own in models.items()]
        return torch.cat(found).mean(0)

    return torch.cat([F.log_softmax(mean_logits(part), -1) for part in torch.split(x, 512)])


def adam(params: Tree, gradients: Tree, first: Tree, second: Tree, rate: float, step: int) -> tuple[Tree, Tree, Tree]:
    """One step of Adam, as PyTorch's: state in, state out."""
    first = tree.map_tree(lambda m, g: BETA1 * m + (1 - BETA1) * g, first, gradients)
    second = tree.map_tree(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, second, gradients)
    bias1, bias2 = 1 - BETA1**step, 1 - BETA2**step

    def moved(p: Tensor, m: Tensor, v: Tensor) -> Tensor:
        return p - rate * (m / bias1) / ((v / bias2).sqrt() + EPSILON)

    return tree.map_tree(moved, params, first, second), first, second
