"""A folder of images with one folder for each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedssd.data.dataset import Dataset, with_test_split
from fedssd.data.sources.archive import LARGEST_MEMBER
from fedssd.data.sources.images import pixels
from fedssd.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def read(path: Path) -> Dataset:
    """``DIR/train/<class>/…`` and ``DIR/test/<class>/…``, or ``DIR/<class>/…`` with a fixed fifth for testing."""
    parted = all(_has_folders(path / part) for part in ("train", "test"))
    classes = _classes(path / "train" if parted else path)
    if not parted:
        images, labels = _read(path, classes, None)
        return with_test_split(path.name, images, labels, classes)
    unknown = sorted(set(_classes(path / "test")) - set(classes))
    if unknown:
        raise UserError(f"expected the classes of {path / 'train'}, got {unknown[0]!r} in {path / 'test'}: rename it")
    x_train, y_train = _read(path / "train", classes, None)
    x_test, y_test = _read(path / "test", classes, (x_train.shape[2], x_train.shape[3]))
    return Dataset(path.name, x_train, y_train, x_test, y_test, classes)


def read_samples(path: Path, classes: tuple[str, ...] | None) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """All images of ``DIR/<class>/…``; the classes are those given (some may be missing here), or else the folders."""
    found = _classes(path)
    unknown = sorted(set(found) - set(classes or found))
    if unknown:
        raise UserError(f"expected folders named after the classes {', '.join(classes or ())}, got {path / unknown[0]}")
    images, labels = _read(path, classes or found, None)
    return images, labels, classes or found


def _has_folders(path: Path) -> bool:
    """Tells a part of the data from a class that happens to be called train (CIFAR-100 has one)."""
    return path.is_dir() and any(entry.is_dir() for entry in path.iterdir())


def _classes(path: Path) -> tuple[str, ...]:
    names = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise UserError(
            f"expected one folder for each class, got none in {path}: for the official archives run "
            "`fedssd data prepare NAME --from PATH`"
        )
    return tuple(names)


def _read(path: Path, classes: tuple[str, ...], size: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
    """All images below ``path``; the first one sets the size unless ``size`` is given."""
    images, labels = [], []
    for number, name in enumerate(classes):
        for file in _files(path / name):
            image = pixels(_bytes(file), str(file), size)
            size = (image.shape[1], image.shape[2])
            images.append(image)
            labels.append(number)
    if not images:
        raise UserError(f"expected images ({', '.join(SUFFIXES[:3])}, …) in the folders of {path}, got none")
    return torch.from_numpy(np.stack(images)), torch.tensor(labels)


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():  # a class may be missing from the test set
        return []
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())


def _bytes(file: Path) -> bytes:
    try:
        if file.stat().st_size > LARGEST_MEMBER:
            raise UserError(f"expected an image below {LARGEST_MEMBER} bytes, got {file}")
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the image {file}: {error.strerror}") from error
