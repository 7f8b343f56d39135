"""What the hooks are given, and what the server keeps between rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.tree import Tree


class Batch(NamedTuple):
    """What a client trains on in one step."""

    x: Tensor  # [B, …] ready for the model
    y: Tensor  # [B], the class; −1 − j for sample j of the public set, which has no label
    mask: Tensor  # [B], 1 for a sample and 0 for padding
    samples: Tensor  # n_i, how many samples the client holds
    counts: Tensor  # [K], how many of each class, known before the first step

    @property
    def labelled(self) -> Tensor:
        """1 for the client's own samples, 0 for those of the public set, [B]."""
        return (self.y >= 0).to(self.mask.dtype)

    @property
    def public(self) -> Tensor:
        """The place of each sample in the public set, [B]; 0 for the client's own."""
        return (-1 - self.y).clamp(min=0)


class Work(NamedTuple):
    """What a client did in the round; made by the engine, so that no method counts steps itself."""

    samples: Tensor  # n_i
    steps: Tensor  # τ_i
    length: Tensor  # η‖a_i‖₁, how far the solver walked: η·τ_i without momentum


class ClientData(NamedTuple):
    """A client's samples after local training, for methods that measure something on them."""

    x: Tensor  # [n, …] as stored
    y: Tensor  # [n]
    mask: Tensor  # [n], 0 for padding
    prepare: Callable[[Tensor], Tensor]  # stored samples to model inputs, without augmentation
    public: Tensor | None = None  # [P, …] the public set, ready for the model, where the method needs one
    at_once: int = 32  # samples that a mean over all of them takes at a time, by default


def mean_over(data: ClientData, function: Callable[[Tensor, Tensor], Tree], chunk: int | None = None) -> Tree:
    """The mean of ``function(x, y)`` over a client's samples, a chunk at a time, as large as the data allows.

    ``function`` sees one prepared sample and its label. Chunks bound the memory: per-sample gradients of a ResNet-50
    client would need hundreds of gigabytes at once.
    """
    total: Tree = None
    chunk = chunk or data.at_once
    for first in range(0, data.y.shape[0], chunk):
        part = slice(first, first + chunk)
        x, y, mask = data.prepare(data.x[part]), data.y[part], data.mask[part]
        values = torch.func.vmap(function)(x, y)
        sums = tree.map_tree(lambda v, m=mask: torch.tensordot(m.to(v.dtype), v, dims=1), values)
        total = sums if total is None else tree.map_tree(torch.add, total, sums)
    count = data.mask.sum()
    return tree.map_tree(lambda v: v / count.to(v.dtype), total)


class Auxiliary(NamedTuple):
    """The server's small labelled set D_V, ready for the model; without its labels, the public set."""

    x: Tensor
    y: Tensor


class Reports(NamedTuple):
    """What the server learns when a round closes: stacked client reports and who they came from."""

    content: Tree  # each leaf [C, …]
    share: Tensor  # [C], sums to one
    cohort: float  # participants over population


class Closing(NamedTuple):
    """What a server half knows of a round that closes, beside the uploads; clients as there, in ascending order."""

    share: Tensor  # p_i = n_i / Σ n, [C]
    work: Work  # what each client did, [C]
    cohort: float  # participants over population
    round: int  # from 0
    reports: Tree  # what the local half's finish() reported, each leaf [C, …]
    auxiliary: Auxiliary | None


class ServerState(NamedTuple):
    """Everything the server has between two rounds."""

    round: int
    weights: Tree  # the global model; where no weights are shared, the one every client started from
    local: Tree  # memory of the local half
    server: Tree  # memory of the server half
