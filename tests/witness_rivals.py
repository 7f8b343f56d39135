"""Plain PyTorch witnesses of SCAFFOLD, FedGKD, FedNova, IDA and FedDF, written from their papers.

Like witness.py: ``nn.Module``, ``backward()``, ``torch.optim``, dictionaries and loops; nothing of fedssd is imported.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from witness import State, Task, divergence

Models = dict[int, nn.Module]
LOCALS = ("scaffold", "fedgkd")  # the local halves test_rivals.py compares, and the server halves
SERVERS = ("fednova", "ida", "feddf")


def walk(momentum: float, steps: int) -> float:
    """‖a‖₁: how much the gradients of all steps count together in the final position, by playing momentum through."""
    velocity, position = 0.0, 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0
        position += velocity
    return position


def local_training(
    task: Task,
    start: nn.Module,
    round_: int,
    client: int,
    loss_beside: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None,
    correction: list[Tensor] | None = None,
) -> tuple[nn.Module, int]:
    """Plain SGD on cross-entropy, with an optional extra loss and an optional correction added to every gradient."""
    model = copy.deepcopy(start).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=task.lr, momentum=task.momentum, weight_decay=task.weight_decay)
    rows, steps = task.clients[client], task.batches(round_, client)
    for position in steps:
        x, y = task.x[rows[position]], task.y[rows[position]]
        logits = model(x)[0]
        loss = F.cross_entropy(logits, y)
        if loss_beside is not None:
            loss = loss + loss_beside(model, x, logits)
        optimiser.zero_grad()
        loss.backward()
        if correction is not None:
            for parameter, extra in zip(model.parameters(), correction, strict=True):
                parameter.grad += extra
        optimiser.step()
    return model, len(steps)


def mean_state(models: Models, weights: dict[int, float]) -> State:
    """Σ weight_i w_i, the batch counter aside."""
    first = next(iter(models.values())).state_dict()
    kept = {key: value for key, value in first.items() if not key.endswith("num_batches_tracked")}
    return {key: sum(weights[c] * m.state_dict()[key] for c, m in models.items()) for key in kept}


def by_samples(models: Models, task: Task) -> dict[int, float]:
    total = sum(len(task.clients[c]) for c in models)
    return {c: len(task.clients[c]) / total for c in models}


def scaffold(model: nn.Module, task: Task) -> State:
    """Algorithm 1 of the SCAFFOLD paper, option II; with momentum, Kη becomes η times the length walked."""
    server = copy.deepcopy(model)
    zero = [torch.zeros_like(p) for p in model.parameters()]
    c, c_i = [z.clone() for z in zero], {i: [z.clone() for z in zero] for i in range(len(task.clients))}
    for round_, cohort in enumerate(task.cohorts):
        models, changes = {}, []
        for client in cohort:
            correction = [common - own for common, own in zip(c, c_i[client], strict=True)]
            models[client], steps = local_training(task, server, round_, client, correction=correction)
            length = task.lr * walk(task.momentum, steps)
            new = [
                own - common + (x.detach() - y.detach()) / length
                for own, common, x, y in zip(
                    c_i[client], c, server.parameters(), models[client].parameters(), strict=True
                )
            ]
            changes.append([a - b for a, b in zip(new, c_i[client], strict=True)])
            c_i[client] = new
        for place in range(len(c)):
            mean = sum(change[place] for change in changes) / len(cohort)
            c[place] = c[place] + len(cohort) / len(task.clients) * mean
        server.load_state_dict(mean_state(models, by_samples(models, task)), strict=False)
    return server.state_dict()


def fedgkd(model: nn.Module, task: Task, gamma: float, temperature: float, models: int) -> State:
    """(γ/2) KL from the mean of the last M global models, the current one among them."""
    server, last = copy.deepcopy(model), [copy.deepcopy(model.state_dict())]
    for round_, cohort in enumerate(task.cohorts):
        teacher = copy.deepcopy(model).eval()
        kept = {key for key in last[0] if not key.endswith("num_batches_tracked")}
        teacher.load_state_dict({key: sum(s[key] for s in last) / len(last) for key in kept}, strict=False)

        def beside(_: nn.Module, x: Tensor, logits: Tensor, teacher: nn.Module = teacher) -> Tensor:
            with torch.no_grad():
                said = teacher(x)[0]
            return gamma / 2 * divergence(logits, said, temperature).mean()

        trained = {client: local_training(task, server, round_, client, beside)[0] for client in cohort}
        server.load_state_dict(mean_state(trained, by_samples(trained, task)), strict=False)
        last = [*last, copy.deepcopy(server.state_dict())][-models:]
    return server.state_dict()


def fednova(model: nn.Module, task: Task, weighting: str = "samples") -> State:
    """w − τ_eff Σ p_i d_i, d_i = (w − w_i)/‖a_i‖₁ (the learning rate cancels), τ_eff = Σ p_i ‖a_i‖₁."""
    server = copy.deepcopy(model)
    for round_, cohort in enumerate(task.cohorts):
        trained, lengths = {}, {}
        for client in cohort:
            trained[client], steps = local_training(task, server, round_, client)
            lengths[client] = walk(task.momentum, steps)
        p = by_samples(trained, task) if weighting == "samples" else {i: 1 / len(cohort) for i in cohort}
        effective = sum(p[i] * lengths[i] for i in cohort)
        state = mean_state(trained, p)  # what no solver moves is averaged
        for name, parameter in server.named_parameters():
            direction = sum(
                p[i] * (parameter.detach() - dict(trained[i].named_parameters())[name].detach()) / lengths[i]
                for i in cohort
            )
            state[name] = parameter.detach() - effective * direction
        server.load_state_dict(state, strict=False)
    return server.state_dict()


def ida(model: nn.Module, task: Task, norm: int, by_sample: bool) -> State:
    """Weights ∝ 1/‖w_i − w̄‖, w̄ the unweighted mean of the clients' parameters."""
    server = copy.deepcopy(model)
    for round_, cohort in enumerate(task.cohorts):
        trained = {client: local_training(task, server, round_, client)[0] for client in cohort}
        flat = {i: torch.cat([p.detach().flatten() for p in m.parameters()]) for i, m in trained.items()}
        centre = sum(flat.values()) / len(flat)
        raw = {i: 1 / float((f - centre).norm(p=norm)) for i, f in flat.items()}
        if by_sample:
            raw = {i: value * len(task.clients[i]) for i, value in raw.items()}
        weights = {i: value / sum(raw.values()) for i, value in raw.items()}
        server.load_state_dict(mean_state(trained, weights), strict=False)
    return server.state_dict()


def feddf(model: nn.Module, task: Task, lr: float, steps: int, rows: Callable[[int], Tensor]) -> State:
    """Average, then torch.optim.Adam on KL( softmax(mean client logits) ‖ softmax(student) ), cosine learning rate."""
    server = copy.deepcopy(model)
    for round_, cohort in enumerate(task.cohorts):
        trained = {client: local_training(task, server, round_, client)[0].eval() for client in cohort}
        student = copy.deepcopy(server).eval()
        student.load_state_dict(mean_state(trained, by_samples(trained, task)), strict=False)
        optimiser = torch.optim.Adam(student.parameters(), lr=lr)
        for step in range(steps):
            optimiser.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * step / steps)) / 2
            x = task.auxiliary_x[rows(step)]
            with torch.no_grad():
                said = F.softmax(sum(m(x)[0] for m in trained.values()) / len(trained), dim=1)
            optimiser.zero_grad()
            F.kl_div(F.log_softmax(student(x)[0], dim=1), said, reduction="batchmean").backward()
            optimiser.step()
        server.load_state_dict(student.state_dict())
        server.train()
    return server.state_dict()
