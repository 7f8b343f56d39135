# mypy: disable-error-code="no-untyped-def, assignment, index"
# ruff: noqa: E741, RUF005, SIM108
"""Small convolutions of many models, each with its own weights, with ReLU and 2 × 2 max-pool in the same pass.

Libraries run such a batch as a grouped convolution, which with three to sixteen channels a group is far below what the
arithmetic allows; matrix units want sixteen channels and patches laid out for them. Here a thread owns squares of 2 × 2
output pixels: it keeps their sums for several output channels in registers, loads the (K + 1)² inputs they share once
for each input channel, and multiplies and adds in float32. The pool is then a comparison of four registers, and what it
chose is a byte a square (4 where ReLU let nothing through), so backwards no full-size gradient is ever written.

Backwards, with a pool and in TF32, ``matrix_convolution`` is faster.

In memory a batch's samples lie side by side: [C, H, W, B] for each model, behind a tensor that says [B, C, H, W]. So
the threads of a warp, which have the same square of neighbouring samples, read neighbouring numbers, whatever the
sides; with an image's rows side by side they would read every second number of several rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedssd.engines.kernels import matrix_convolution, strides
from fedssd.engines.kernels.launching import launched
from fedssd.engines.kernels.layer import MOST, ConvForm, larger, own

PLAIN, POOLED, GATED = 0, 1, 2  # a slope is stored as it is, pooled with a code, or beside what ReLU let through
SUMS = 100  # most entries of a weight gradient a thread sums up at once


@launched()
def _forward(
    x, code, w, bias, out, chosen, x_model, w_model, bias_model,
    B: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, K: tl.constexpr,
    PAD: tl.constexpr, STORED: tl.constexpr, TURNED: tl.constexpr, HAS_BIAS: tl.constexpr, RELU: tl.constexpr,
    POOL: tl.constexpr, ROW: tl.constexpr, OB: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    # Programs go through the squares of ROW samples before those of the next ROW: what squares share is then at hand.
    # H and W are those of the input in full; where it is stored pooled, its tensors have H // 2 and W // 2.
    m = tl.program_id(2).to(tl.int64)
    first = tl.program_id(1) * OB
    OH: tl.constexpr = H + 2 * PAD - K + 1
    OW: tl.constexpr = W + 2 * PAD - K + 1
    QH: tl.constexpr = OH // 2 if POOL else (OH + 1) // 2  # squares
    QW: tl.constexpr = OW // 2 if POOL else (OW + 1) // 2
    SH: tl.constexpr = H // 2 if STORED == 1 else H
    SW: tl.constexpr = W // 2 if STORED == 1 else W
    EXACT: tl.constexpr = STORED == 0 and PAD == 0 and (POOL or (OH % 2 == 0 and OW % 2 == 0))
    LOW: tl.constexpr = -((PAD + 1) // 2)  # the first stored square a patch touches, from its own
    SPAN: tl.constexpr = (K - PAD) // 2 - LOW + 1
    BLOCKS: tl.constexpr = (ROW * QH * QW + BP - 1) // BP
    p = tl.program_id(0) % BLOCKS * BP + tl.arange(0, BP)
    b, square = tl.program_id(0) // BLOCKS * ROW + p % ROW, p // ROW
    valid = square < QH * QW
    square = tl.where(valid, square, 0)
    up, left = square // QW, square % QW
    x += m * x_model
    w += m * w_model
    if STORED != 0:
        code += m * (B * C * SH * SW)
    corner = b + (up * SW + left) * B if STORED == 1 else b + (2 * up * W + 2 * left) * B
    x += corner
    code += corner
    acc = (tl.zeros((BP,), tl.float32),) * (4 * OB)
    for c in range(C):
        patch = ()
        if STORED == 1:
            values = ()
            places = ()
            for i in tl.static_range(SPAN * SPAN):
                y, z = up + (LOW + i // SPAN), left + (LOW + i % SPAN)
                inside = (y >= 0) & (y < SH) & (z >= 0) & (z < SW)
                step = ((LOW + i // SPAN) * SW + LOW + i % SPAN) * B
                values = values + (tl.load(x + step, mask=inside, other=0.0),)
                places = places + (tl.load(code + step, mask=inside, other=4),)
            for i in tl.static_range((K + 1) * (K + 1)):
                patch = patch + (
                    tl.where(
                        places[((i // (K + 1) - PAD) // 2 - LOW) * SPAN + (i % (K + 1) - PAD) // 2 - LOW]
                        == (i // (K + 1) - PAD) % 2 * 2 + (i % (K + 1) - PAD) % 2,
                        values[((i // (K + 1) - PAD) // 2 - LOW) * SPAN + (i % (K + 1) - PAD) // 2 - LOW],
                        0.0,
                    ),
                )
        else:
            for i in tl.static_range((K + 1) * (K + 1)):
                step = ((i // (K + 1) - PAD) * W + i % (K + 1) - PAD) * B
                if EXACT:
                    value = tl.load(x + step)
                else:
                    y, z = 2 * up + (i // (K + 1) - PAD), 2 * left + (i % (K + 1) - PAD)
                    inside = (y >= 0) & (y < H) & (z >= 0) & (z < W)
                    value = tl.load(x + step, mask=inside, other=0.0)
                    if STORED == 2:
                        value = tl.where(tl.load(code + step, mask=inside, other=0.0) > 0, value, 0.0)
                patch = patch + (value,)
        for k in tl.static_range(K * K):
            new = ()
            for o in tl.static_range(OB):
                n = first + o
                entry = (c * O + n) * (K * K) + (K * K - 1 - k) if TURNED else (n * C + c) * (K * K) + k
                if O % OB == 0:
                    weight = tl.load(w + entry)
                else:
                    weight = tl.load(w + entry, mask=n < O, other=0.0)
                new = new + (
                    acc[4 * o] + weight * patch[k // K * (K + 1) + k % K],
                    acc[4 * o + 1] + weight * patch[k // K * (K + 1) + k % K + 1],
                    acc[4 * o + 2] + weight * patch[(k // K + 1) * (K + 1) + k % K],
                    acc[4 * o + 3] + weight * patch[(k // K + 1) * (K + 1) + k % K + 1],
                )
            acc = new
        x += SH * SW * B
        code += SH * SW * B
    for o in tl.static_range(OB):
        n = first + o
        here = valid & (n < O)
        shift = tl.load(bias + m * bias_model + n, mask=n < O, other=0.0) if HAS_BIAS else 0.0
        q0, q1, q2, q3 = acc[4 * o] + shift, acc[4 * o + 1] + shift, acc[4 * o + 2] + shift, acc[4 * o + 3] + shift
        if POOL:
            best = larger(larger(q0, q1), larger(q2, q3))
            which = tl.where(q0 == best, 0, tl.where(q1 == best, 1, tl.where(q2 == best, 2, 3)))
            if RELU:
                which = tl.where(best > 0, which, 4)
                best = larger(best, 0.0)
            place = m * (B * O * QH * QW) + (n * (QH * QW) + square) * B + b
            tl.store(out + place, best, mask=here)
            tl.store(chosen + place, which.to(tl.int8), mask=here)
        else:
            if RELU:
                q0, q1, q2, q3 = larger(q0, 0.0), larger(q1, 0.0), larger(q2, 0.0), larger(q3, 0.0)
            right, below = 2 * left + 1 < OW, 2 * up + 1 < OH
            place = m * (B * O * OH * OW) + (n * (OH * OW) + 2 * up * OW + 2 * left) * B + b
            tl.store(out + place, q0, mask=here)
            tl.store(out + place + B, q1, mask=here & right)
            tl.store(out + place + OW * B, q2, mask=here & below)
            tl.store(out + place + (OW + 1) * B, q3, mask=here & right & below)


@launched(do_not_specialize=["tiles"])
def _weight_gradient(
    x, dy, code, part, x_model, tiles,
    B: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, K: tl.constexpr,
    PAD: tl.constexpr, STORED: tl.constexpr, OB: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    m, split = tl.program_id(2).to(tl.int64), tl.program_id(1)
    c, first = tl.program_id(0) % C, tl.program_id(0) // C * OB
    OH: tl.constexpr = H + 2 * PAD - K + 1
    OW: tl.constexpr = W + 2 * PAD - K + 1
    QH: tl.constexpr = OH // 2 if STORED == 1 else (OH + 1) // 2
    QW: tl.constexpr = OW // 2 if STORED == 1 else (OW + 1) // 2
    SIZE: tl.constexpr = QH * QW if STORED == 1 else OH * OW
    EXACT: tl.constexpr = PAD == 0 and (STORED == 1 or (OH % 2 == 0 and OW % 2 == 0))
    ROW: tl.constexpr = C * K * K
    x += m * x_model + c * (H * W * B)
    dy += m * (B * O * SIZE)
    if STORED != 0:
        code += m * (B * O * SIZE)
    acc = (tl.zeros((BP,), tl.float32),) * (OB * K * K)
    total = (tl.zeros((BP,), tl.float32),) * OB
    tile = split * tiles
    while tile < (split + 1) * tiles:
        p = tile * BP + tl.arange(0, BP)
        b, square = p % B, p // B
        valid = square < QH * QW
        square = tl.where(valid, square, 0)
        up, left = square // QW, square % QW
        corner = x + b + (2 * up * W + 2 * left) * B
        patch = ()
        for i in tl.static_range((K + 1) * (K + 1)):
            step = ((i // (K + 1) - PAD) * W + i % (K + 1) - PAD) * B
            if EXACT:
                patch = patch + (tl.load(corner + step),)
            else:
                y, z = 2 * up + (i // (K + 1) - PAD), 2 * left + (i % (K + 1) - PAD)
                inside = (y >= 0) & (y < H) & (z >= 0) & (z < W)
                patch = patch + (tl.load(corner + step, mask=inside, other=0.0),)
        new = ()
        sums = ()
        for o in tl.static_range(OB):
            plane = b + (first + o) * (SIZE * B)
            here = valid & (first + o < O)
            if STORED == 1:
                slope = tl.load(dy + plane + square * B, mask=here, other=0.0)
                which = tl.load(code + plane + square * B, mask=here, other=4)
                slope = tl.where(which < 4, slope, 0.0)
                d0, d1 = tl.where(which == 0, slope, 0.0), tl.where(which == 1, slope, 0.0)
                d2, d3 = tl.where(which == 2, slope, 0.0), tl.where(which == 3, slope, 0.0)
                sums = sums + (total[o] + slope,)
            else:
                right, below = here & (2 * left + 1 < OW), here & (2 * up + 1 < OH)
                place = plane + (2 * up * OW + 2 * left) * B
                d0 = tl.load(dy + place, mask=here, other=0.0)
                d1 = tl.load(dy + place + B, mask=right, other=0.0)
                d2 = tl.load(dy + place + OW * B, mask=below, other=0.0)
                d3 = tl.load(dy + place + (OW + 1) * B, mask=right & below, other=0.0)
                if STORED == 2:
                    d0 = tl.where(tl.load(code + place, mask=here, other=0.0) > 0, d0, 0.0)
                    d1 = tl.where(tl.load(code + place + B, mask=right, other=0.0) > 0, d1, 0.0)
                    d2 = tl.where(tl.load(code + place + OW * B, mask=below, other=0.0) > 0, d2, 0.0)
                    d3 = tl.where(tl.load(code + place + (OW + 1) * B, mask=right & below, other=0.0) > 0, d3, 0.0)
                sums = sums + (total[o] + ((d0 + d1) + (d2 + d3)),)
            for k in tl.static_range(K * K):
                new = new + (
                    acc[o * K * K + k]
                    + d0 * patch[k // K * (K + 1) + k % K]
                    + d1 * patch[k // K * (K + 1) + k % K + 1]
                    + d2 * patch[(k // K + 1) * (K + 1) + k % K]
                    + d3 * patch[(k // K + 1) * (K + 1) + k % K + 1],
                )
        acc = new
        total = sums
        tile += 1
    part += (m * tl.num_programs(1) + split) * (O * ROW + O)  # all weights, then all biases
    for o in tl.static_range(OB):
        n = first + o
        for k in tl.static_range(K * K):
            tl.store(part + n * ROW + c * (K * K) + k, tl.sum(acc[o * K * K + k], 0), mask=n < O)
        tl.store(part + O * ROW + n, tl.sum(total[o], 0), mask=(n < O) & (c == 0))


class ConvolutionTile(NamedTuple):
    """How a kernel cuts its work: squares and output channels of one program, its warps, and how many of these there
    must be in all for the tile to pay."""

    squares: int
    channels: int
    warps: int
    pays: int = 0


# Measured on an H200, the most work a thread first; with few models there is too little of it, and it is spread out.
FORWARD = (ConvolutionTile(256, 4, 2, pays=1500), ConvolutionTile(32, 2, 1))
BACKWARD = (ConvolutionTile(64, 4, 2, pays=4000), ConvolutionTile(64, 2, 2, pays=1500), ConvolutionTile(32, 2, 1))
WEIGHT = 32  # squares of a program of one warp
PROGRAMS = (2048, 8192)  # of a weight gradient: enough for one wave, and to even out several


def forward(x: Tensor, w: Tensor, bias: Tensor | None, layer: ConvForm) -> tuple[Tensor, Tensor]:
    """x [M, B, C, H, W] (models may share it: stride 0), w [M, O, C, K, K], bias [M, O] -> [M, B, O, …], and what the
    pool chose; without a pool the output again, which says where ReLU let something through."""
    x = strides.laid(x)
    outputs, kernel = w.shape[1], w.shape[-1]
    if x.shape[1] > 1 and max(x.shape[2], outputs) * x[0, :, 0].numel() > MOST:
        halves = [forward(part, w, bias, layer) for part in x.chunk(2, dim=1)]
        return torch.cat([half[0] for half in halves], 1), torch.cat([half[1] for half in halves], 1)
    height, width = (side + 2 * layer.padding - kernel + 1 for side in x.shape[-2:])
    if layer.pool:
        height, width = height // 2, width // 2
    out = strides.empty(*x.shape[:2], outputs, height, width, device=x.device)
    chosen = torch.empty_like(out, dtype=torch.int8) if layer.pool else out
    _launch(x, x, w, bias, out, chosen, layer, PLAIN, False, x.shape[-2:], outputs, FORWARD)
    return out, chosen


def input_gradient(w: Tensor, dy: Tensor, chosen: Tensor, layer: ConvForm, sides: torch.Size) -> Tensor:
    """The gradient of x, whose sides are given: the slopes convolved with the weights turned round."""
    kernel, channels = w.shape[-1], w.shape[2]
    if matrix_convolution.covers(torch.Size((*dy.shape[:2], channels, *sides)), w.shape, layer):
        return matrix_convolution.input_gradient(w, dy, chosen, sides)
    full = torch.Size(side + 2 * layer.padding - kernel + 1 for side in sides)
    out = strides.empty(*dy.shape[:2], channels, *sides, device=dy.device)
    dy, chosen = strides.apart(dy), strides.apart(chosen)
    back = ConvForm(kernel - 1 - layer.padding)
    _launch(dy, chosen, w, None, out, out, back, _stored(layer), True, full, channels, BACKWARD)
    return out


def weight_gradient(x: Tensor, dy: Tensor, chosen: Tensor, kernel: int, layer: ConvForm) -> tuple[Tensor, Tensor]:
    """The gradients of w [M, O, C, K, K] and of the bias [M, O]."""
    if matrix_convolution.covers(x.shape, torch.Size((*dy.shape[:1], dy.shape[2], x.shape[2], kernel, kernel)), layer):
        return matrix_convolution.weight_gradient(x, dy, chosen, kernel)
    x, dy, chosen = strides.laid(x), strides.apart(dy), strides.apart(chosen)
    models, batch, channels, height, width = x.shape
    outputs, inner = dy.shape[2], channels * kernel * kernel
    group = _group(outputs, min(8, max(1, SUMS // kernel**2)))
    squares = dy[0, :, 0].numel() if layer.pool else batch * ((dy.shape[-2] + 1) // 2) * ((dy.shape[-1] + 1) // 2)
    tiles, slices = triton.cdiv(squares, WEIGHT), channels * triton.cdiv(outputs, group) * models
    each = triton.cdiv(tiles, max(1, min(tiles, PROGRAMS[8 * slices > PROGRAMS[0]] // slices)))
    grid = (slices // models, triton.cdiv(tiles, each), models)
    part = x.new_empty(models, grid[1], outputs * (inner + 1))
    _weight_gradient[grid](
        x, dy, chosen, part, x.stride(0), each, batch, channels, height, width, outputs, kernel, layer.padding,
        _stored(layer), group, WEIGHT, num_warps=1, num_stages=1,
    )  # fmt: skip
    total = part.sum(1) if grid[1] > 1 else part[:, 0]
    by_weight, by_bias = total[:, : outputs * inner], total[:, outputs * inner :]
    return by_weight.view(models, outputs, channels, kernel, kernel), by_bias


def _launch(
    x: Tensor, code: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, chosen: Tensor, layer: ConvForm, stored: int,
    turned: bool, sides: torch.Size, outputs: int, tiles: tuple[ConvolutionTile, ...],
) -> None:  # fmt: skip
    models, batch, channels = x.shape[:3]
    row = strides.row(batch)
    height, width = (side if layer.pool else (side + 1) // 2 for side in out.shape[-2:])
    for tile in tiles:
        group = _group(outputs, tile.channels)
        blocks = batch // row * triton.cdiv(row * height * width, tile.squares)
        grid = (blocks, triton.cdiv(outputs, group), models)
        if grid[0] * grid[1] * grid[2] * tile.warps >= tile.pays:
            break
    w, given = own(w), own(w if bias is None else bias)
    _forward[grid](
        x, code, w, given, out, chosen, x.stride(0), w.stride(0), given.stride(0), batch, channels, *sides, outputs,
        w.shape[-1], layer.padding, stored, turned, bias is not None, layer.relu, layer.pool, row, group,
        tile.squares, num_warps=tile.warps, num_stages=1,
    )  # fmt: skip


def _stored(layer: ConvForm) -> int:
    return POOLED if layer.pool else GATED if layer.relu else PLAIN


def _group(channels: int, most: int) -> int:
    """Channels a program takes: as even as they go."""
    return int(triton.cdiv(channels, triton.cdiv(channels, most)))
