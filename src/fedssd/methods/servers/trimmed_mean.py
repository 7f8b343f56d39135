"""Trimmed mean: in every coordinate leave out the largest and the smallest values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Closing, Server
from fedssd.core.net import Net
from fedssd.core.tree import Tree


@dataclass(frozen=True)
class TrimmedMean(Server):
    """w[p] ← the mean of what is left of {w_i[p]} without its ``cut`` largest and ``cut`` smallest values.

    Clients count equally. As long as at most ``cut`` of them lie, every coordinate stays within the honest values. A
    cohort too small to cut so many loses all but its middle: one value, or two.
    """

    name: ClassVar[str] = "trimmed-mean"
    formula: ClassVar[str] = "w[p] ← mean of {w_i[p]} without the b largest and the b smallest"
    paper: ClassVar[str] = (
        "Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates (coordinate-wise)"
    )

    cut: int = 2

    def __post_init__(self) -> None:
        if self.cut < 0:
            raise ValueError(f"trimmed-mean.cut expects a whole number of at least 0, got {self.cut}")

    def combine(self, net: Net, weights: Tree, memory: Tree, got: Tree, closing: Closing) -> tuple[Tree, Tree]:
        return tree.map_tree(lambda leaf: middle_mean(leaf, self.cut), got), memory


def middle_mean(leaf: Tensor, cut: int) -> Tensor:
    """The mean over the clients [C, …] without the ``cut`` largest and smallest values of every coordinate.

    NaN sorts last, so up to ``cut`` of them do no harm. Tables of integers, which no client changes, are the first's.
    """
    if not leaf.is_floating_point():
        return leaf[0]
    cut = min(cut, (len(leaf) - 1) // 2)
    ordered = leaf.sort(dim=0).values if cut else leaf
    return ordered[cut : len(leaf) - cut].mean(0)
