"""The theorem's constants, measured on one round: functions of flat weight vectors, whatever model is behind them.

Every constant of the theorem bounds something over all weights. A round shows it at a few: what is measured for L_F,
L_f, B and η is at most the constant, for L_m at least. So ρ from measured constants flatters the theorem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, vjp

LANCZOS_STEPS = 30

Scalar = Callable[[Tensor], Tensor]  # [P] to []
Outputs = Callable[[Tensor], Tensor]  # [P] to [n, K]


@dataclass(frozen=True)
class Objective:
    """A client's share of the global loss, its loss as a sum of parts, and its logits in as many parts."""

    share: float
    losses: Sequence[Scalar]
    logits: Sequence[Outputs]

    def loss(self, weights: Tensor) -> float:
        """L_i(w)."""
        with torch.no_grad():
            return sum(float(part(weights)) for part in self.losses)

    def gradient(self, weights: Tensor) -> Tensor:
        """∇L_i(w)."""
        found: Tensor = sum((grad(part)(weights) for part in self.losses), torch.zeros_like(weights))
        return found

    def hessian(self, weights: Tensor) -> Callable[[Tensor], Tensor]:
        """v ↦ ∇²L_i(w) v; the model is traced once for all v."""
        pulls = [vjp(grad(part), weights)[1] for part in self.losses]
        return lambda direction: torch.stack([pull(direction)[0] for pull in pulls]).sum(0)


@dataclass(frozen=True)
class Participant:
    """What one client's round says: it started from w and came back with w_i."""

    client: int
    before: float  # ‖∇L_i(w)‖
    after: float  # ‖∇L_i(w_i)‖
    along: float  # ⟨∇L_i(w_i), w_i − w⟩
    distance: float  # ‖w_i − w‖
    smoothness: float  # the larger of ‖∇L_i(w_i) − ∇L_i(w)‖ / ‖w_i − w‖ and the Hessian's largest |eigenvalue| at w
    curvature: float  # the Hessian's least eigenvalue at w
    logit_lipschitz: float  # max over samples of ‖f(w_i,x) − f(w,x)‖² / (2‖w_i − w‖²)

    def inexactness(self, mu: float) -> float:
        """Assumption 2's ratio ‖∇L_i(w_i) + μ(w_i − w)‖ / ‖∇L_i(w)‖."""
        square = self.after**2 + 2 * mu * self.along + (mu * self.distance) ** 2
        return math.sqrt(max(square, 0.0)) / self.before if self.before else math.inf

    @property
    def least_inexactness(self) -> float:
        """The ratio at the μ ≥ 0 that suits this client best, where μ(w_i − w) cancels most of its gradient."""
        return self.inexactness(max(-self.along, 0.0) / self.distance**2 if self.distance else 0.0)


@dataclass(frozen=True)
class RoundMeasure:
    """One round: the constants it shows and how far the global loss really fell."""

    round: int
    gradient: float  # ‖∇L(w)‖
    dissimilarity: float  # B
    participants: tuple[Participant, ...]
    loss: float  # L(w), before the round
    observed: float  # L(w) − L(w⁺)

    @property
    def smoothness(self) -> float:
        """L_F."""
        return max(one.smoothness for one in self.participants)

    @property
    def curvature(self) -> float:
        """L_m."""
        return min(one.curvature for one in self.participants)

    @property
    def logit_lipschitz(self) -> float:
        """L_f."""
        return max(one.logit_lipschitz for one in self.participants)

    def inexactness(self, mu: float) -> float:
        """η: Assumption 2 is about every client, so the largest of them."""
        return max(one.inexactness(mu) for one in self.participants)

    @property
    def least_inexactness(self) -> float:
        """What no μ brings η below, with the clients' models as they are."""
        return max(one.least_inexactness for one in self.participants)


def measure_gradients(objectives: Sequence[Objective], weights: Tensor) -> tuple[float, float]:
    """‖∇L(w)‖ and B = √(Σ p_i‖∇L_i(w)‖²) / ‖∇L(w)‖, over all clients."""
    total, squares = torch.zeros_like(weights), 0.0
    for objective in objectives:
        local = objective.gradient(weights)
        total += objective.share * local
        squares += objective.share * float(local @ local)
    norm = float(total.norm())
    return norm, math.sqrt(squares) / norm if norm else math.inf


def measure_participant(client: int, objective: Objective, weights: Tensor, trained: Tensor) -> Participant:
    """What one client's way from ``weights`` to ``trained`` shows."""
    before, after, step = objective.gradient(weights), objective.gradient(trained), trained - weights
    distance = float(step.norm())
    low, high = extreme_eigenvalues(objective.hessian(weights), weights)
    secant = float((after - before).norm()) / distance if distance else 0.0
    return Participant(
        client,
        float(before.norm()),
        float(after.norm()),
        float(after @ step),
        distance,
        max(secant, abs(low), abs(high)),
        low,
        _logit_change(objective, weights, trained) / (2 * distance**2) if distance else 0.0,
    )


def _logit_change(objective: Objective, weights: Tensor, trained: Tensor) -> float:
    """max over the client's samples of ‖f(w_i, x) − f(w, x)‖²."""
    with torch.no_grad():
        changes = [(part(trained) - part(weights)).square().sum(-1).max() for part in objective.logits]
    return max(float(change) for change in changes)


def extreme_eigenvalues(
    multiply: Callable[[Tensor], Tensor], like: Tensor, steps: int = LANCZOS_STEPS
) -> tuple[float, float]:
    """The least and the largest eigenvalue of a symmetric matrix known by its products (Lanczos).

    They are Ritz values: never outside the true range, and exact when ``steps`` reaches the size of the matrix.
    """
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(like.numel(), generator=draw, dtype=torch.float64).to(like)
    basis, diagonal, beside = [start / start.norm()], [], []
    for _ in range(min(steps, like.numel())):
        image = multiply(basis[-1])
        diagonal.append(float(image @ basis[-1]))
        known = torch.stack(basis)
        for _ in range(2):  # once is not enough in floating point
            image = image - known.T @ (known @ image)
        rest = float(image.norm())
        if rest <= 1e-10 * max(map(abs, diagonal)):
            break
        beside.append(rest)
        basis.append(image / rest)
    size = len(diagonal)
    ritz = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    off = torch.tensor(beside[: size - 1], dtype=torch.float64)
    values = torch.linalg.eigvalsh(ritz + torch.diag(off, 1) + torch.diag(off, -1))
    return float(values[0]), float(values[-1])
