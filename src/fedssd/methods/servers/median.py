"""Median: in every coordinate the middle value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedssd.core import tree
from fedssd.core.contract import Closing, Server
from fedssd.core.net import Net
from fedssd.core.tree import Tree
from fedssd.methods.servers.trimmed_mean import TrimmedMean, middle_mean


@dataclass(frozen=True)
class Median(Server):
    """w[p] ← median of {w_i[p]}, the mean of the two middle values where the number of clients is even.

    Clients count equally. As long as fewer than half of them lie, every coordinate stays within the honest values.
    """

    name: ClassVar[str] = "median"
    formula: ClassVar[str] = "w[p] ← median of {w_i[p]}"
    paper: ClassVar[str] = TrimmedMean.paper
    tells_down: ClassVar[str] = "each weight of its middle client"

    def combine(self, net: Net, weights: Tree, memory: Tree, got: Tree, closing: Closing) -> tuple[Tree, Tree]:
        return tree.map_tree(lambda leaf: middle_mean(leaf, cut=len(leaf)), got), memory
