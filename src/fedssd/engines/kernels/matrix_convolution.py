# mypy: disable-error-code="no-untyped-def, assignment, index"
# ruff: noqa: E741
"""Gradients of small pooled convolutions, of many models with their own weights, on matrix units in TF32.

They do what ``convolution`` does backwards. A matrix unit wants sixteen rows, and such a layer has few channels: so the
rows of a product are the channels of all four places of a square of pixels, and samples lie side by side in memory. The
pooled slope is spread over its square's four places as it is read: in float32, without matrix units, three of four
products would be with zero.

For the inputs the columns are samples, and the weights are read shifted by a pixel for each place, zero where they fall
off. For the weights the inner side is the samples of a square, and a thread reads four of them at once; every place has
sums of its own, which are shifted and added up when all squares are done.

Forwards nothing is zero, and the float32 kernel is faster.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedssd.engines.kernels import strides
from fedssd.engines.kernels.launching import launched
from fedssd.engines.kernels.layer import MOST, ConvForm, own

MOST_ROWS = 16  # channels whose four places are a product's rows
MOST_ENTRIES = 256  # of a patch: larger ones were not tried
SAMPLES = 16  # a batch is a multiple of


@launched()
def _input_gradient(
    w, dy, code, out, w_model,
    B: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, K: tl.constexpr,
    PER: tl.constexpr, SQUARES: tl.constexpr, BN: tl.constexpr, BO: tl.constexpr, ROW: tl.constexpr,
):  # fmt: skip
    # Rows: 4 places × SQUARES of the input side by side × PER of its channels. Columns: such squares × ROW samples.
    # Inner: the 4 places of BO output channels, for one after another of the pooled squares that reach the rows.
    m = tl.program_id(1).to(tl.int64)
    REACH: tl.constexpr = (K + 1) // 2
    WIDE: tl.constexpr = REACH + SQUARES - 1
    SH: tl.constexpr = (H - K + 1) // 2
    SW: tl.constexpr = (W - K + 1) // 2
    QH: tl.constexpr = (H + 1) // 2
    QW: tl.constexpr = (W + 1) // 2
    GROUPS: tl.constexpr = (QW + SQUARES - 1) // SQUARES
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    group = n // ROW % (QH * GROUPS)
    sample = n // (ROW * QH * GROUPS) * ROW + n % ROW
    known = n < B * QH * GROUPS
    up, new = group // GROUPS, group % GROUPS * SQUARES
    left = tl.minimum(new, QW - SQUARES)  # the last group may begin with squares that are done already
    row = tl.arange(0, 4 * SQUARES * PER)
    c, down, right = row % PER, row // (2 * SQUARES * PER), row // (SQUARES * PER) % 2 + row // PER % SQUARES * 2
    inner = tl.arange(0, 4 * BO)
    of, i, j = inner // 4, inner % 4 // 2, inner % 2
    o = tl.arange(0, BO)
    corner = m * (B * O * SH * SW) + (up * SW + left) * B + sample
    acc = tl.zeros((4 * SQUARES * PER, BN), tl.float32)
    for s in tl.static_range(REACH * WIDE):
        y, z = up + (s // WIDE - REACH + 1), left + (s % WIDE - REACH + 1)
        inside = known & (y >= 0) & (y < SH) & (z >= 0) & (z < SW)
        step = ((s // WIDE - REACH + 1) * SW + s % WIDE - REACH + 1) * B
        a = down[:, None] - i[None, :] + 2 * (REACH - 1 - s // WIDE)
        b = right[:, None] - j[None, :] + 2 * (REACH - 1 - s % WIDE)
        fits = (c < C)[:, None] & (a >= 0) & (a < K) & (b >= 0) & (b < K)
        weights = w + m * w_model + (of[None, :] * C + c[:, None]) * (K * K) + a * K + b
        for first in range(0, O, BO):
            place = corner[None, :] + ((first + o) * (SH * SW * B) + step)[:, None]
            here = inside[None, :] & (first + o < O)[:, None]
            slope = tl.load(dy + place, mask=here, other=0.0)
            which = tl.load(code + place, mask=here, other=4).to(tl.int32)
            spread = tl.where(which[:, None, :] == tl.arange(0, 4)[None, :, None], slope[:, None, :], 0.0)
            weight = tl.load(weights + first * (C * K * K), mask=fits & (first + of < O)[None, :], other=0.0)
            acc = tl.dot(weight, tl.reshape(spread, (4 * BO, BN)), acc, input_precision="tf32")
    top, bottom = tl.split(tl.permute(tl.reshape(acc, (2, 2, SQUARES * PER, BN)), (2, 3, 1, 0)))
    q0, q1 = tl.split(top)
    q2, q3 = tl.split(bottom)
    lane = tl.arange(0, SQUARES * PER)
    column = 2 * (left[None, :] + (lane // PER)[:, None])
    place = ((lane % PER * (H * W))[:, None] + column + (2 * up * W)[None, :]) * B + sample[None, :]
    out += m * (B * C * H * W)
    here = (lane % PER < C)[:, None] & known[None, :] & (column >= 2 * new[None, :])
    beside, below = here & (column + 1 < W), (2 * up + 1 < H)[None, :]
    tl.store(out + place, q0, mask=here)
    tl.store(out + place + B, q1, mask=beside)
    tl.store(out + place + W * B, q2, mask=here & below)
    tl.store(out + place + (W + 1) * B, q3, mask=beside & below)


@launched(do_not_specialize=["each"])
def _weight_gradient(
    x, dy, code, part, total, x_model, each,
    B: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, K: tl.constexpr,
    PER: tl.constexpr, TAKE: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    # Rows: 4 places × PER output channels. Columns: the patches of TAKE channels. Inner: BK samples of a square.
    m, split, take = tl.program_id(2).to(tl.int64), tl.program_id(1), tl.program_id(0)
    S: tl.constexpr = K + 1
    QH: tl.constexpr = (H - K + 1) // 2
    QW: tl.constexpr = (W - K + 1) // 2
    CHUNKS: tl.constexpr = B // BK
    column = tl.arange(0, BN)
    c = take * TAKE + column // (S * S)
    known = (column < TAKE * S * S) & (c < C)
    rows = tl.where(known, ((c * H + column // S % S) * W + column % S) * B, 0)
    channel = tl.arange(0, PER)
    x += m * x_model
    dy += m * (B * O * QH * QW)
    code += m * (B * O * QH * QW)
    acc = tl.zeros((4 * PER, BN), tl.float32)
    sums = tl.zeros((PER,), tl.float32)
    step = split * each
    last = tl.minimum(step + each, QH * QW * CHUNKS)
    here = channel < O
    while step < last:
        square, b = step // CHUNKS, step % CHUNKS * BK + tl.arange(0, BK)
        place = ((channel * (QH * QW) + square) * B)[:, None] + b[None, :]
        slope = tl.load(dy + place, mask=here[:, None], other=0.0)
        which = tl.load(code + place, mask=here[:, None], other=4).to(tl.int32)
        spread = tl.where(which[None, :, :] == tl.arange(0, 4)[:, None, None], slope[None, :, :], 0.0)
        sums += tl.sum(tl.where(which < 4, slope, 0.0), 1)
        patch = tl.load(x + (2 * (square // QW) * W + 2 * (square % QW)) * B + rows[:, None] + b[None, :])
        acc = tl.dot(tl.reshape(spread, (4 * PER, BK)), tl.trans(patch), acc, input_precision="tf32")
        step += 1
    row = tl.arange(0, 4 * PER)
    part += ((m * tl.num_programs(1) + split) * tl.num_programs(0) + take) * (4 * PER * BN)
    tl.store(part + row[:, None] * BN + column[None, :], acc)
    if take == 0:
        tl.store(total + (m * tl.num_programs(1) + split) * PER + channel, sums)


@launched(do_not_specialize=["splits"])
def _fold(
    part, total, by_weight, by_bias, splits, C: tl.constexpr, O: tl.constexpr, K: tl.constexpr, PER: tl.constexpr,
    TAKE: tl.constexpr, BN: tl.constexpr, BLOCK: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    # A weight's gradient is the sum over splits and places; a place's entry lies shifted by that place.
    m = tl.program_id(1).to(tl.int64)
    S: tl.constexpr = K + 1
    SIZE: tl.constexpr = (C + TAKE - 1) // TAKE * 4 * PER * BN
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = e < O * C * K * K
    o, c, i, j = e // (C * K * K), e // (K * K) % C, e // K % K, e % K
    split = tl.arange(0, TOGETHER)
    entry = (c // TAKE) * (4 * PER * BN) + o * BN + c % TAKE * (S * S) + i * S + j
    part += m * splits * SIZE + split[:, None] * SIZE + entry[None, :]
    acc = tl.zeros((TOGETHER, BLOCK), tl.float32)
    channel = tl.arange(0, PER)
    total += m * splits * PER + split[:, None] * PER + channel[None, :]
    sums = tl.zeros((TOGETHER, PER), tl.float32)
    while splits > 0:
        here = (split < splits)[:, None]
        for place in tl.static_range(4):
            shift = place * PER * BN + place // 2 * S + place % 2
            acc += tl.load(part + shift, mask=here & known[None, :], other=0.0)
        sums += tl.load(total, mask=here & (channel < O)[None, :], other=0.0)
        part += TOGETHER * SIZE
        total += TOGETHER * PER
        splits -= TOGETHER
    tl.store(by_weight + m * (O * C * K * K) + e, tl.sum(acc, 0), mask=known)
    tl.store(by_bias + m * O + channel, tl.sum(sums, 0), mask=(channel < O) & (tl.program_id(0) == 0))


class MatrixTile(NamedTuple):
    """Columns and inner entries of one product, the program's warps, and squares side by side in the product's rows."""

    columns: int
    inner: int
    warps: int
    squares: int = 1


# By a place's rows, measured on an H200. Inner entries of an input's gradient are output channels, four places each.
BACKWARD = {4: MatrixTile(128, 8, 4, 2), 8: MatrixTile(128, 8, 4, 2), 16: MatrixTile(128, 8, 4)}
# Of a weight gradient: entries of patches at most, and samples.
WEIGHT = {4: MatrixTile(128, 16, 4), 8: MatrixTile(128, 16, 4), 16: MatrixTile(128, 64, 4)}
SHARE = 640  # samples of squares a program of a weight gradient sums up: fewer, where programs would be too few
PROGRAMS, MOST_SPLITS = 512, 64


def covers(x: torch.Size, w: torch.Size, layer: ConvForm) -> bool:
    """Whether this layer is for matrix units: x [M, B, C, H, W], w [M, O, C, K, K]."""
    batch, channels, height, width = x[1:]
    outputs, kernel = w[1], w[-1]
    few = max(channels, outputs) <= MOST_ROWS and channels * (kernel + 1) ** 2 <= MOST_ENTRIES
    small = max(channels, outputs) * batch * height * width <= MOST
    right = layer.precision == "tf32" and layer.pool and layer.padding == 0 and kernel % 2 == 1
    return right and few and small and batch % SAMPLES == 0 and min(height, width) > kernel


def input_gradient(w: Tensor, dy: Tensor, chosen: Tensor, sides: torch.Size) -> Tensor:
    """The gradient of x, whose sides are given."""
    w, dy, chosen = own(w), strides.apart(dy), strides.apart(chosen)
    models, batch, outputs = dy.shape[:3]
    channels, kernel = w.shape[2], w.shape[-1]
    out = strides.empty(models, batch, channels, *sides, device=dy.device)
    tall, wide = ((side + 1) // 2 for side in sides)
    rows = _rows(channels)
    tile = BACKWARD[rows]
    squares = _fitting(tile.squares, wide)
    columns = batch * tall * triton.cdiv(wide, squares)
    _input_gradient[(triton.cdiv(columns, tile.columns), models)](
        w, dy, chosen, out, w.stride(0), batch, channels, *sides, outputs, kernel, rows, squares, tile.columns,
        tile.inner, strides.row(batch), num_warps=tile.warps, num_stages=1,
    )  # fmt: skip
    return out


def weight_gradient(x: Tensor, dy: Tensor, chosen: Tensor, kernel: int) -> tuple[Tensor, Tensor]:
    """The gradients of w [M, O, C, K, K] and of the bias [M, O]."""
    x, dy, chosen = strides.laid(x), strides.apart(dy), strides.apart(chosen)
    models, batch, channels, height, width = x.shape
    outputs, rows = dy.shape[2], _rows(dy.shape[2])
    tile = WEIGHT[rows]
    take = min(channels, max(1, tile.columns // (kernel + 1) ** 2))
    columns = max(16, int(triton.next_power_of_2(take * (kernel + 1) ** 2)))
    inner = math.gcd(batch, tile.inner)
    takes, steps = triton.cdiv(channels, take), dy[0, 0, 0].numel() * (batch // inner)
    wanted = max(steps * inner // SHARE, min(PROGRAMS // (takes * models), MOST_SPLITS))
    each = triton.cdiv(steps, max(1, min(steps, wanted)))
    splits = triton.cdiv(steps, each)
    part, total = x.new_empty(models, splits, takes, 4 * rows, columns), x.new_empty(models, splits, rows)
    _weight_gradient[(takes, splits, models)](
        x, dy, chosen, part, total, x.stride(0), each, batch, channels, height, width, outputs, kernel, rows, take,
        columns, inner, num_warps=tile.warps, num_stages=1,
    )  # fmt: skip
    by_weight = x.new_empty(models, outputs, channels, kernel, kernel)
    by_bias = x.new_empty(models, outputs)
    _fold[(triton.cdiv(by_weight[0].numel(), 128), models)](
        part, total, by_weight, by_bias, splits, channels, outputs, kernel, rows, take, columns, 128, 8, num_warps=4
    )
    return by_weight, by_bias


def _rows(channels: int) -> int:
    """Rows of a product for one place: a power of two, and with four places at least sixteen."""
    return max(4, int(triton.next_power_of_2(channels)))


def _fitting(squares: int, most: int) -> int:
    """So many squares side by side, or the largest power of two that there is room for."""
    return min(squares, 1 << (most.bit_length() - 1))
