"""Arrays from a numpy ``.npz`` file, read without unpickling anything."""

from __future__ import annotations

import math
import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedssd.data.dataset import Dataset, with_test_split
from fedssd.data.numbers import alike
from fedssd.errors import UserError

Array = np.ndarray[Any, Any]
CHANNELS = (1, 3)
LARGEST = 2**63 - 1


def read(path: Path) -> Dataset:
    """``x_train, y_train, x_test, y_test``, or ``x, y`` of which a fixed fifth is for testing; ``classes`` if named."""
    arrays = arrays_in(path)
    parts = ("train", "test") if "x_train" in arrays else ("",)
    keys = [(f"x_{part}".rstrip("_"), f"y_{part}".rstrip("_")) for part in parts]
    missing = [key for pair in keys for key in pair if key not in arrays]
    if missing:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise UserError(
            f"expected arrays x_train, y_train, x_test, y_test or x, y; got {found} in {path}: add {missing[0]!r}"
        )
    samples = alike([_samples(arrays[x], x, path) for x, _ in keys])
    labels, classes = _labels([(y, arrays[y]) for _, y in keys], arrays.get("classes"), path)
    if len(parts) == 1:
        return with_test_split(path.stem, samples[0], labels[0], classes)
    return Dataset(path.stem, samples[0], labels[0], samples[1], labels[1], classes)


def read_samples(path: Path, classes: tuple[str, ...] | None) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """All of ``x, y`` (or ``x_train, y_train``) with the classes' names: those given, or else the file's own."""
    arrays = arrays_in(path)
    x, y = ("x_train", "y_train") if "x_train" in arrays else ("x", "y")
    for key in (x, y):
        if key not in arrays:
            raise UserError(
                f"expected arrays x, y; got {', '.join(sorted(arrays)) or 'nothing'} in {path}: add {key!r}"
            )
    return labelled(arrays, x, y, path, classes)


def labelled(
    arrays: dict[str, Array], x: str, y: str, path: Path, classes: tuple[str, ...] | None
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """One pair of arrays as samples and class numbers."""
    named = arrays.get("classes") if classes is None else np.array(classes)
    (labels,), names = _labels([(y, arrays[y])], named, path)
    return _samples(arrays[x], x, path), labels, names


def arrays_in(path: Path) -> dict[str, Array]:
    """Every array of the file, once what it would take is known from the heads of its members."""
    if not zipfile.is_zipfile(path):
        raise UserError(f"expected a .npz file, got something else or half of one in {path}: save it again")
    try:
        size = _size(path)
        if size > free_memory() / 2:
            raise UserError(
                f"{path} unpacks to {size / 2**30:,.1f} GiB, and {free_memory() / 2**30:,.1f} GiB of memory are free: "
                "it should take half of that at most; save fewer samples or smaller numbers"
            )
        with np.load(path, allow_pickle=False) as content:
            arrays = {key: content[key] for key in content.files}
        for array in arrays.values():
            if array.dtype.kind == "U":
                array.tolist()  # raises for numbers that are no letters
        return arrays
    except UserError:
        raise
    except Exception as error:  # damaged zip files and object arrays raise nearly anything
        reason = "it holds pickled objects" if "pickle" in str(error) else "it is damaged"
        raise UserError(f"expected a .npz file of plain arrays, got {path}: {reason}; save it again") from error


def _size(path: Path) -> int:
    """Bytes that the arrays will take; ValueError for a member that is none, or whose head says other than its size."""
    size = 0
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            with archive.open(info) as member:
                version = np.lib.format.read_magic(member)
                read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, _, dtype = read[version](member)
                if dtype.hasobject:
                    raise ValueError("pickled objects")
                count = math.prod(shape)
                if min(shape, default=0) < 0 or member.tell() + count * dtype.itemsize != info.file_size:
                    raise ValueError("not the size that its head says")
            pixels = dtype == np.uint8 and len(shape) in (3, 4)  # other whole numbers become int64
            size += count * (dtype.itemsize if pixels else max(8, dtype.itemsize))
    return size


def free_memory() -> int:
    """Bytes of memory that can be had without swapping; all there is, where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _samples(array: Array, key: str, path: Path) -> Tensor:
    """uint8 images become [N, C, H, W], other whole numbers int64, all else float32."""
    if array.dtype.kind not in "buif" or array.ndim < 2:
        raise UserError(
            f"expected numbers, one sample a row, got {array.dtype} {list(array.shape)} in {key!r} of {path}"
        )
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        return torch.from_numpy(np.ascontiguousarray(_channels_first(array, key, path)))
    if array.ndim not in (2, 4):
        shape = list(array.shape)
        raise UserError(
            f"expected features [N, D] or images [N, C, H, W], got {shape} in {key!r} of {path}: reshape it"
        )
    if array.dtype.kind in "iu":
        if array.size and int(array.max()) > LARGEST:
            raise UserError(f"expected whole numbers below 2⁶³, got {array.max()} in {key!r} of {path}: number from 0")
        return torch.from_numpy(np.ascontiguousarray(array.astype(np.int64)))
    with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which the dataset's check reports
        return torch.from_numpy(np.ascontiguousarray(array.astype(np.float32)))


def _channels_first(array: Array, key: str, path: Path) -> Array:
    if array.ndim == 3:
        return array[:, None]
    if array.shape[3] in CHANNELS:
        return array.transpose(0, 3, 1, 2)
    if array.shape[1] in CHANNELS:
        return array
    raise UserError(f"expected images with 1 or 3 channels, got {list(array.shape)} in {key!r} of {path}: reshape them")


def _labels(given: list[tuple[str, Array]], named: Array | None, path: Path) -> tuple[list[Tensor], tuple[str, ...]]:
    """Labels as class numbers, and the classes' names: those given, those in the labels, or the numbers."""
    flat = [(key, array.reshape(-1) if array.ndim == 2 and array.shape[1] == 1 else array) for key, array in given]
    names = tuple(str(name) for name in named.reshape(-1)) if named is not None else None
    if all(array.dtype.kind == "U" for _, array in flat):
        names = names or tuple(sorted({str(label) for _, array in flat for label in array.reshape(-1)}))
        return [_numbered(array, names, key, path) for key, array in flat], names
    numbers = [_whole(array, key, path) for key, array in flat]
    if names is None:
        largest = max((int(labels.max()) for labels in numbers if labels.numel()), default=0)
        if largest >= 100_000:
            raise UserError(f"expected class numbers from 0, got {largest} in {path}: number the classes 0, 1, 2, …")
        names = tuple(str(number) for number in range(largest + 1))
    return numbers, names


def _numbered(array: Array, names: tuple[str, ...], key: str, path: Path) -> Tensor:
    number = {name: position for position, name in enumerate(names)}
    for row, label in enumerate(array.reshape(-1)):
        if str(label) not in number:
            raise UserError(f"expected a label among 'classes', got {str(label)!r} in row {row} of {key!r} of {path}")
    return torch.tensor([number[str(label)] for label in array.reshape(-1)], dtype=torch.int64).reshape(array.shape)


def _whole(array: Array, key: str, path: Path) -> Tensor:
    if array.dtype.kind not in "uif" or not bool(np.all(np.isfinite(array) & (array == np.floor(array)))):
        raise UserError(f"expected whole numbers or text as labels, got {array.dtype} in {key!r} of {path}")
    return torch.from_numpy(array.astype(np.int64))
