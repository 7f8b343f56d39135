# mypy: disable-error-code="no-untyped-def"
"""The random words of :func:`fedssd.core.randomness.bits`, to the bit, in one launch for each word of the key."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedssd.core.randomness import Word, absorb, first_state
from fedssd.engines.kernels.launching import launched

BLOCK, DIMENSIONS = 1024, 4


@triton.jit
def _mix(word):
    word ^= word >> 16
    word *= 0x7FEB352D
    word ^= word >> 15
    word *= 0x846CA68B
    return word ^ (word >> 16)


SIZES = ["shift", "count", "n1", "n2", "n3", "s0", "s1", "s2", "s3", "w0", "w1", "w2", "w3"]


@launched(do_not_specialize=SIZES, rehearsed=False)
def _absorb(
    state, word, out, shift, count, n1, n2, n3, s0, s1, s2, s3, w0, w1, w2, w3,
    STATE: tl.constexpr, WORD: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # State and word are numbers or tensors of up to four axes; their strides may be zero.
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    known = place < count
    i3, i2, i1, i0 = place % n3, place // n3 % n2, place // n3 // n2 % n1, place // n3 // n2 // n1
    word_now = tl.load(word + i0 * w0 + i1 * w1 + i2 * w2 + i3 * w3, mask=known, other=0) if WORD else word + 0 * place
    before = tl.load(state + i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3, mask=known, other=0) if STATE else state + 0 * place
    mixed = _mix((before * 0x01000193 + (word_now & 0xFFFFFFFF) + shift).to(tl.uint32))
    mixed = _mix(mixed ^ ((word_now >> 32) & 0xFFFFFFFF).to(tl.uint32))
    if LAST:
        mixed = _mix(mixed)
    tl.store(out + place, mixed.to(tl.int64), mask=known)


def covers(words: Sequence[Word]) -> bool:
    """Whether the words are integers and tensors of the shapes the kernel knows."""
    tensors = [word for word in words if isinstance(word, Tensor)]
    fitting = all(word.dtype == torch.int64 and word.ndim <= DIMENSIONS for word in tensors)
    return bool(tensors) and fitting and isinstance(words[-1], Tensor | int)


def bits(*words: Word) -> Tensor:
    """32 random bits for each combination of the words."""
    state: Word = first_state()
    position = 0
    while not isinstance(words[position], Tensor):
        state = absorb(state, words[position], position)
        position += 1
    for place in range(position, len(words)):
        state = _step(state, words[place], place, place == len(words) - 1)
    assert isinstance(state, Tensor)
    return state


def _step(state: Word, word: Word, position: int, last: bool) -> Tensor:
    tensors = [part for part in (state, word) if isinstance(part, Tensor)]
    # not broadcast_shapes, whose first call imports sympy: that takes seconds
    shape = torch.broadcast_tensors(*tensors)[0].shape  # type: ignore[no-untyped-call]
    out = torch.empty(shape, dtype=torch.int64, device=tensors[0].device)
    if not out.numel():
        return out
    sides = [1] * (DIMENSIONS - len(shape)) + list(shape)
    steps = [
        [0] * (DIMENSIONS - len(shape)) + list(part.expand(shape).stride()) if isinstance(part, Tensor) else [0] * 4
        for part in (state, word)
    ]
    _absorb[(triton.cdiv(out.numel(), BLOCK),)](
        state, word, out, position * 0x85EBCA6B & 0xFFFFFFFF, out.numel(), *sides[1:], *steps[0], *steps[1],
        isinstance(state, Tensor), isinstance(word, Tensor), last, BLOCK,
    )  # fmt: skip
    return out
