"""Witnesses of the robust server halves, in numpy and loops over single numbers; nothing of fedssd is imported."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from witness import State, Task
from witness_rivals import local_training

SERVERS = ("median", "trimmed-mean", "krum", "clipping")
Arrays = dict[str, Any]  # name -> numpy array
Combine = Callable[[Arrays, list[Arrays], list[int], list[str]], Arrays]  # global, clients, samples, parameter names


def train(model: nn.Module, task: Task, combine: Combine) -> State:
    """Local SGD on cross-entropy, then ``combine`` on the state dictionaries as arrays."""
    server = copy.deepcopy(model)
    names = [name for name, _ in model.named_parameters()]
    for round_, cohort in enumerate(task.cohorts):
        trained = [local_training(task, server, round_, client)[0] for client in cohort]
        now = combine(arrays(server), [arrays(m) for m in trained], [len(task.clients[c]) for c in cohort], names)
        server.load_state_dict({name: torch.from_numpy(np.asarray(value)) for name, value in now.items()}, strict=False)
    return server.state_dict()


def arrays(model: nn.Module) -> Arrays:
    return {k: v.numpy().copy() for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}


def number_by_number(rule: Callable[[list[float]], float]) -> Combine:
    """A rule on the clients' values of one coordinate, applied to every coordinate."""

    def combine(before: Arrays, clients: list[Arrays], _samples: list[int], _names: list[str]) -> Arrays:
        found = {}
        for name, value in before.items():
            flat = [rule([float(client[name].ravel()[p]) for client in clients]) for p in range(value.size)]
            found[name] = np.array(flat).reshape(value.shape)
        return found

    return combine


median = number_by_number(statistics.median)


def trimmed_mean(cut: int) -> Combine:
    def rule(values: list[float]) -> float:
        rest = list(values)
        for _ in range(cut):
            if len(rest) > 2:
                rest.remove(max(rest))
                rest.remove(min(rest))
        return sum(rest) / len(rest)

    return number_by_number(rule)


def krum(bad: int, keep: int) -> Combine:
    def combine(before: Arrays, clients: list[Arrays], _samples: list[int], names: list[str]) -> Arrays:
        flat = [np.concatenate([client[name].ravel() for name in names]) for client in clients]
        scores = []
        for i, mine in enumerate(flat):
            others = sorted(float(((mine - other) ** 2).sum()) for j, other in enumerate(flat) if j != i)
            scores.append(sum(others[: max(len(flat) - bad - 2, 1)]))
        best = sorted(range(len(flat)), key=lambda i: scores[i])[:keep]
        return {name: sum(clients[i][name] for i in best) / len(best) for name in before}

    return combine


def clipping(bound: float, relative: bool) -> Combine:
    def combine(before: Arrays, clients: list[Arrays], samples: list[int], names: list[str]) -> Arrays:
        found: Arrays = {}
        for part in (names, [name for name in before if name not in names]):
            steps = [{name: client[name] - before[name] for name in part} for client in clients]
            norms = [math.sqrt(sum(float((s**2).sum()) for s in step.values())) for step in steps]
            limit = bound * statistics.median(norms) if relative else bound
            for name in part:
                moved = before[name].astype(float)
                for step, norm, count in zip(steps, norms, samples, strict=True):
                    moved = moved + count / sum(samples) * step[name] * (limit / norm if norm > limit else 1.0)
                found[name] = moved
        return found

    return combine
