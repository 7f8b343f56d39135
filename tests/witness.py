"""An independent witness: the nine methods in plain PyTorch, written from the papers' formulas.

Nothing of fedssd is imported. Models are ``nn.Module``, gradients come from ``loss.backward()``, steps from
``torch.optim.SGD``; state lives in dictionaries and everything is a Python loop. Slow on purpose, obvious on purpose.
Who takes part and which sample comes at which step are given as data.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

State = dict[str, Tensor]
Terms = dict[str, dict[str, Any]]  # method name -> its options; several entries mean their sum


@dataclass(frozen=True)
class Task:
    """What is to be learned, by whom, and in which order."""

    x: Tensor
    y: Tensor
    classes: int
    clients: list[Tensor]  # each client's rows
    auxiliary_x: Tensor
    auxiliary_y: Tensor
    cohorts: list[list[int]]  # one a round
    batches: Callable[[int, int], list[Tensor]]  # (round, client) -> positions among the client's rows, one a step
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.01


@dataclass
class Outcome:
    """What a round leaves behind."""

    global_state: State
    local_states: dict[int, State]
    previous: dict[int, State]  # each client's last local model, so far
    fisher: dict[int, State]  # each client's last Fisher diagonal, so far; only FedCurv asks for it
    credibility: Tensor
    entropy: dict[int, float] = field(default_factory=dict)  # per client: sum over the samples it saw
    penalty: dict[int, float] = field(default_factory=dict)


def train(terms: Terms, model: nn.Module, task: Task) -> list[Outcome]:
    """Run every round; the model passed in is the first global model and is not changed."""
    global_model = copy.deepcopy(model)
    previous: dict[int, State] = {}
    fisher: dict[int, State] = {}
    outcomes = []
    for round_, cohort in enumerate(task.cohorts):
        found = credibility(global_model, task)
        local_models, entropies, penalties = {}, {}, {}
        for client in cohort:
            local_models[client], entropies[client], penalties[client] = train_client(
                terms, global_model, task, round_, client, previous, fisher, found
            )
        # Only now do memories change: every client of a round saw what was there when the round began.
        for client in cohort:
            previous[client] = copy.deepcopy(local_models[client].state_dict())
            if "fedcurv" in terms:
                rows = task.clients[client]
                fisher[client] = fisher_diagonal(local_models[client], task.x[rows], task.y[rows])
        global_model.load_state_dict(average(local_models, task))
        outcomes.append(
            Outcome(
                copy.deepcopy(global_model.state_dict()),
                {client: copy.deepcopy(one.state_dict()) for client, one in local_models.items()},
                copy.deepcopy(previous),
                copy.deepcopy(fisher),
                found,
                entropies,
                penalties,
            )
        )
    return outcomes


def train_client(
    terms: Terms,
    global_model: nn.Module,
    task: Task,
    round_: int,
    client: int,
    previous: dict[int, State],
    fisher: dict[int, State],
    found: Tensor,
) -> tuple[nn.Module, float, float]:
    """One client's local training; its model and the sums of its cross-entropy and its penalty over samples."""
    model = copy.deepcopy(global_model).train()
    teacher = copy.deepcopy(global_model).eval()
    old = None
    if client in previous:
        old = copy.deepcopy(global_model)
        old.load_state_dict(previous[client])
        old.eval()
    optimiser = torch.optim.SGD(model.parameters(), lr=task.lr, momentum=task.momentum, weight_decay=task.weight_decay)
    rows = task.clients[client]
    entropy_sum = penalty_sum = 0.0
    for position in task.batches(round_, client):
        x, y = task.x[rows[position]], task.y[rows[position]]
        logits, features = model(x)
        with torch.no_grad():
            teacher_logits, teacher_features = teacher(x)
            old_features = old(x)[1] if old is not None else None
        entropy = F.cross_entropy(logits, y)
        extra = torch.zeros((), dtype=logits.dtype)
        for name, options in terms.items():
            if name == "fedavg":
                pass
            elif name == "fedprox":
                extra = extra + fedprox(model, global_model, **options)
            elif name == "fedcurv":
                extra = extra + fedcurv(model, client, previous, fisher, **options)
            elif name == "moon":
                extra = extra + moon(features, teacher_features, old_features, **options)
            elif name == "fedntd":
                extra = extra + fedntd(logits, teacher_logits, y, **options)
            elif name == "fedcad":
                extra = extra + fedcad(logits, teacher_logits, y, found, **options)
            elif name == "fedssd":
                extra = extra + fedssd(logits, teacher_logits, y, found, len(rows), **options)
            elif name == "kl":
                extra = extra + kl(logits, teacher_logits, **options)
            elif name == "mse":
                extra = extra + mse(logits, teacher_logits, **options)
            else:
                raise KeyError(f"the witness does not know {name!r}")
        optimiser.zero_grad()
        (entropy + extra).backward()
        optimiser.step()
        entropy_sum += entropy.item() * len(y)
        penalty_sum += extra.item() * len(y)
    return model, entropy_sum, penalty_sum


