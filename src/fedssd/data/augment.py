"""Augmentation as one gather: for each output pixel its source pixel, and masks for what lies outside.

A pipeline holds no generator. It receives one 32-bit word for each visit of a sample and derives its numbers from it,
so every engine and device sees the same crops. Named profiles carry the settings of the published code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from fedssd.core.randomness import below, bits, uniform
from fedssd.data.dataset import Dataset
from fedssd.errors import UserError, perhaps

PROFILES = ("moon", "niid", "fedntd", "moon-zero", "none")
SMALLEST_SIDE = 16  # below this a shifted, flipped image is another class rather than the same one

# Which number of a visit's word each decision uses.
ROW, COLUMN, FLIP, ANGLE, CUT_ROW, CUT_COLUMN = range(6)


@dataclass(frozen=True)
class Augmentation:
    """Crop, flip, rotate, scale, normalise, cut out: in this order, each only if switched on."""

    pad: int = 0
    padding: str = "zero"  # or "reflect"
    flip: bool = False
    rotate: float = 0.0  # ± degrees, nearest neighbour, black outside
    cutout: int = 0  # side of a square set to 0 after normalisation, clipped at the border
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    resize: int | None = None  # applied once to the whole dataset by `resized`

    @property
    def random(self) -> bool:
        """Whether two visits of one sample can differ."""
        return bool(self.pad or self.flip or self.rotate or self.cutout)

    def train(self, images: Tensor, index: Tensor, key: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The samples ``index`` as training sees them on the visits ``key``; [..., C, H, W] for an index of [...].

        Images that are floats are taken as scaled and normalised already; other samples ([N, D]) are only looked up.
        """
        if images.ndim != 4:
            return _numbers(images[index], dtype)
        height, width = images.shape[-2:]
        moved = self.pad or self.flip or self.rotate
        picked = self._gather(images, index, key) if moved else images[index]
        output = self._normalise(picked, dtype)
        return output * self._cutout_mask(key, height, width).to(output.dtype) if self.cutout else output

    def test(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Samples as evaluation sees them: scaled and normalised, nothing random."""
        return self._normalise(images, dtype) if images.ndim >= 4 else _numbers(images, dtype)

    def _gather(self, images: Tensor, index: Tensor, key: Tensor) -> Tensor:
        """Whole images first, then their pixels: five times as fast on the CPU as every pixel from among all images."""
        height, width = images.shape[-2:]
        rows, columns, inside = self._source(key, height, width)  # each broadcasts to [..., H, W]
        place = (rows * width + columns).flatten(-2).unsqueeze(-2)  # [..., 1, H·W]
        whole = images.flatten(-2)[index]  # [..., C, H·W]
        picked = whole.gather(-1, place.expand_as(whole)).view(*whole.shape[:-1], height, width)
        return picked if inside is None else picked * inside.unsqueeze(-3).to(picked.dtype)

    def _source(self, key: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """The source row and column of each output pixel, and which of them lie inside the image.

        Built backwards, from the last operation to the first: rotation, then flip, then crop.
        """
        row = torch.arange(height, device=key.device).view(height, 1)
        column = torch.arange(width, device=key.device).view(1, width)
        key = key[..., None, None]
        inside: Tensor | None = None
        if self.rotate:
            row, column = _rotated(row, column, height, width, self.rotate * (2 * uniform(key, ANGLE) - 1))
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            row, column = row.clamp(0, height - 1), column.clamp(0, width - 1)
        if self.flip:
            column = torch.where(bits(key, FLIP) >> 31 == 1, width - 1 - column, column)
        if self.pad:
            row = row + below(2 * self.pad + 1, bits(key, ROW)) - self.pad
            column = column + below(2 * self.pad + 1, bits(key, COLUMN)) - self.pad
            if self.padding == "reflect":
                row, column = _reflect(row, height), _reflect(column, width)
            else:
                within = (row >= 0) & (row < height) & (column >= 0) & (column < width)
                inside = within if inside is None else inside & within
                row, column = row.clamp(0, height - 1), column.clamp(0, width - 1)
        return row, column, inside

    def _normalise(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        if images.dtype != torch.uint8:
            return _numbers(images, dtype)
        # Divisors are tensors: a Python scalar would become a multiplication on the GPU and cost the last bit.
        scaled = images.to(dtype) / constant((255.0,), dtype, images.device)
        if not self.mean:
            return scaled
        return (scaled - constant(self.mean, dtype, images.device)) / constant(self.std, dtype, images.device)

    def _cutout_mask(self, key: Tensor, height: int, width: int) -> Tensor:
        """False inside the square around a uniformly drawn centre, [..., 1, H, W]."""
        key = key[..., None, None, None]
        half = self.cutout // 2
        row = torch.arange(height, device=key.device).view(height, 1) - below(height, bits(key, CUT_ROW))
        column = torch.arange(width, device=key.device) - below(width, bits(key, CUT_COLUMN))
        return ~((row >= -half) & (row < half) & (column >= -half) & (column < half))


def _numbers(samples: Tensor, dtype: torch.dtype) -> Tensor:
    """Samples in the dtype of the model; int64 stays, as only a model that takes it is given any."""
    return samples if samples.dtype == torch.int64 else samples.to(dtype)


@lru_cache(maxsize=256)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """One number a channel, [C, 1, 1]; kept, as a copy to the GPU for each batch would stall it."""
    return torch.tensor(values, dtype=dtype, device=device).view(-1, 1, 1)


def _reflect(position: Tensor, size: int) -> Tensor:
    """Positions beyond an edge mirrored at the edge pixel, which is not repeated."""
    last = size - 1
    return last - (last - position.abs()).abs()


def _rotated(row: Tensor, column: Tensor, height: int, width: int, degrees: Tensor) -> tuple[Tensor, Tensor]:
    """Where pixels come from when the image turns counter-clockwise about its centre.

    In the 16.16 fixed-point arithmetic of Pillow, so that the pixels are Pillow's and do not hang on the last bit of a
    device's sine.
    """
    angle = -degrees * (math.pi / 180)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    x, y = (1 - width) / 2, (1 - height) / 2  # the first pixel's centre, seen from the image's centre
    first_column = _fixed(cosine * x + sine * y + width / 2)
    first_row = _fixed(cosine * y - sine * x + height / 2)
    cosine, sine = _fixed(cosine), _fixed(sine)
    source_column = (first_column + column * cosine + row * sine) >> 16
    source_row = (first_row - column * sine + row * cosine) >> 16
    return source_row, source_column


def _fixed(value: Tensor) -> Tensor:
    return torch.floor(value * 65536 + 0.5).to(torch.int64)


Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel

_CIFAR10: Statistics = ((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255))
_CIFAR10_EXACT: Statistics = ((0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768))
_CIFAR100: Statistics = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
_HALF: Statistics = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

_MIRRORED = Augmentation(pad=4, padding="reflect", flip=True)
_TURNED = Augmentation(pad=4, flip=True, rotate=15.0)
_CUT = Augmentation(pad=4, flip=True, cutout=16)


def _with(base: Augmentation, statistics: Statistics) -> Augmentation:
    return replace(base, mean=statistics[0], std=statistics[1])


TABLE: dict[tuple[str, str], Augmentation] = {
    ("moon", "cifar10"): _with(_MIRRORED, _CIFAR10),
    ("niid", "cifar10"): _MIRRORED,
    ("fedntd", "cifar10"): _with(_CUT, _CIFAR10_EXACT),
    ("moon", "cifar100"): _with(_TURNED, _CIFAR100),
    ("niid", "cifar100"): _with(_TURNED, _CIFAR100),
    ("fedntd", "cifar100"): _with(_CUT, _CIFAR100),
    ("moon", "tiny-imagenet"): _with(Augmentation(), _HALF),
    ("niid", "tiny-imagenet"): _with(replace(_TURNED, resize=32), _HALF),
    ("fedntd", "tiny-imagenet"): _with(replace(_MIRRORED, pad=8), _IMAGENET),
}


def pipeline(profile: str, dataset_name: str, shape: tuple[int, ...]) -> Augmentation:
    """The pipeline of a named profile for a dataset whose samples have ``shape``.

    ``none`` scales uint8 images to [0, 1] and does nothing else. The other profiles are those of the published code
    for the paper's three datasets; other images get that code's CIFAR-10 settings with pads and squares scaled to
    their size, and 0.5 / 0.5 in place of CIFAR-10's statistics. ``moon-zero`` is ``moon`` with black padding.
    """
    if profile not in PROFILES:
        known = ", ".join(PROFILES)
        raise UserError(f"unknown augmentation {profile!r}: expected one of {known}{perhaps(profile, PROFILES)}")
    if profile == "none":
        return Augmentation()
    if profile == "moon-zero":
        return replace(pipeline("moon", dataset_name, shape), padding="zero")
    if (profile, dataset_name) in TABLE:
        return TABLE[profile, dataset_name]
    if len(shape) != 3 or min(shape[1:]) < SMALLEST_SIDE:
        raise UserError(
            f"expected images of at least {SMALLEST_SIDE}×{SMALLEST_SIDE} for augmentation {profile!r}, got samples of "
            f"shape {list(shape)} in {dataset_name!r}: use 'none', the only profile that applies"
        )
    return _generic(profile, shape)


def _generic(profile: str, shape: tuple[int, ...]) -> Augmentation:
    channels, side = shape[0], min(shape[1:])
    half = (0.5,) * channels
    plain = Augmentation(pad=side // 8, padding="reflect", flip=True)
    if profile == "niid":
        return plain
    if profile == "moon":
        return replace(plain, mean=half, std=half)
    return replace(plain, padding="zero", cutout=side // 2, mean=half, std=half)


def resized(dataset: Dataset, size: int) -> Dataset:
    """The dataset with its uint8 images scaled to ``size`` × ``size`` (bilinear, antialiased, rounded)."""
    if dataset.x_train.dtype != torch.uint8 or dataset.x_train.ndim != 4:
        shape = list(dataset.shape)
        raise UserError(f"expected uint8 images to resize to {size}, got samples of shape {shape} in {dataset.name!r}")
    if dataset.shape[1:] == (size, size):
        return dataset
    return replace(dataset, x_train=resize(dataset.x_train, size), x_test=resize(dataset.x_test, size))


def resize(images: Tensor, size: int) -> Tensor:
    """uint8 images scaled to ``size`` × ``size``, a few thousand at a time."""
    parts = []
    for chunk in torch.split(images, 4096):  # a whole dataset in floats would not fit into memory
        scaled = functional.interpolate(chunk.float(), (size, size), mode="bilinear", antialias=True)
        parts.append(scaled.round().clamp(0, 255).to(torch.uint8))
    return torch.cat(parts)
