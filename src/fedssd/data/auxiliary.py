"""The auxiliary set D_V: a few labelled samples of every class, on which the server judges the global model."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedssd.core.randomness import Purpose, permutation
from fedssd.data.partition import Partition
from fedssd.errors import UserError, perhaps

PER_CLASS = 64
MODES = ("heldout", "shared")


def take(
    labels: Tensor, partition: Partition, classes: int, per_class: int = PER_CLASS, mode: str = "heldout", seed: int = 0
) -> tuple[Tensor, Partition, list[str]]:
    """Choose the auxiliary rows after the split; returns them, what the clients keep, and remarks for the user.

    ``heldout`` removes the rows from whoever holds them, ``shared`` leaves them where they are. At most half of a class
    is taken, so that it stays trainable, and no client is left without data.
    """
    _check(per_class, mode)
    if per_class == 0:
        return torch.empty(0, dtype=torch.int64), partition, []
    owner = owners(partition, len(labels))
    left = torch.tensor(partition.sizes) if mode == "heldout" else None
    chosen: list[int] = []
    notes: list[str] = []
    for k in range(classes):
        rows = torch.nonzero((labels == k) & (owner >= 0)).flatten()
        order = rows[permutation(len(rows), seed, Purpose.AUXILIARY, k)]
        wanted = min(per_class, len(rows) // 2)
        taken = _choose(order, owner, wanted, left)
        notes += _remark(k, len(rows), len(taken), wanted, per_class)
        chosen += taken
    auxiliary = torch.tensor(chosen, dtype=torch.int64)
    if mode == "shared":
        return auxiliary, partition, notes
    return auxiliary, without(partition, auxiliary, len(labels)), notes


def _check(per_class: int, mode: str) -> None:
    if mode not in MODES:
        raise UserError(f"unknown auxiliary mode {mode!r}: expected one of {', '.join(MODES)}{perhaps(mode, MODES)}")
    if per_class < 0:
        raise UserError(f"expected 0 or more auxiliary samples per class, got {per_class}: set --auxiliary")


def owners(partition: Partition, samples: int) -> Tensor:
    """The client that holds each row, −1 where nobody does, [samples]."""
    owner = torch.full((samples,), -1, dtype=torch.int64)
    for client, rows in enumerate(partition.clients):
        owner[rows] = client
    return owner


def _choose(order: Tensor, owner: Tensor, wanted: int, left: Tensor | None) -> list[int]:
    """The first ``wanted`` rows in order, passing over the last sample of any client; ``left`` is counted down."""
    taken: list[int] = []
    for row in order.tolist():
        if len(taken) == wanted:
            break
        client = int(owner[row])
        if left is not None:
            if int(left[client]) <= 1:
                continue
            left[client] -= 1
        taken.append(row)
    return taken


def _remark(k: int, samples: int, taken: int, wanted: int, per_class: int) -> list[str]:
    if taken == per_class:
        return []
    why = ", as the rest are the last samples of their clients" if taken < wanted else ""
    return [f"class {k} has {samples} samples: {taken} instead of {per_class} taken for the auxiliary set{why}"]


def without(partition: Partition, rows: Tensor, samples: int) -> Partition:
    """The partition less ``rows``; what is left keeps its order."""
    gone = torch.zeros(samples, dtype=torch.bool)
    gone[rows] = True
    return replace(partition, clients=tuple(client[~gone[client]] for client in partition.clients))