KNOWN = ("fedavg", "fedprox", "fedcurv", "moon", "fedntd", "fedcad", "fedssd", "kl", "mse")


def average(models: dict[int, nn.Module], task: Task) -> State:
    """Σ n_i w_i / Σ n_i over the cohort, running statistics included; the batch counter is nobody's mean."""
    total = sum(len(task.clients[client]) for client in models)
    states = {client: model.state_dict() for client, model in models.items()}
    mean: State = {}
    for key, like in next(iter(states.values())).items():
        if key.endswith("num_batches_tracked"):
            mean[key] = like.clone()
            continue
        mean[key] = torch.zeros_like(like)
        for client, state in states.items():
            mean[key] += state[key] * (len(task.clients[client]) / total)
    return mean


def credibility(model: nn.Module, task: Task) -> Tensor:
    """A[k1, k2]: the share of class k1 of the auxiliary set that the model, in eval mode, calls k2."""
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        called = model(task.auxiliary_x)[0].argmax(1).tolist()
    matrix = torch.zeros(task.classes, task.classes, dtype=torch.float64)
    for k1 in range(task.classes):
        members = [i for i, label in enumerate(task.auxiliary_y.tolist()) if label == k1]
        for k2 in range(task.classes):
            if members:
                matrix[k1, k2] = sum(called[i] == k2 for i in members) / len(members)
    return matrix


def fedprox(model: nn.Module, global_model: nn.Module, mu: float) -> Tensor:
    """(μ/2) ‖w − w_g‖²."""
    total = torch.zeros((), dtype=torch.float64)
    for own, received in zip(model.parameters(), global_model.parameters(), strict=True):
        total = total + ((own - received.detach()) ** 2).sum()
    return mu / 2 * total


def fedcurv(model: nn.Module, client: int, anchors: dict[int, State], fisher: dict[int, State], lam: float) -> Tensor:
    """λ Σ_{j≠i} Σ_p F_j[p] (w[p] − w_j[p])², over every other client that was ever seen."""
    total = torch.zeros((), dtype=torch.float64)
    for other in fisher:
        if other == client:
            continue
        for name, own in model.named_parameters():
            total = total + (fisher[other][name] * (own - anchors[other][name]) ** 2).sum()
    return lam * total


def fisher_diagonal(model: nn.Module, x: Tensor, y: Tensor) -> State:
    """The mean over samples of the squared gradient of log p(y|x), one backward() a sample."""
    model = copy.deepcopy(model).eval()
    diagonal = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for i in range(len(y)):
        model.zero_grad()
        F.log_softmax(model(x[i : i + 1])[0], dim=1)[0, y[i]].backward()
        for name, parameter in model.named_parameters():
            diagonal[name] += parameter.grad**2 / len(y)
    return {name: value.detach() for name, value in diagonal.items()}


