# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: E741
"""Small convolutions and pools of many models, each with its own weights, as Triton kernels.

Libraries run such a batch as a grouped convolution, and with three to sixteen channels a group that is far slower than
the arithmetic allows. Here a program takes a tile of output pixels of one model and multiplies the patches it gathers
with that model's weights: an implicit matrix product, in TF32 or float32. Pixels lie along the threads, so that loads
and stores are whole lines; padding is written out beforehand, so that no load needs a test.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F


class Tile(NamedTuple):
    """How a kernel cuts its work: pixels and patch entries at a time."""

    pixels: int
    inner: int


# Measured on an H200. Loading ahead (more than one stage) makes these kernels three to eight times slower.
FORWARD = Tile(128, 16)
WEIGHT = Tile(64, 32)
MOST = 2**31 - 1  # entries one model's tensor may have: within a model kernels count in 32 bits
SPLITS = 64  # parts a weight gradient's sum over pixels is cut into; a handful of models then fill the device


@triton.jit  # type: ignore[untyped-decorator]
def _forward(
    x, w, bias, out, x_model,
    B: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, HAS_BIAS: tl.constexpr,
    BP: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1).to(tl.int64)
    K: tl.constexpr = C * KH * KW
    OH: tl.constexpr = H - KH + 1
    OW: tl.constexpr = W - KW + 1
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    n = tl.arange(0, BN)
    b, pixel = p // (OH * OW), p % (OH * OW)
    valid = b < B
    corner = tl.where(valid, b * (C * H * W) + (pixel // OW) * W + pixel % OW, 0)  # the patch's first entry
    x += m * x_model
    w += m * (O * K)
    acc = tl.zeros((BN, BP), dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        entry = tl.where(k < K, (k // (KH * KW)) * (H * W) + ((k // KW) % KH) * W + k % KW, 0)
        patch = tl.load(x + (entry[:, None] + corner[None, :]))  # [BK, BP]
        weight = tl.load(w + (n[:, None] * K + k[None, :]), mask=(n < O)[:, None] & (k < K)[None, :], other=0.0)
        acc += tl.dot(weight, patch, input_precision=PRECISION)
    if HAS_BIAS:
        acc += tl.load(bias + m * O + n, mask=n < O, other=0.0)[:, None]
    place = (b * (O * OH * OW) + pixel)[None, :] + (n * (OH * OW))[:, None]
    tl.store(out + m * (B * O * OH * OW) + place, acc, mask=valid[None, :] & (n < O)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _weight_gradient(
    x, dy, part, x_model,
    B: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, TILES: tl.constexpr,
    BP: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    m, split = tl.program_id(2).to(tl.int64), tl.program_id(1)
    K: tl.constexpr = C * KH * KW
    OH: tl.constexpr = H - KH + 1
    OW: tl.constexpr = W - KW + 1
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    n = tl.arange(0, BN)
    entry = tl.where(k < K, (k // (KH * KW)) * (H * W) + ((k // KW) % KH) * W + k % KW, 0)
    x += m * x_model
    dy += m * (B * O * OH * OW)
    acc = tl.zeros((BK, BN), dtype=tl.float32)
    for tile in range(TILES):
        p = (split * TILES + tile) * BP + tl.arange(0, BP)
        b, pixel = p // (OH * OW), p % (OH * OW)
        valid = b < B
        corner = tl.where(valid, b * (C * H * W) + (pixel // OW) * W + pixel % OW, 0)
        patch = tl.load(x + (entry[:, None] + corner[None, :]))  # [BK, BP]
        patch = tl.where((k == K)[:, None], 1.0, patch)  # a row of ones: the bias's gradient comes along
        place = (b * (O * OH * OW) + pixel)[None, :] + (n * (OH * OW))[:, None]
        slope = tl.load(dy + place, mask=valid[None, :] & (n < O)[:, None], other=0.0)  # [BN, BP]
        acc += tl.dot(patch, tl.trans(slope), input_precision=PRECISION)
    place = ((m * tl.num_programs(1) + split) * O + n[None, :]) * (K + 1) + k[:, None]
    tl.store(part + place, acc, mask=(n < O)[None, :] & (k <= K)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _pool(x, out, count, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, BP: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BP + tl.arange(0, BP)
    known = place < count
    corner = (place // (OH * OW)) * (H * W) + ((place // OW) % OH) * (2 * W) + (place % OW) * 2
    a, b = tl.load(x + corner, mask=known), tl.load(x + corner + 1, mask=known)
    c, d = tl.load(x + corner + W, mask=known), tl.load(x + corner + W + 1, mask=known)
    tl.store(out + place, tl.maximum(tl.maximum(a, b), tl.maximum(c, d)), mask=known)


@triton.jit  # type: ignore[untyped-decorator]
def _pool_gradient(
    x, out, dy, dx, count, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, BP: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64) * BP + tl.arange(0, BP)
    known = place < count
    corner = (place // (OH * OW)) * (H * W) + ((place // OW) % OH) * (2 * W) + (place % OW) * 2
    a, b = tl.load(x + corner, mask=known), tl.load(x + corner + 1, mask=known)
    c = tl.load(x + corner + W, mask=known)
    top, slope = tl.load(out + place, mask=known), tl.load(dy + place, mask=known)
    first, second = a == top, b == top  # of equal entries the first gets the gradient
    third = (c == top) & ~first & ~second
    second = second & ~first
    fourth = ~(first | second | third)
    tl.store(dx + corner, tl.where(first, slope, 0.0), mask=known)
    tl.store(dx + corner + 1, tl.where(second, slope, 0.0), mask=known)
    tl.store(dx + corner + W, tl.where(third, slope, 0.0), mask=known)
    tl.store(dx + corner + W + 1, tl.where(fourth, slope, 0.0), mask=known)


def forward(x: Tensor, w: Tensor, bias: Tensor | None, padding: int, precision: str, tile: Tile = FORWARD) -> Tensor:
    """x [M, B, C, H, W] (models may share it: stride 0), w [M, O, C, KH, KW], bias [M, O] -> [M, B, O, OH, OW]."""
    x, w = _padded(x, padding), w.contiguous()
    models, batch, channels, height, width = x.shape
    outputs, kernel = w.shape[1], w.shape[-2:]
    out = x.new_empty(models, batch, outputs, height - kernel[0] + 1, width - kernel[1] + 1)
    if max(x[0].numel(), out[0].numel()) > MOST:
        return torch.cat([forward(part, w, bias, 0, precision, tile) for part in x.chunk(2, dim=1)], dim=1)
    grid = (triton.cdiv(batch * out.shape[-2] * out.shape[-1], tile.pixels), models)
    given = w if bias is None else bias.contiguous()
    _forward[grid](
        x, w, given, out, x.stride(0), batch, channels, height, width, outputs, kernel[0], kernel[1], bias is not None,
        tile.pixels, tile.inner, _block(outputs), precision, num_warps=4, num_stages=1,
    )  # fmt: skip
    return out


def weight_gradient(
    x: Tensor, dy: Tensor, kernel: torch.Size, padding: int, precision: str, tile: Tile = WEIGHT, splits: int = SPLITS
) -> tuple[Tensor, Tensor]:
    """The gradients of w [M, O, C, KH, KW] and of the bias [M, O]."""
    x, dy = _padded(x, padding), dy.contiguous()
    models, batch, channels, height, width = x.shape
    outputs, inner = dy.shape[2], channels * kernel[0] * kernel[1]
    tiles = triton.cdiv(batch * dy.shape[-2] * dy.shape[-1], tile.pixels)
    each = max(2, triton.cdiv(tiles, splits))
    grid = (triton.cdiv(inner + 1, tile.inner), triton.cdiv(tiles, each), models)
    part = x.new_empty(models, grid[1], outputs, inner + 1)
    _weight_gradient[grid](
        x, dy, part, x.stride(0), batch, channels, height, width, outputs, kernel[0], kernel[1], each,
        tile.pixels, tile.inner, _block(outputs), precision, num_warps=4, num_stages=1,
    )  # fmt: skip
    total = part.sum(1)  # [M, O, K + 1]
    return total[..., :inner].reshape(models, outputs, channels, *kernel), total[..., inner]


def input_gradient(w: Tensor, dy: Tensor, padding: int, precision: str, tile: Tile = FORWARD) -> Tensor:
    """The gradient of x: dy convolved with the weights turned round."""
    turned = w.flip(-1, -2).transpose(1, 2)  # [M, C, O, KH, KW]
    return forward(dy, turned, None, w.shape[-1] - 1 - padding, precision, tile)


def pool(x: Tensor) -> Tensor:
    """The largest of every 2 × 2 square, [..., H, W] -> [..., H // 2, W // 2]."""
    x = x.contiguous()
    out = x.new_empty(*x.shape[:-2], x.shape[-2] // 2, x.shape[-1] // 2)
    grid = (triton.cdiv(out.numel(), 1024),)
    _pool[grid](x, out, out.numel(), *x.shape[-2:], *out.shape[-2:], 1024)
    return out


def pool_gradient(x: Tensor, out: Tensor, dy: Tensor) -> Tensor:
    """The gradient of :func:`pool`'s input."""
    x, dy = x.contiguous(), dy.contiguous()
    even = x.shape[-2] % 2 == x.shape[-1] % 2 == 0
    dx = torch.empty_like(x) if even else torch.zeros_like(x)
    grid = (triton.cdiv(out.numel(), 1024),)
    _pool_gradient[grid](x, out, dy, dx, out.numel(), *x.shape[-2:], *out.shape[-2:], 1024)
    return dx


def _padded(x: Tensor, padding: int) -> Tensor:
    """With its border of zeros, each model's part in one block; a stride of 0 over the models stays."""
    if padding:
        shared = x.stride(0) == 0
        padded = F.pad(x[:1] if shared else x, (padding,) * 4)
        return padded.expand(x.shape[0], *padded.shape[1:]) if shared else padded
    return x if x[0].is_contiguous() else x.contiguous()


def _block(channels: int) -> int:
    """Matrix units take at least 16 rows."""
    return max(16, int(triton.next_power_of_2(channels)))
