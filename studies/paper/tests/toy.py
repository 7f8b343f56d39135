"""A toy whose losses have constants known by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from studies.paper.theory.measure import Objective, RoundMeasure, measure_gradients, measure_participant

# A toy whose constants are known: L_i(w) = ½ (w − c_i)ᵀ D (w − c_i), D = diag(3, 1, −2), logits A w with ‖A‖ = 2.
D = torch.tensor([3.0, 1.0, -2.0], dtype=torch.float64)
CENTRES = [torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), torch.tensor([0.0, 2.0, 0.0], dtype=torch.float64)]
SHARES = (0.25, 0.75)
A = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
ORIGIN = torch.zeros(3, dtype=torch.float64)


def toy(client: int) -> Objective:
    """The loss in two halves, as chunks of samples would be."""

    def half(w: Tensor) -> Tensor:
        return ((w - CENTRES[client]) ** 2 * D).sum() / 4

    return Objective(SHARES[client], [half, half], [lambda w: (A @ w)[None]])


def toy_round() -> RoundMeasure:
    """Client 0 moved along the first axis, client 1 along the third."""
    moves = [torch.tensor([0.5, 0.0, 0.0]).double(), torch.tensor([0.0, 0.0, -1.0]).double()]
    objectives = [toy(0), toy(1)]
    gradient, dissimilarity = measure_gradients(objectives, ORIGIN)
    found = [measure_participant(client, objectives[client], ORIGIN, moves[client]) for client in (0, 1)]
    return RoundMeasure(1, gradient, dissimilarity, tuple(found), 2.0, 0.125)