def moon(features: Tensor, teacher: Tensor, old: Tensor | None, mu: float, temperature: float = 0.5) -> Tensor:
    """−μ log( e^{s(h,h_g)/T} / (e^{s(h,h_g)/T} + e^{s(h,h_prev)/T}) ); 0 for a client without a previous model."""
    if old is None:
        return torch.zeros((), dtype=features.dtype)
    near = torch.exp(F.cosine_similarity(features, teacher, dim=1) / temperature)
    far = torch.exp(F.cosine_similarity(features, old, dim=1) / temperature)
    return (-mu * torch.log(near / (near + far))).mean()


def divergence(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² KL( softmax(z_g/T) ‖ softmax(z/T) ), one number a sample."""
    log_student = F.log_softmax(logits / temperature, dim=1)
    probability = F.softmax(teacher / temperature, dim=1)
    return temperature**2 * F.kl_div(log_student, probability, reduction="none").sum(1)


def without_true_class(logits: Tensor, y: Tensor) -> Tensor:
    """[B, K−1]: each sample's logits with its own class cut out."""
    return torch.stack([torch.cat([row[:k], row[k + 1 :]]) for row, k in zip(logits, y.tolist(), strict=True)])


def fedntd(logits: Tensor, teacher: Tensor, y: Tensor, beta: float, temperature: float = 1.0) -> Tensor:
    """β T² KL over the classes that are not the sample's own."""
    values = divergence(without_true_class(logits, y), without_true_class(teacher, y), temperature)
    return beta * values.mean()


def fedcad(logits: Tensor, teacher: Tensor, y: Tensor, found: Tensor, lam: float, temperature: float = 1.0) -> Tensor:
    """λ a_y T² KL, a_y the global model's recall on the sample's class."""
    values = divergence(logits, teacher, temperature)
    recall = torch.stack([found[k, k] for k in y.tolist()])
    return lam * (recall * values).mean()


def kl(logits: Tensor, teacher: Tensor, alpha: float, temperature: float = 1.0) -> Tensor:
    """α T² KL with a constant α."""
    return alpha * divergence(logits, teacher, temperature).mean()


def mse(logits: Tensor, teacher: Tensor, alpha: float, reduction: str = "sum") -> Tensor:
    """α ‖z_g − z‖², over the classes a sum or a mean."""
    squared = (teacher - logits) ** 2
    return alpha * (squared.sum(1) if reduction == "sum" else squared.mean(1)).mean()


def selective_weight(probability: float, found: Tensor, k: int, floor: float, exponent: float) -> float:
    """M(x)[k] / M_max = [ A[k,k] (1 − max_{j≠k} A[j,k]) (1 − (1 − p)^exponent) − floor ]⁺."""
    matrix = found.tolist()
    mistaken = 0.0
    for j in range(len(matrix)):
        if j != k and matrix[j][k] > mistaken:
            mistaken = matrix[j][k]
    by_class = matrix[k][k] * (1 - mistaken)
    by_sample = 1 - (1 - probability) ** exponent
    return max(by_class * by_sample - floor, 0.0)


def fedssd(
    logits: Tensor,
    teacher: Tensor,
    y: Tensor,
    found: Tensor,
    samples: int,
    m_max: float,
    floor: float = 0.1,
    exponent: float = 0.5,
    square: str = "inside",
    reduction: str = "sum",
    normaliser: str = "batch",
) -> Tensor:
    """Equations 3 and 4, sample by sample and class by class."""
    total = torch.zeros((), dtype=logits.dtype)
    for b in range(len(y)):
        probability = float(F.softmax(teacher[b], dim=0)[y[b]])
        for k in range(logits.shape[1]):
            m = m_max * selective_weight(probability, found, k, floor, exponent)
            if square == "inside":
                term = (m * (teacher[b, k] - logits[b, k])) ** 2
            else:
                term = m * (teacher[b, k] - logits[b, k]) ** 2
            total = total + (term if reduction == "sum" else term / logits.shape[1])
    if normaliser == "dataset":  # Algorithm 1, line 4
        return total / samples
    if normaliser == "half":  # Lemma 1
        return total / (2 * len(y))
    return total / len(y)
