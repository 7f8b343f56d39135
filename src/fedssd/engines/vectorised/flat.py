"""A dictionary of stacked leaves [M, …] as one buffer [M, P]: one update, one copy, one gradient for all of them.

Leaves of other types, such as a counter or a mask among a model's buffers, have a buffer for each type: beside floats
an integer would come back as one, and a large one as another number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Cut = Callable[[Tensor, list[int]], Sequence[Tensor]]


def _cut(buffer: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    return buffer.split_with_sizes(sizes, dim=1)


class Slot(NamedTuple):
    """Where a leaf lies in the buffer."""

    name: str
    shape: tuple[int, ...]
    size: int
    last: bool  # stored [O, H, W, I], the order convolutions of one large model run fastest in


class Flat:
    """The order and shapes of the leaves in a buffer, all of one type."""

    def __init__(self, one: dict[str, Tensor], channels_last: bool = False) -> None:
        """``one`` is a single model's dictionary, leaves without the axis of models."""
        self.slots = [
            Slot(name, tuple(leaf.shape), math.prod(leaf.shape), channels_last and leaf.ndim == 4)
            for name, leaf in one.items()
        ]
        self.size = sum(slot.size for slot in self.slots)

    def views(self, buffer: Tensor, cut: Cut = _cut) -> dict[str, Tensor]:
        """[M, P] as leaves [M, …]. One cut, whose gradient is one concatenation."""
        if not self.slots:
            return {}
        parts = cut(buffer, [slot.size for slot in self.slots])
        return {slot.name: _shaped(slot, part) for slot, part in zip(self.slots, parts, strict=True)}

    def pack(self, stacked: dict[str, Tensor], like: Tensor) -> Tensor:
        """Leaves [M, …] as [M, P]; ``like`` lends device, type and M to an empty dictionary."""
        if not self.slots:
            return like.new_zeros(like.shape[0], 0)
        return torch.cat([_row(slot, stacked[slot.name]) for slot in self.slots], dim=1)


class FlatByType:
    """Leaves of any types, those of each type in a buffer of their own."""

    def __init__(self, one: dict[str, Tensor]) -> None:
        """``one`` is a single model's dictionary, leaves without the axis of models."""
        self.names = list(one)
        types = {str(leaf.dtype): leaf.dtype for leaf in one.values()}
        self.flats = {
            kind: Flat({name: leaf for name, leaf in one.items() if leaf.dtype == dtype})
            for kind, dtype in types.items()
        }

    def views(self, buffers: dict[str, Tensor]) -> dict[str, Tensor]:
        """Buffers [M, Q] by type as leaves [M, …]."""
        found = {name: leaf for kind, flat in self.flats.items() for name, leaf in flat.views(buffers[kind]).items()}
        return {name: found[name] for name in self.names}

    def pack(self, stacked: dict[str, Tensor]) -> dict[str, Tensor]:
        """Leaves [M, …] as buffers [M, Q] by type."""
        return {
            kind: torch.cat([_row(slot, stacked[slot.name]) for slot in flat.slots], dim=1)
            for kind, flat in self.flats.items()
        }


def _shaped(slot: Slot, part: Tensor) -> Tensor:
    if not slot.last:
        return part.view(len(part), *slot.shape) if slot.shape else part[:, 0]
    out, inner, height, width = slot.shape
    return part.view(len(part), out, height, width, inner).permute(0, 1, 4, 2, 3)  # [M, O, I, H, W]


def _row(slot: Slot, leaf: Tensor) -> Tensor:
    return (leaf.permute(0, 1, 3, 4, 2) if slot.last else leaf).reshape(leaf.shape[0], slot.size)
