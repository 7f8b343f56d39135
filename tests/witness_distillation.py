"""Plain PyTorch witnesses of the systems that share outputs instead of weights, written from their papers.

Like witness.py: ``nn.Module``, ``backward()``, ``torch.optim``, dictionaries and loops; nothing of fedssd is imported.
Every client has a model of its own, which may be of its own kind.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from witness import State, Task

LOCALS = ("fd",)  # the local halves test_distillation_systems.py compares
Models = Mapping[int, nn.Module]  # client -> its model


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
