"""Cronus: train on one's own data and on the public set as a robust mean of all clients labels it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssd.core.contract import Batch, Reports
from fedssd.core.net import Outputs
from fedssd.core.plan import Phase
from fedssd.core.tree import Tree
from fedssd.methods.consensus import Consensus

FAR = 1e3  # outputs are shares, at most 1: whatever lies further out stands out as much, and its square stays a number


@dataclass(frozen=True)
class Cronus(Consensus):
    """CE on one's own samples and λ CE( ȳ, softmax(z) ) on the public ones, ȳ a robust mean of the clients' outputs.

    ``corrupted`` is the share of clients that may lie; ``filters`` times an equal part of it is left out, see
    :func:`robust_mean`. In the first round nobody has said anything, and a client only trains on its own data.
    """

    name: ClassVar[str] = "cronus"
    formula: ClassVar[str] = "CE, and λ CE( ȳ, softmax(z) ) on the public set, ȳ a robust mean of the clients' outputs"
    paper: ClassVar[str] = (
        "Chang et al. 2019, Cronus: Robust and Heterogeneous Collaborative Learning with Black-Box Knowledge Transfer"
    )
    tells_up: ClassVar[str] = "outputs on the public set"
    tells_down: ClassVar[str] = "their robust mean"
    strength: ClassVar[str] = "lam"

    lam: float = 1.0
    corrupted: float = 0.2
    filters: int = 2

    def __post_init__(self) -> None:
        if isinstance(self.corrupted, float) and not self.corrupted < 0.5:
            raise ValueError(f"cronus.corrupted expects a share below 0.5, got {self.corrupted:g}")
        if self.filters < 1:
            raise ValueError(f"cronus.filters expects a whole number of at least 1, got {self.filters}")

    def scores(self, logits: Tensor) -> Tensor:
        return F.softmax(logits, -1)

    def phases(self, sent: Tree) -> tuple[Phase, ...]:
        return (Phase("both"),) if "consensus" in sent else (Phase(),)

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        if not target:
            return out.logits.new_zeros(())
        agreement: Tensor = (target["consensus"] * F.log_softmax(out.logits, -1)).sum(-1)
        return -self.lam * agreement * (1 - batch.labelled)

    def absorb(self, memory: Tree, weights: Tree, reports: Reports) -> Tree:
        return {"consensus": robust_mean(reports.content["scores"], float(self.corrupted), self.filters)}


def robust_mean(points: Tensor, corrupted: float, filters: int) -> Tensor:
    """The mean over clients [C, N, K] -> [N, K], for each sample without the clients that stand out.

    The filter of Diakonikolas et al.: find the direction in which the clients differ most, leave out those furthest
    along it, and look again. Each of ``filters`` looks leaves out corrupted · C / filters clients, rounded down.
    """
    gone = int(corrupted * len(points) / filters + 1e-9)
    kept = torch.ones_like(points[..., 0])  # [C, N]
    near = points.nan_to_num(FAR).clamp(-FAR, FAR)
    for _ in range(filters if gone else 0):
        centred = (near - _mean(near, kept)) * kept[..., None]
        spread = torch.einsum("cnk,cnj->nkj", centred, centred)
        direction = torch.linalg.eigh(spread).eigenvectors[..., -1]  # [N, K], of the largest eigenvalue
        distance = torch.einsum("cnk,nk->cn", centred, direction).abs()
        furthest = torch.where(kept > 0, distance, -1).topk(gone, dim=0).indices
        kept = kept.scatter(0, furthest, 0.0)
    return _mean(points, kept)


def _mean(points: Tensor, kept: Tensor) -> Tensor:
    return torch.where(kept[..., None] > 0, points, 0).sum(0) / kept.sum(0)[:, None]
