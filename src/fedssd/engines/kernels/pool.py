# mypy: disable-error-code="no-untyped-def"
"""The largest of every 2 × 2 square, for pools that do not follow one of our convolutions."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedssd.engines.kernels.launching import launched

BLOCK = 1024


@launched()
def _pool(x, out, count, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, BP: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BP + tl.arange(0, BP)
    known = place < count
    corner = (place // (OH * OW)) * (H * W) + ((place // OW) % OH) * (2 * W) + (place % OW) * 2
    a, b = tl.load(x + corner, mask=known), tl.load(x + corner + 1, mask=known)
    c, d = tl.load(x + corner + W, mask=known), tl.load(x + corner + W + 1, mask=known)
    tl.store(out + place, tl.maximum(tl.maximum(a, b), tl.maximum(c, d)), mask=known)


@launched()
def _pool_gradient(
    x, dy, dx, count, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, BP: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64) * BP + tl.arange(0, BP)
    known = place < count
    corner = (place // (OH * OW)) * (H * W) + ((place // OW) % OH) * (2 * W) + (place % OW) * 2
    a, b = tl.load(x + corner, mask=known), tl.load(x + corner + 1, mask=known)
    c, d = tl.load(x + corner + W, mask=known), tl.load(x + corner + W + 1, mask=known)
    top, slope = tl.maximum(tl.maximum(a, b), tl.maximum(c, d)), tl.load(dy + place, mask=known)
    first, second = a == top, b == top  # of equal entries the first gets the gradient
    third = (c == top) & ~first & ~second
    second = second & ~first
    fourth = ~(first | second | third)
    tl.store(dx + corner, tl.where(first, slope, 0.0), mask=known)
    tl.store(dx + corner + 1, tl.where(second, slope, 0.0), mask=known)
    tl.store(dx + corner + W, tl.where(third, slope, 0.0), mask=known)
    tl.store(dx + corner + W + 1, tl.where(fourth, slope, 0.0), mask=known)


def pool(x: Tensor) -> Tensor:
    """The largest of every 2 × 2 square, [..., H, W] -> [..., H // 2, W // 2]."""
    x = x.contiguous()
    out = x.new_empty(*x.shape[:-2], x.shape[-2] // 2, x.shape[-1] // 2)
    grid = (triton.cdiv(out.numel(), BLOCK),)
    _pool[grid](x, out, out.numel(), *x.shape[-2:], *out.shape[-2:], BLOCK)
    return out


def pool_gradient(x: Tensor, dy: Tensor) -> Tensor:
    """The gradient of :func:`pool`'s input."""
    x, dy = x.contiguous(), dy.contiguous()
    even = x.shape[-2] % 2 == x.shape[-1] % 2 == 0
    dx = torch.empty_like(x) if even else torch.zeros_like(x)
    grid = (triton.cdiv(dy.numel(), BLOCK),)
    _pool_gradient[grid](x, dy, dx, dy.numel(), *x.shape[-2:], *dy.shape[-2:], BLOCK)
    return dx
