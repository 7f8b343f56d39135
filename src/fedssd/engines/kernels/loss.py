# mypy: disable-error-code="no-untyped-def"
"""Cross-entropy, and the weighted square of FedSSD and its kin, one launch forwards and one backwards."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 64  # samples of one program


@triton.jit  # type: ignore[untyped-decorator]
def _entropy(logits, y, out, probability, count, K: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    k = tl.arange(0, BK)
    known = (row < count)[:, None] & (k < K)[None, :]
    z = tl.load(logits + row[:, None] * K + k[None, :], mask=known, other=0.0)
    z = tl.where((k < K)[None, :], z, float("-inf"))
    label = tl.load(y + row, mask=row < count, other=0)
    z = z - tl.max(z, 1)[:, None]
    power = tl.exp(z)
    total = tl.sum(power, 1)
    own = tl.sum(tl.where(k[None, :] == label[:, None], z, 0.0), 1)
    tl.store(out + row, tl.log(total) - own, mask=row < count)
    tl.store(probability + row[:, None] * K + k[None, :], power / total[:, None], mask=known)


@triton.jit  # type: ignore[untyped-decorator]
def _entropy_gradient(probability, y, slope, out, count, K: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    k = tl.arange(0, BK)
    known = (row < count)[:, None] & (k < K)[None, :]
    p = tl.load(probability + row[:, None] * K + k[None, :], mask=known, other=0.0)
    label = tl.load(y + row, mask=row < count, other=0)
    g = tl.load(slope + row, mask=row < count, other=0.0)
    tl.store(out + row[:, None] * K + k[None, :], (p - (k[None, :] == label[:, None])) * g[:, None], mask=known)


def entropy(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of logits [..., K] with labels [...], and the probabilities its gradient needs."""
    logits, y = logits.contiguous(), y.contiguous()
    out, probability = logits.new_empty(y.shape), torch.empty_like(logits)
    classes, count = logits.shape[-1], y.numel()
    _entropy[(triton.cdiv(count, ROWS),)](
        logits, y, out, probability, count, classes, int(triton.next_power_of_2(classes)), ROWS
    )
    return out, probability


def entropy_gradient(probability: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    """The gradient of the logits; ``slope`` [...] is the loss's by each sample's cross-entropy."""
    out = torch.empty_like(probability)
    classes, count = probability.shape[-1], y.numel()
    _entropy_gradient[(triton.cdiv(count, ROWS),)](
        probability, y.contiguous(), slope.contiguous(), out, count, classes, int(triton.next_power_of_2(classes)), ROWS
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _square(difference, weight, out, count, K: tl.constexpr, INSIDE: tl.constexpr, MEAN: tl.constexpr,
            BK: tl.constexpr, BR: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    k = tl.arange(0, BK)
    known = (row < count)[:, None] & (k < K)[None, :]
    d = tl.load(difference + row[:, None] * K + k[None, :], mask=known, other=0.0)
    s = tl.load(weight + row[:, None] * K + k[None, :], mask=known, other=0.0)
    if INSIDE:
        s = s * s
    total = tl.sum(s * (d * d), 1)
    if MEAN:
        total = total / K
    tl.store(out + row, total, mask=row < count)


@triton.jit  # type: ignore[untyped-decorator]
def _square_gradient(difference, weight, slope, out, count, K: tl.constexpr, INSIDE: tl.constexpr, MEAN: tl.constexpr,
                     BK: tl.constexpr, BR: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    k = tl.arange(0, BK)
    known = (row < count)[:, None] & (k < K)[None, :]
    d = tl.load(difference + row[:, None] * K + k[None, :], mask=known, other=0.0)
    s = tl.load(weight + row[:, None] * K + k[None, :], mask=known, other=0.0)
    g = tl.load(slope + row, mask=row < count, other=0.0)
    if INSIDE:
        s = s * s
    if MEAN:
        g = g / K
    tl.store(out + row[:, None] * K + k[None, :], 2 * s * d * g[:, None], mask=known)


def weighted_square(difference: Tensor, weight: Tensor, inside: bool, mean: bool) -> Tensor:
    """Σ (w d)² over the last axis, or Σ w d² with the weight outside the square; or the mean in place of the sum."""
    difference, weight = difference.contiguous(), weight.contiguous()
    out = difference.new_empty(difference.shape[:-1])
    classes = difference.shape[-1]
    _square[(triton.cdiv(out.numel(), ROWS),)](
        difference, weight, out, out.numel(), classes, inside, mean, int(triton.next_power_of_2(classes)), ROWS
    )
    return out


def weighted_square_gradient(difference: Tensor, weight: Tensor, slope: Tensor, inside: bool, mean: bool) -> Tensor:
    """The gradient of the difference."""
    difference, weight = difference.contiguous(), weight.contiguous()
    out = torch.empty_like(difference)
    classes, count = difference.shape[-1], slope.numel()
    _square_gradient[(triton.cdiv(count, ROWS),)](
        difference, weight, slope.contiguous(), out, count, classes, inside, mean,
        int(triton.next_power_of_2(classes)), ROWS,
    )  # fmt: skip
    return out
