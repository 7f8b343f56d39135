"""How much each client counts where a server half leaves that open: by its samples, or all alike."""

from __future__ import annotations

import torch
from torch import Tensor

WEIGHTINGS = ("samples", "equal")


def check_weighting(server: str, weighting: str) -> None:
    """Refuse a weighting that is not known."""
    if weighting not in WEIGHTINGS:
        raise ValueError(f"{server}.weighting expects one of {', '.join(WEIGHTINGS)}, got {weighting!r}")


def weighted(share: Tensor, weighting: str) -> Tensor:
    """p_i: the share of the samples, or 1/C."""
    return share if weighting == "samples" else torch.full_like(share, 1 / len(share))
