"""What methods share whose clients keep models of their own: no weights travel, and a client's model is its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedssd.core.contract import Local
from fedssd.core.net import Net
from fedssd.core.tree import Tree


@dataclass(frozen=True)
class OwnModel(Local):
    """Training goes on from the client's own model; whatever goes up is in its report."""

    shares_weights: ClassVar[bool] = False

    def memory(self, sent: Tree) -> Tree:
        return {"model": sent["weights"]}

    def start(self, sent: Tree, memory: Tree) -> Tree:
        return memory["model"]

    def upload(self, net: Net, weights: Tree, sent: Tree, memory: Tree) -> Tree:
        return {}
