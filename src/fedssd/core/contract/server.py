"""The server's half of a method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract.exchanged import Closing
from fedssd.core.contract.local import Local
from fedssd.core.net import Net
from fedssd.core.tree import Tree


@dataclass(frozen=True)
class Server:
    """The server's half: how stacked client uploads [C, …] become the next global model."""

    name: ClassVar[str] = "fedavg"
    formula: ClassVar[str] = "w ← Σ p_i w_i"
    paper: ClassVar[str] = Local.paper
    tells_up: ClassVar[str] = Local.tells_up
    tells_down: ClassVar[str] = Local.tells_down
    needs_auxiliary: ClassVar[bool] = False
    mixes_models: ClassVar[bool] = False  # combine_models() takes clients with different models
    moves_units: ClassVar[bool] = False  # a hidden unit may have another place in the next global model
    needs_length: ClassVar[bool] = False  # reads how far the solver walked, so nothing else may move the weights

    def check(self, net: Net, weights: Tree, x: Tensor) -> None:
        """Raise ValueError, before anything trains, for a model that this half cannot combine; x is a few samples."""

    def memory(self, weights: Tree) -> Tree:
        """What the server half keeps between rounds."""
        return {}

    def broadcast(self, memory: Tree) -> Tree:
        """What this half sends to the clients beside the weights."""
        return {}

    def hold(self, sent: Tree, before: Tree, after: Tree) -> Tree:
        """The parameters that a local step leaves; a half that freezes some layers puts them back here."""
        return after

    def combine(self, net: Net, weights: Tree, memory: Tree, got: Tree, closing: Closing) -> tuple[Tree, Tree]:
        """The next global weights and the next memory; here FedAvg's mean, weighted by samples."""
        return tree.weighted_mean(closing.share, got), memory

    def combine_models(
        self,
        nets: Mapping[str, Net],
        weights: Mapping[str, Tree],
        memory: Tree,
        got: Mapping[str, Tree],
        closing: Mapping[str, Closing],
    ) -> tuple[dict[str, Tree], Tree]:
        """:meth:`combine` for clients with different models, everything by the model's name; shares sum to one in each.

        A model that no client of the round holds is missing in ``got`` and ``closing``.
        """
        raise ValueError(unmixable(Local(), self))


def unmixable(local: Local, server: Server) -> str:
    """Why these two halves cannot serve clients with different models, or nothing."""
    if not local.shares_weights or server.mixes_models:
        return ""
    return (
        f"server half {server.name!r} combines the weights of one model, and the clients have different ones: "
        "take server half 'feddf', or a method without shared weights (fd, fedmd, cronus)"
    )
