"""Witnesses of FedSAM, FedLC, FedRS and the server optimisers, written from their papers' formulas.

Like witness.py: ``nn.Module``, ``backward()``, ``torch.optim``, loops; the server's algorithms are in numpy. Nothing of
fedssd is imported.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from witness import State, Task
from witness_rivals import by_samples, mean_state

LOCALS = ("fedsam", "fedlc", "fedrs")
SERVERS = ("fedavgm", "fedadam", "fedyogi", "fedadagrad")
Loss = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]  # of model, x, y and the client's counts
Settle = Callable[[nn.Module, list[Tensor]], None]


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor, _counts: Tensor) -> Tensor:
    return F.cross_entropy(model(x)[0], y)


def fedlc(tau: float) -> Loss:
    """− log of e^(z_y − τ n_y^−¼) / Σ_k e^(z_k − τ n_k^−¼), as public code has it: a missing class counts 1e-8."""

    def loss(model: nn.Module, x: Tensor, y: Tensor, counts: Tensor) -> Tensor:
        raised = torch.exp(model(x)[0] - tau * counts.clamp(min=1e-8) ** (-1 / 4))
        return -torch.log(raised.gather(1, y[:, None])[:, 0] / raised.sum(1)).mean()

    return loss


def fedrs(alpha: float) -> Loss:
    """Cross-entropy after the logits of classes that are not there were multiplied by α."""

    def loss(model: nn.Module, x: Tensor, y: Tensor, counts: Tensor) -> Tensor:
        logits = model(x)[0].clone()
        logits[:, counts == 0] *= alpha
        return F.cross_entropy(logits, y)

    return loss


def trained(
    task: Task, start: nn.Module, round_: int, client: int, loss: Loss, rho: float = 0.0, settle: Settle | None = None
) -> nn.Module:
    """Local SGD on a loss; with ρ the gradient is taken after a step uphill, which is then taken back."""
    model = copy.deepcopy(start).train()
    began = [p.detach().clone() for p in model.parameters()]
    optimiser = torch.optim.SGD(model.parameters(), lr=task.lr, momentum=task.momentum, weight_decay=task.weight_decay)
    rows = task.clients[client]
    counts = torch.bincount(task.y[rows], minlength=task.classes).double()
    for position in task.batches(round_, client):
        x, y = task.x[rows[position]], task.y[rows[position]]
        optimiser.zero_grad()
        loss(model, x, y, counts).backward()
        if rho:
            buffers = copy.deepcopy(dict(model.named_buffers()))
            here = [p.detach().clone() for p in model.parameters()]
            norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters()))  # type: ignore[arg-type]
            with torch.no_grad():
                for p in model.parameters():
                    p += rho * p.grad / norm
            optimiser.zero_grad()
            loss(model, x, y, counts).backward()
            with torch.no_grad():
                for p, old in zip(model.parameters(), here, strict=True):
                    p.copy_(old)
                for name, buffer in model.named_buffers():
                    buffer.copy_(buffers[name])  # statistics are those of the first pass
        optimiser.step()
        if settle is not None:
            with torch.no_grad():
                settle(model, began)
    return model


def averaged(
    model: nn.Module, task: Task, loss: Loss = cross_entropy, rho: float = 0.0, settle: Settle | None = None
) -> State:
    """FedAvg with that local training."""
    server = copy.deepcopy(model)
    for round_, cohort in enumerate(task.cohorts):
        models = {client: trained(task, server, round_, client, loss, rho, settle) for client in cohort}
        server.load_state_dict(mean_state(models, by_samples(models, task)), strict=False)
    return server.state_dict()


class Optimiser:
    """Algorithm 2 of Reddi et al., and FedAvgM of Hsu et al., on one vector."""

    def __init__(self, name: str, lr: float, beta1: float, beta2: float, tau: float) -> None:
        self.name, self.lr, self.beta1, self.beta2, self.tau = name, lr, beta1, beta2, tau
        self.m: np.ndarray | float = 0.0
        self.v: np.ndarray | float = tau**2

    def step(self, x: np.ndarray, delta: np.ndarray) -> np.ndarray:
        if self.name == "fedavgm":
            self.m = self.beta1 * self.m - delta
            return x - self.lr * self.m
        self.m = self.beta1 * self.m + (1 - self.beta1) * delta
        if self.name == "fedadagrad":
            self.v = self.v + delta**2
        elif self.name == "fedyogi":
            self.v = self.v - (1 - self.beta2) * delta**2 * np.sign(self.v - delta**2)
        else:
            self.v = self.beta2 * self.v + (1 - self.beta2) * delta**2
        return x + self.lr * self.m / (np.sqrt(self.v) + self.tau)


def optimised(model: nn.Module, task: Task, optimiser: Optimiser) -> State:
    """Local SGD, the mean by samples, and the server's optimiser on what it moved; buffers are averaged."""
    server = copy.deepcopy(model)
    names = [name for name, _ in server.named_parameters()]
    for round_, cohort in enumerate(task.cohorts):
        models = {client: trained(task, server, round_, client, cross_entropy) for client in cohort}
        state = mean_state(models, by_samples(models, task))
        before = np.concatenate([p.detach().numpy().ravel() for p in server.parameters()])
        mean = np.concatenate([state[name].detach().numpy().ravel() for name in names])
        after = torch.from_numpy(optimiser.step(before, mean - before))
        for name, part in zip(names, after.split([p.numel() for p in server.parameters()]), strict=True):
            state[name] = part.view(state[name].shape)
        server.load_state_dict(state, strict=False)
    return server.state_dict()
