# mypy: disable-error-code="no-untyped-def"
"""Small linear layers of many models, with bias and ReLU in the same pass, as batched matrix products in Triton."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedssd.engines.kernels import strides
from fedssd.engines.kernels.launching import launched


class LinearTile(NamedTuple):
    """Rows, columns and inner entries of one program, and its warps."""

    rows: int
    columns: int
    inner: int
    warps: int


# Measured on an H200 with the layers of the paper's CNN, one to a hundred models.
FORWARD, INPUT, WEIGHT = LinearTile(32, 32, 128, 4), LinearTile(64, 32, 128, 4), LinearTile(64, 32, 64, 4)
# In full float32 the deeper one wants more shared memory than smaller cards have
EXACT_INPUT = LinearTile(64, 32, 64, 4)


@launched()
def _product(
    a, b, gate, bias, out, total, a_model, a_row, a_inner, b_model, b_inner, b_column, gate_model, bias_model, out_row,
    out_column, rows, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr, RELU: tl.constexpr, TOTAL: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
    BI: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # out = relu(a · b + bias); a's entries count only where the gate, which lies as a does, is above zero. With TOTAL
    # the sums of a's rows are written too: of a turned slope they are the bias's gradient.
    # Rows that are samples are counted by a number that is passed, or every size of a batch would be compiled anew.
    count = ROWS if ROWS > 0 else rows
    m = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    column = tl.program_id(1) * BC + tl.arange(0, BC)
    a += m * a_model
    b += m * b_model
    gate += m * gate_model
    acc = tl.zeros((BR, BC), dtype=tl.float32)
    sums = tl.zeros((BR,), dtype=tl.float32)
    for start in range(0, INNER, BI):
        inner = start + tl.arange(0, BI)
        known = (row < count)[:, None] & (inner < INNER)[None, :]
        place = row[:, None] * a_row + inner[None, :] * a_inner
        left = tl.load(a + place, mask=known, other=0.0)
        if GATED:
            left = tl.where(tl.load(gate + place, mask=known, other=0.0) > 0, left, 0.0)
        right = tl.load(
            b + inner[:, None] * b_inner + column[None, :] * b_column,
            mask=(inner < INNER)[:, None] & (column < COLUMNS)[None, :],
            other=0.0,
        )
        acc += tl.dot(left, right, input_precision=PRECISION)
        if TOTAL:
            sums += tl.sum(left, 1)
    if HAS_BIAS:
        acc += tl.load(bias + m * bias_model + column, mask=column < COLUMNS, other=0.0)[None, :]
    if RELU:
        acc = tl.maximum(acc, 0.0, propagate_nan=tl.PropagateNan.ALL)
    place = m * count * COLUMNS + row[:, None] * out_row + column[None, :] * out_column
    tl.store(out + place, acc, mask=(row < count)[:, None] & (column < COLUMNS)[None, :])
    if TOTAL:
        tl.store(total + m * count + row, sums, mask=(row < count) & (tl.program_id(1) == 0))


def forward(
    x: Tensor, w: Tensor, bias: Tensor | None, relu: bool, precision: str, tile: LinearTile = FORWARD
) -> Tensor:
    """x [M, B, I] (models may share it: stride 0), w [M, O, I], bias [M, O] -> [M, B, O]."""
    out = x.new_empty(*x.shape[:2], w.shape[1])
    _launch(x, w.transpose(1, 2), None, bias, out, None, relu, precision, tile)
    return out


def input_gradient(
    x: Tensor, w: Tensor, dy: Tensor, out: Tensor | None, precision: str, tile: LinearTile | None = None
) -> Tensor:
    """The gradient of x, lying in memory as x does; ``out`` is the layer's output where ReLU follows."""
    tile = tile or (INPUT if precision == "tf32" else EXACT_INPUT)
    aside = strides.lies_so(x)
    found = strides.empty(*x.shape, device=x.device) if aside else dy.new_empty(*x.shape)
    _launch(dy, w, out, None, found, None, False, precision, tile)
    return found


def weight_gradient(
    x: Tensor, dy: Tensor, out: Tensor | None, precision: str, tile: LinearTile = WEIGHT
) -> tuple[Tensor, Tensor]:
    """The gradients of w [M, O, I] and of the bias [M, O]."""
    found = dy.new_empty(dy.shape[0], dy.shape[2], x.shape[2])
    total = dy.new_empty(dy.shape[0], dy.shape[2])
    turned = None if out is None else out.transpose(1, 2)
    _launch(dy.transpose(1, 2), x, turned, None, found, total, False, precision, tile)
    return found, total


def _launch(
    a: Tensor, b: Tensor, gate: Tensor | None, bias: Tensor | None, out: Tensor, total: Tensor | None, relu: bool,
    precision: str, tile: LinearTile,
) -> None:  # fmt: skip
    models, rows, columns = out.shape
    inner = a.shape[2]
    if gate is not None and gate.stride()[1:] != a.stride()[1:]:
        a, gate = _alike(a, gate)
    if bias is not None and bias.stride(1) != 1:
        bias = bias.contiguous()
    size = min(tile.rows, max(16, int(triton.next_power_of_2(rows))))
    across = min(tile.columns, max(16, int(triton.next_power_of_2(columns))))
    depth = min(tile.inner, max(16, int(triton.next_power_of_2(inner))))
    grid = (triton.cdiv(rows, size), triton.cdiv(columns, across), models)
    _product[grid](
        a, b, a if gate is None else gate, a if bias is None else bias, out, out if total is None else total,
        *a.stride(), *b.stride(), a.stride(0) if gate is None else gate.stride(0),
        0 if bias is None else bias.stride(0), *out.stride()[1:], rows, 0 if total is None else rows, columns, inner,
        gate is not None, bias is not None, relu, total is not None, size, across, depth, precision,
        num_warps=tile.warps, num_stages=2,
    )  # fmt: skip


def _alike(a: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """Both laid out alike, so that one place serves for both."""
    return torch.empty_like(gate).copy_(a), gate
