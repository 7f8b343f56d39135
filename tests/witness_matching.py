"""PFNM and FedMA in plain numpy and PyTorch, written apart from ours; nothing of fedssd is imported.

Assignments are found by trying every permutation, with PFNM's whole cost as its authors' code has it (but for a factor
on the last term): prior mean, both variances, and the popularity of global units. Its columns for new
global units are left out, because the width is capped.
"""

from __future__ import annotations

import copy
import itertools
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from witness import State, Task

SERVERS = ("pfnm", "fedma")
Array = np.ndarray
Layers = list[tuple[Array, Array]]  # weight [out, in, …] and bias [out], from the input up


def score(unit: Array, partners: list[Array], clients: int, mean: float, prior: float, noise: float) -> float:
    """Equation 9 for an existing global unit, without its sign: how much assigning the unit to it gains."""
    start = np.full_like(unit, mean / prior)
    total = start + sum(partner / noise for partner in partners)
    known = len(partners)
    with_unit = ((total + unit / noise) ** 2).sum() / (1 / prior + (known + 1) / noise)
    without = (total**2).sum() / (1 / prior + known / noise)
    return with_unit - without + 2 * math.log(known / (clients - known))


def best_order(units: Array, partners: list[list[Array]], clients: int, settings: tuple[float, ...]) -> list[int]:
    """The permutation with the largest gain; entry i is the unit that goes to global unit i."""
    gains = [[score(unit, partners[i], clients, *settings) for unit in units] for i in range(len(partners))]
    everyone = range(len(units))
    return list(max(itertools.permutations(everyone), key=lambda p: sum(gains[i][p[i]] for i in everyone)))


def match(atoms: list[Array], sweeps: int, settings: tuple[float, ...] = (0.0, 10.0, 1.0)) -> list[list[int]]:
    """Algorithm 1 of PFNM: the first client opens, the others join, then each is taken out and matched again."""
    count, width = len(atoms), len(atoms[0])
    orders: list[list[int]] = [list(range(width))]

    def partners(without: int) -> list[list[Array]]:
        known = [c for c in range(len(orders)) if c != without]
        return [[atoms[c][orders[c][i]] for c in known] for i in range(width)]

    for client in range(1, count):
        orders.append(best_order(atoms[client], partners(client), count, settings))
    for _ in range(sweeps if count > 1 else 0):
        for client in range(count):
            orders[client] = best_order(atoms[client], partners(client), count, settings)
    return orders


def layers_of(model: nn.Module) -> list[nn.Module]:
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]


def arrays_of(model: nn.Module) -> Layers:
    return [(la.weight.detach().numpy().copy(), la.bias.detach().numpy().copy()) for la in layers_of(model)]


def columns(weight: Array, unit: int, width: int) -> slice:
    """Which inputs of the layer above belong to a unit."""
    block = weight.shape[1] // width
    return slice(unit * block, (unit + 1) * block)


def reorder(layers: Layers, place: int, order: list[int]) -> None:
    """Put the units of a layer, and what the layer above makes of them, into another order."""
    weight, bias = layers[place]
    above, above_bias = layers[place + 1]
    layers[place] = (weight[order], bias[order])
    parts = [above[:, columns(above, unit, len(bias))] for unit in order]
    layers[place + 1] = (np.concatenate(parts, axis=1), above_bias)


def outgoing(layers: Layers, place: int) -> list[Array]:
    above, width = layers[place + 1][0], len(layers[place][1])
    return [above[:, columns(above, unit, width)].reshape(-1) for unit in range(width)]


def average(models: list[Layers], weights: list[float]) -> Layers:
    return [
        (
            sum(p * model[place][0] for p, model in zip(weights, models, strict=True)),
            sum(p * model[place][1] for p, model in zip(weights, models, strict=True)),
        )
        for place in range(len(models[0]))
    ]


def match_down(models: list[Layers], sweeps: int) -> None:
    """PFNM: hidden layers from the output down, a unit is its bias and its outgoing weights (the first: all it has)."""
    for place in reversed(range(len(models[0]) - 1)):
        atoms = []
        for model in models:
            weight, bias = model[place]
            rows = [np.concatenate([[b], out]) for b, out in zip(bias, outgoing(model, place), strict=True)]
            if place == 0:
                rows = [np.concatenate([w.reshape(-1), row]) for w, row in zip(weight, rows, strict=True)]
            atoms.append(np.stack(rows))
        for model, order in zip(models, match(atoms, sweeps), strict=True):
            reorder(model, place, order)


def match_up(models: list[Layers], first: int, sweeps: int) -> None:
    """FedMA: hidden layers from the input up, a unit is its incoming weights and its bias."""
    for place in range(first, len(models[0]) - 1):
        atoms = [
            np.concatenate([m[place][0].reshape(len(m[place][1]), -1), m[place][1][:, None]], axis=1) for m in models
        ]
        for model, order in zip(models, match(atoms, sweeps), strict=True):
            reorder(model, place, order)


def train_client(task: Task, server: nn.Module, round_: int, client: int, frozen: int) -> nn.Module:
    """Plain SGD; the lowest ``frozen`` layers have no gradient and are not touched, not even by weight decay."""
    model = copy.deepcopy(server).train()
    for layer in layers_of(model)[:frozen]:
        layer.requires_grad_(False)
    free = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(free, lr=task.lr, momentum=task.momentum, weight_decay=task.weight_decay)
    rows = task.clients[client]
    for position in task.batches(round_, client):
        optimiser.zero_grad()
        F.cross_entropy(model(task.x[rows[position]])[0], task.y[rows[position]]).backward()
        optimiser.step()
    return model


def load(model: nn.Module, layers: Layers) -> nn.Module:
    with torch.no_grad():
        for layer, (weight, bias) in zip(layers_of(model), layers, strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
    return model


def rounds(name: str, model: nn.Module, task: Task, weighting: str, sweeps: int, prior: float = 0.0) -> list[State]:
    """The global model after every round of PFNM, or of FedMA with one phase a round."""
    server, found = copy.deepcopy(model), []
    depth = len(layers_of(model))
    for round_, cohort in enumerate(task.cohorts):
        frozen = round_ % depth if name == "fedma" else 0
        models = [arrays_of(train_client(task, server, round_, client, frozen)) for client in cohort]
        if name == "pfnm":
            match_down(models, sweeps)
        else:
            match_up(models, frozen, sweeps)
        sizes = [len(task.clients[client]) if weighting == "samples" else 1 for client in cohort]
        shrink = len(cohort) / (len(cohort) + prior)
        load(server, average(models, [shrink * size / sum(sizes) for size in sizes]))
        found.append(copy.deepcopy(server.state_dict()))
    return found
