"""Randomness as data: every draw is a pure function of (seed, purpose, round, client, counter).

There is no generator and no state. A draw is a counter-based integer hash written in tensor operations, so the CPU,
the GPU and every engine see the same bits, and resuming at round t needs nothing but t. Words are 32 bits wide and
live in int64 tensors with masks: torch's unsigned types lack addition and shifts on the CPU, and the low 32 bits of a
wrapped int64 product are exact everywhere.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from fedssd.core.tree import overridable

MASK = 0xFFFFFFFF
Word = int | Tensor


class Purpose(IntEnum):
    """What a draw is for; part of the key, so that no two purposes ever share numbers."""

    WEIGHTS = 1
    COHORT = 2
    SHUFFLE = 3
    AUGMENT = 4
    AUXILIARY = 5
    SERVER = 6
    SPLIT = 7
    PUBLIC = 8
    FAULTY_CLIENTS = 21
    LOST_REPLIES = 22


def _mix(word: Any) -> Any:
    """One bijective scramble of 32 bits, Chris Wellons' lowbias32: an input bit flips each output bit half the time."""
    word = (word ^ (word >> 16)) & MASK
    word = (word * 0x7FEB352D) & MASK
    word = (word ^ (word >> 15)) & MASK
    word = (word * 0x846CA68B) & MASK
    return word ^ (word >> 16)


def first_state() -> int:
    """What the hash is before it has seen a word of its key."""
    return 0x9E3779B9


def absorb(state: Any, word: Word, position: int) -> Any:
    """The hash after one more word; an integer until the first tensor."""
    state = _mix((state * 0x01000193 + (word & MASK) + position * 0x85EBCA6B) & MASK)
    return _mix(state ^ ((word >> 32) & MASK))


@overridable
def bits(*words: Word) -> Tensor:
    """32 random bits for each combination of the (broadcast) key words, as int64 in [0, 2³²)."""
    state: Any = first_state()
    for position, word in enumerate(words):
        state = absorb(state, word, position)
    final: Tensor = _mix(torch.as_tensor(state, dtype=torch.int64))
    return final


def uniform(*words: Word) -> Tensor:
    """float64 draws strictly inside (0, 1)."""
    return (bits(*words).to(torch.float64) + 0.5) / 2.0**32


def normal(*words: Word) -> Tensor:
    """float64 draws from the standard normal distribution (Box–Muller)."""
    radius = torch.sqrt(-2.0 * torch.log(uniform(*words, 0)))
    return radius * torch.cos(2.0 * math.pi * uniform(*words, 1))


def below(limit: int, word: Tensor) -> Tensor:
    """Turn 32-bit words into integers in [0, limit) (multiply and shift: no bias worth 2⁻³² · limit)."""
    return (word * limit) >> 32


def shuffle_keys(*words: Word) -> Tensor:
    """63-bit sort keys: ordering positions by them shuffles the positions."""
    return (bits(*words, 0) << 31) | (bits(*words, 1) >> 1)


def permutation(count: int, *words: Word) -> Tensor:
    """A random order of 0 … count−1."""
    return torch.argsort(shuffle_keys(*words, torch.arange(count)), stable=True)


def sample_cohort(seed: int, round_: int, population: int, size: int) -> list[int]:
    """Which clients take part in a round, in ascending order."""
    if size >= population:
        return list(range(population))
    chosen = permutation(population, seed, Purpose.COHORT, round_)[:size]
    return sorted(int(client) for client in chosen)
