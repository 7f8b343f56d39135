# mypy: disable-error-code="no-untyped-def"
"""Training batches from stored bytes in one launch: look up, crop, flip, scale and normalise."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedssd.core.randomness import below, bits
from fedssd.data.augment import COLUMN, FLIP, ROW, Augmentation
from fedssd.engines.kernels import strides
from fedssd.engines.kernels.launching import launched

BLOCK = 1024  # pixels of one program


@launched(rehearsed=False)
def _gather(
    images, index, shifts, values, out, place_of_step, y, mask, y_now, mask_now, batch, per_step, out_batch,
    out_sample, out_pixel, STEPPED: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    PAD: tl.constexpr, REFLECT: tl.constexpr, BS: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    # A program makes one row of every channel, for several samples of a batch. With STEPPED, of many steps' visits only
    # those of one step, whose number the device knows; their labels and their part in the batch come along.
    group = tl.program_id(0).to(tl.int64)
    line = tl.program_id(1)
    place = tl.program_id(2) * BS + tl.arange(0, BS)
    given = place < batch
    visit = group * batch + place
    out += group * out_batch
    if STEPPED:
        now = visit
        visit += tl.load(place_of_step) * per_step
        if line == 0:
            tl.store(y_now + now, tl.load(y + visit, mask=given), mask=given)
            tl.store(mask_now + now, tl.load(mask + visit, mask=given), mask=given)
    sample = tl.load(index + visit, mask=given, other=0)[None, :]
    shift = tl.load(shifts + visit, mask=given, other=0)[None, :]  # 4 · (row · (2 · PAD + 1) + column) + flipped
    at = tl.arange(0, BW)[:, None]
    known = given[None, :] & (at < W)
    column = tl.where(shift % 4 == 1, W - 1 - at, at)
    row = line
    inside = known
    if PAD > 0:
        row += shift // 4 // (2 * PAD + 1) - PAD
        column += shift // 4 % (2 * PAD + 1) - PAD
        if REFLECT:
            row = H - 1 - tl.abs(H - 1 - tl.abs(row))
            column = W - 1 - tl.abs(W - 1 - tl.abs(column))
        else:
            inside = known & (row >= 0) & (row < H) & (column >= 0) & (column < W)
    images += sample * (C * H * W) + row * W + column
    out += place[None, :].to(tl.int64) * out_sample + (line * W + at) * out_pixel
    for channel in range(C):
        byte = tl.load(images + channel * (H * W), mask=inside, other=0)
        value = tl.load(values + channel * 256 + byte)
        tl.store(out + channel * (H * W) * out_pixel, value, mask=known)


def covers(pipeline: Augmentation, images: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernel does what this pipeline does."""
    plain = not (pipeline.rotate or pipeline.cutout)
    stored = images.dtype == torch.uint8 and images.ndim == 4 and images.is_contiguous()
    return plain and stored and dtype == torch.float32


class Visits(NamedTuple):
    """Which stored sample is visited when, and how it is cropped and flipped: [S, M, B]."""

    sample: Tensor
    shifts: Tensor  # 4 · (row · (2 · pad + 1) + column) + flipped


def visits(pipeline: Augmentation, index: Tensor, key: Tensor) -> Visits:
    """The crops and flips that the pipeline draws from the keys."""
    place = key.new_zeros(key.shape)
    if pipeline.pad:
        across = 2 * pipeline.pad + 1
        place = below(across, bits(key, ROW)) * across + below(across, bits(key, COLUMN))
    flipped = bits(key, FLIP) >> 31 if pipeline.flip else key.new_zeros(key.shape)
    return Visits(index.contiguous(), (4 * place + flipped).to(torch.int32).contiguous())


def train(pipeline: Augmentation, images: Tensor, index: Tensor, key: Tensor) -> Tensor:
    """What :meth:`Augmentation.train` gives, to the bit: [..., C, H, W] for an index of [...]."""
    made = visits(pipeline, index, key)
    out = torch.empty(*index.shape, *images.shape[1:], device=images.device)
    some = made.sample  # stands in for what is not read
    _launch(pipeline, images, made, out.view(1, -1, *images.shape[1:]), False, some, some, some, some, some, 0)
    return out


def at_step(
    pipeline: Augmentation, images: Tensor, made: Visits, y: Tensor, mask: Tensor, step: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The batches of the step whose number the device knows, for the first ``width`` models: x, y and mask.

    Visits, labels and mask are [S, M, B] without gaps. The samples of x lie side by side, as convolutions want them.
    """
    models, batch = y.shape[1:]
    x = strides.empty(width, batch, *images.shape[1:], device=images.device)
    y_now, mask_now = y.new_empty(width, batch), mask.new_empty(width, batch)
    _launch(pipeline, images, made, x, True, step, y, mask, y_now, mask_now, models * batch)
    return x, y_now, mask_now


def _launch(
    pipeline: Augmentation, images: Tensor, made: Visits, out: Tensor, stepped: bool, step: Tensor, y: Tensor,
    mask: Tensor, y_now: Tensor, mask_now: Tensor, per_step: int,
) -> None:  # fmt: skip
    channels, height, width = images.shape[1:]
    groups, batch = out.shape[:2]
    across = int(triton.next_power_of_2(width))
    samples = min(int(triton.next_power_of_2(batch)), max(1, BLOCK // across))
    _gather[(groups, height, triton.cdiv(batch, samples))](
        images, made.sample, made.shifts, _values(pipeline, channels, images.device), out, step, y, mask, y_now,
        mask_now, batch, per_step, out.stride(0), out.stride(1), out.stride(-1), stepped, channels, height, width,
        pipeline.pad, pipeline.padding == "reflect", samples, across,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _values(pipeline: Augmentation, channels: int, device: torch.device) -> Tensor:
    """What the pipeline makes of every byte, [C, 256]: looked up, it costs no division, and has the same bits."""
    every = torch.arange(256, dtype=torch.uint8, device=device).view(256, 1, 1, 1)
    return pipeline.test(every.expand(256, channels, 1, 1))[..., 0, 0].t().contiguous()
