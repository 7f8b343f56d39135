"""CIFAR-10 and CIFAR-100 from their official python archives, or from the folders inside them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedssd.data.dataset import Dataset
from fedssd.data.sources.archive import Progress, tar_or_folder
from fedssd.data.sources.unpickle import loads
from fedssd.errors import UserError

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class CifarLayout:
    """What the official archive holds, file by file."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    label_key: bytes
    names_key: bytes
    classes: int
    train_images: int = 50_000
    test_images: int = 10_000


CIFAR10 = CifarLayout(
    name="cifar10",
    folder="cifar-10-batches-py",
    train=("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"),
    test="test_batch",
    meta="batches.meta",
    label_key=b"labels",
    names_key=b"label_names",
    classes=10,
)
CIFAR100 = CifarLayout(
    name="cifar100",
    folder="cifar-100-python",
    train=("train",),
    test="test",
    meta="meta",
    label_key=b"fine_labels",
    names_key=b"fine_label_names",
    classes=100,
)


def read(path: Path, layout: CifarLayout, progress: Progress | None = None) -> Dataset:
    """Read the archive or folder at ``path`` and check that all of it is there."""
    files = tar_or_folder(path, layout.folder, (*layout.train, layout.test, layout.meta), progress)
    x_train, y_train = _images(files, layout.train, layout, layout.train_images, path)
    x_test, y_test = _images(files, (layout.test,), layout, layout.test_images, path)
    classes = _class_names(files[layout.meta], layout, path)
    return Dataset(layout.name, x_train, y_train, x_test, y_test, classes)


def _images(
    files: dict[str, bytes], names: tuple[str, ...], layout: CifarLayout, expected: int, path: Path
) -> tuple[Tensor, Tensor]:
    batches = [_batch(files[name], f"{layout.folder}/{name} of {path}", layout) for name in names]
    images = np.concatenate([rows for rows, _ in batches]).reshape(-1, 3, 32, 32)
    if len(images) != expected:
        raise UserError(
            f"expected {expected} images in {', '.join(names)} of {layout.name}, got {len(images)} in {path}: "
            "get the official archive"
        )
    labels = np.concatenate([labels for _, labels in batches])
    return torch.from_numpy(images), torch.from_numpy(labels)


def _batch(data: bytes, where: str, layout: CifarLayout) -> tuple[Any, Any]:
    """One pickled file as rows of pixels and their labels."""
    content = _dictionary(data, where)
    rows, labels = content.get(b"data"), content.get(layout.label_key)
    if not (isinstance(rows, np.ndarray) and rows.dtype == np.uint8 and rows.ndim == 2 and rows.shape[1] == PIXELS):
        raise UserError(f"expected uint8 rows of {PIXELS} pixels under 'data', got something else in {where}")
    labels = labels if isinstance(labels, list) else []
    whole = all(type(label) is int and 0 <= label < layout.classes for label in labels)
    if not whole or len(labels) != len(rows):
        raise UserError(
            f"expected {len(rows)} labels in 0…{layout.classes - 1} under {layout.label_key.decode()!r}, "
            f"got something else in {where}: get the official archive"
        )
    return rows, np.array(labels, np.int64)


def _class_names(data: bytes, layout: CifarLayout, path: Path) -> tuple[str, ...]:
    where = f"{layout.folder}/{layout.meta} of {path}"
    names = _dictionary(data, where).get(layout.names_key)
    texts = [
        name.decode("utf-8", "replace") if isinstance(name, bytes) else name
        for name in (names if isinstance(names, list) else [])
        if isinstance(name, bytes | str)
    ]
    if len(texts) != layout.classes:
        raise UserError(f"expected {layout.classes} class names, got {len(texts)} in {where}: get the official archive")
    return tuple(texts)


def _dictionary(data: bytes, where: str) -> dict[bytes, Any]:
    """A pickled dictionary with its keys as bytes, as Python 2 wrote them."""
    content = loads(data, where)
    if not isinstance(content, dict):
        raise UserError(f"expected a dictionary, got {type(content).__name__} in {where}: get the official archive")
    return {key.encode() if isinstance(key, str) else key: value for key, value in content.items()}
