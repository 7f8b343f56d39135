"""Plain PyTorch witnesses of the systems that share outputs instead of weights, written from their papers.

Like witness.py: ``nn.Module``, ``backward()``, ``torch.optim``, dictionaries and loops; nothing of fedssd is imported.
Every client has a model of its own, which may be of its own kind.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from witness import State, Task
from witness_rivals import by_samples, local_training, mean_state

LOCALS = ("fd", "fedmd", "cronus")  # the local halves test_distillation_systems.py compares
Models = Mapping[int, nn.Module]  # client -> its model
Order = Callable[[int, int], list[Tensor]]  # (round, client) -> places, one tensor a step


def solver(model: nn.Module, task: Task) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=task.lr, momentum=task.momentum, weight_decay=task.weight_decay)


def states(models: Models) -> dict[int, State]:
    return {client: copy.deepcopy(model.state_dict()) for client, model in models.items()}


def fd(first: Models, task: Task, gamma: float) -> list[dict[int, State]]:
    """Algorithm 1: train on CE + γ CE with the other devices' mean output on the label; then upload one's own means.

    A device that sat a round out is remembered by what it said last; the mean is over the devices that hold the class.
    """
    models = {client: copy.deepcopy(model) for client, model in first.items()}
    said: dict[int, dict[int, Tensor]] = {}  # device -> label -> its mean output
    rounds = []
    for round_, cohort in enumerate(task.cohorts):
        heard = copy.deepcopy(said)
        for client in cohort:
            model, rows = models[client].train(), task.clients[client]
            optimiser = solver(model, task)
            for position in task.batches(round_, client):
                x, y = task.x[rows[position]], task.y[rows[position]]
                logits = model(x)[0]
                loss = F.cross_entropy(logits, y)
                for b, label in enumerate(y.tolist()):
                    others = [table[label] for other, table in heard.items() if other != client and label in table]
                    if others:
                        teacher = torch.stack(others).mean(0)
                        loss = loss + gamma * F.cross_entropy(logits[b], teacher) / len(y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            said[client] = class_means(model, task.x[rows], task.y[rows])
        rounds.append(states(models))
    return rounds


def class_means(model: nn.Module, x: Tensor, y: Tensor) -> dict[int, Tensor]:
    """Label -> the model's mean softmax output over the samples that carry it."""
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        outputs = F.softmax(model(x)[0], dim=1)
    return {label: outputs[y == label].mean(0) for label in sorted(set(y.tolist()))}


def fedmd(first: Models, task: Task, lam: float, public: Order) -> list[dict[int, State]]:
    """Algorithm 1 after its transfer learning on labelled public data, which is left out.

    The initial training is on private data. Then, again and again: communicate class scores on the public set,
    aggregate them to their mean, digest (a solver on the mean absolute error to it), revisit (another, on one's data).
    ``public`` says which public samples a client digests at which step.
    """
    models = {client: copy.deepcopy(model) for client, model in first.items()}
    consensus: Tensor | None = None
    rounds = []
    for round_, cohort in enumerate(task.cohorts):
        for client in cohort:
            model, rows = models[client].train(), task.clients[client]
            if consensus is not None:
                optimiser = solver(model, task)
                for place in public(round_, client):
                    optimiser.zero_grad()
                    (lam * F.l1_loss(model(task.auxiliary_x[place])[0], consensus[place])).backward()
                    optimiser.step()
            optimiser = solver(model, task)
            for position in task.batches(round_, client):
                optimiser.zero_grad()
                F.cross_entropy(model(task.x[rows[position]])[0], task.y[rows[position]]).backward()
                optimiser.step()
        consensus = sum(scores(models[client], task) for client in cohort) / len(cohort)
        rounds.append(states(models))
    return rounds


def scores(model: nn.Module, task: Task) -> Tensor:
    """The class scores of the public samples: logits, as the layer before the softmax gives them."""
    with torch.no_grad():
        return copy.deepcopy(model).eval()(task.auxiliary_x)[0]


def cronus(
    first: Models, task: Task, lam: float, corrupted: float, filters: int, mixed: Order
) -> list[dict[int, State]]:
    """Initialisation on private data; then training on private data and on public data with the robust soft labels.

    ``mixed`` goes through a client's samples and the public ones behind them.
    """
    models = {client: copy.deepcopy(model) for client, model in first.items()}
    soft: Tensor | None = None
    rounds = []
    for round_, cohort in enumerate(task.cohorts):
        for client in cohort:
            model, rows = models[client].train(), task.clients[client]
            optimiser = solver(model, task)
            x, hard = task.x[rows], F.one_hot(task.y[rows], task.classes).to(task.x.dtype)
            steps, weight = task.batches(round_, client), torch.ones(len(rows), dtype=x.dtype)
            if soft is not None:
                x, hard = torch.cat([x, task.auxiliary_x]), torch.cat([hard, soft])
                steps = mixed(round_, client)
                weight = torch.cat([weight, torch.full((len(soft),), lam, dtype=x.dtype)])
            for place in steps:
                optimiser.zero_grad()
                each = F.cross_entropy(model(x[place])[0], hard[place], reduction="none")
                (weight[place] * each).mean().backward()
                optimiser.step()
        said = {client: F.softmax(scores(models[client], task), dim=1) for client in cohort}
        soft = torch.stack(
            [filtered_mean([said[c][j] for c in cohort], corrupted, filters) for j in range(len(task.auxiliary_y))]
        )
        rounds.append(states(models))
    return rounds


def filtered_mean(points: list[Tensor], corrupted: float, filters: int) -> Tensor:
    """Diakonikolas et al.'s filter: drop those that lie furthest along the first principal direction, and repeat."""
    each = int(corrupted * len(points) / filters + 1e-9)
    for _ in range(filters):
        centre = sum(points) / len(points)
        matrix = torch.stack([point - centre for point in points])
        direction = torch.linalg.svd(matrix, full_matrices=False).Vh[0]
        ranked = sorted(points, key=lambda point: abs(float((point - centre) @ direction)))
        points = ranked[: len(ranked) - each]
    return sum(points) / len(points)


def feddf(
    kinds: list[nn.Module], task: Task, lr: float, steps: int, rows: Callable[[int], Tensor]
) -> list[list[State]]:
    """Algorithm 3: client i has kind i mod the number of kinds; all clients together teach every kind's global model.

    A kind's student starts from the mean of its own clients, or where it was if none of them took part.
    """
    servers = [copy.deepcopy(kind) for kind in kinds]
    rounds = []
    for round_, cohort in enumerate(task.cohorts):
        trained = {
            client: local_training(task, servers[client % len(kinds)], round_, client)[0].eval() for client in cohort
        }
        for number, server in enumerate(servers):
            mine = {client: model for client, model in trained.items() if client % len(kinds) == number}
            if mine:
                server.load_state_dict(mean_state(mine, by_samples(mine, task)), strict=False)
            student = server.eval()
            optimiser = torch.optim.Adam(student.parameters(), lr=lr)
            for step in range(steps):
                optimiser.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * step / steps)) / 2
                x = task.auxiliary_x[rows(step)]
                with torch.no_grad():
                    said = F.softmax(sum(model(x)[0] for model in trained.values()) / len(trained), dim=1)
                optimiser.zero_grad()
                F.kl_div(F.log_softmax(student(x)[0], dim=1), said, reduction="batchmean").backward()
                optimiser.step()
            server.train()
        rounds.append([copy.deepcopy(server.state_dict()) for server in servers])
    return rounds
