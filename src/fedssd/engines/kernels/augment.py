# mypy: disable-error-code="no-untyped-def"
"""Training batches from stored bytes in one launch: look up, crop, flip, scale and normalise."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedssd.core.randomness import below, bits
from fedssd.data.augment import COLUMN, FLIP, ROW, Pipeline, constant

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _gather(
    images, index, shifts, mean, std, out,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, PAD: tl.constexpr, REFLECT: tl.constexpr,
    NORMALISE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    visit = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = place < C * H * W
    channel, row, column = place // (H * W), place // W % H, place % W
    sample = tl.load(index + visit)
    shift = tl.load(shifts + visit)  # 4 · (row · (2 · PAD + 1) + column) + flipped
    column = tl.where(shift % 4 == 1, W - 1 - column, column)
    inside = known
    if PAD > 0:
        row += shift // 4 // (2 * PAD + 1) - PAD
        column += shift // 4 % (2 * PAD + 1) - PAD
        if REFLECT:
            row = H - 1 - tl.abs(H - 1 - tl.abs(row))
            column = W - 1 - tl.abs(W - 1 - tl.abs(column))
        else:
            inside = known & (row >= 0) & (row < H) & (column >= 0) & (column < W)
    byte = tl.load(images + sample * (C * H * W) + channel * (H * W) + row * W + column, mask=inside, other=0)
    value = tl.div_rn(byte.to(tl.float32), 255.0)  # divided as IEEE says, so that every engine has the same bits
    if NORMALISE:
        value = tl.div_rn(
            value - tl.load(mean + channel, mask=known, other=0.0), tl.load(std + channel, mask=known, other=1.0)
        )
    tl.store(out + visit * (C * H * W) + place, value, mask=known)


def covers(pipeline: Pipeline, images: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernel does what this pipeline does."""
    plain = not (pipeline.rotate or pipeline.cutout)
    return plain and images.dtype == torch.uint8 and images.ndim == 4 and dtype == torch.float32


def train(pipeline: Pipeline, images: Tensor, index: Tensor, key: Tensor) -> Tensor:
    """What :meth:`Pipeline.train` gives, to the bit: [..., C, H, W] for an index of [...]."""
    channels, height, width = images.shape[1:]
    index = index.contiguous()
    out = torch.empty(*index.shape, channels, height, width, device=images.device)
    place = key.new_zeros(key.shape)
    if pipeline.pad:
        across = 2 * pipeline.pad + 1
        place = below(across, bits(key, ROW)) * across + below(across, bits(key, COLUMN))
    flipped = bits(key, FLIP) >> 31 if pipeline.flip else key.new_zeros(key.shape)
    shifts = (4 * place + flipped).to(torch.int32).contiguous()
    mean, std = (constant(values or (0.0,), torch.float32, images.device) for values in (pipeline.mean, pipeline.std))
    grid = (index.numel(), triton.cdiv(channels * height * width, BLOCK))
    _gather[grid](
        images, index, shifts, mean, std, out, channels, height, width, pipeline.pad, pipeline.padding == "reflect",
        bool(pipeline.mean), BLOCK,
    )  # fmt: skip
    return out
