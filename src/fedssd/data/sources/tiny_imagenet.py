"""Tiny ImageNet from its official zip archive or the folder inside it; its validation images are the test set."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedssd.data.dataset import Dataset
from fedssd.data.sources.archive import Members, Progress, zip_or_folder
from fedssd.data.sources.images import pixels
from fedssd.errors import UserError

NAME = "tiny-imagenet"
FOLDER = "tiny-imagenet-200"
Labelled = list[tuple[str, int]]  # an image's path and its class


@dataclass(frozen=True)
class TinyLayout:
    """How much the official archive holds."""

    classes: int = 200
    train_images: int = 500  # of each class
    test_images: int = 50  # of each class
    side: int = 64


OFFICIAL = TinyLayout()


def read(path: Path, layout: TinyLayout = OFFICIAL, progress: Progress | None = None) -> Dataset:
    """Read the archive or folder at ``path``: classes in the order of wnids.txt, files in the order of their names."""
    with zip_or_folder(path, FOLDER) as members:
        classes = _classes(members, layout, path)
        train = _train_files(members, classes, layout, path)
        test = _test_files(members, classes, layout, path)
        report = _counter(progress, len(train) + len(test))
        x_train = _decode(members, train, layout, report)
        x_test = _decode(members, test, layout, report)
    y_train, y_test = (torch.tensor([label for _, label in part]) for part in (train, test))
    return Dataset(NAME, x_train, y_train, x_test, y_test, classes)


def _classes(members: Members, layout: TinyLayout, path: Path) -> tuple[str, ...]:
    """The first 200 names of wnids.txt: some copies in circulation append classes of their own."""
    names = members.read("wnids.txt").decode("ascii", "replace").split()[: layout.classes]
    if len(set(names)) != layout.classes:
        raise UserError(f"expected {layout.classes} classes in wnids.txt, got {len(set(names))} in {path}")
    return tuple(names)


def _train_files(members: Members, classes: tuple[str, ...], layout: TinyLayout, path: Path) -> Labelled:
    files: dict[str, list[str]] = defaultdict(list)
    for name in members.names():
        match name.split("/"):
            case ["train", wnid, "images", file] if file.endswith(".JPEG"):
                files[wnid].append(name)
    for wnid in classes:
        if len(files[wnid]) != layout.train_images:
            raise _incomplete(f"train images of class {wnid}", layout.train_images, len(files[wnid]), path)
    return [(name, number) for number, wnid in enumerate(classes) for name in sorted(files[wnid])]


def _test_files(members: Members, classes: tuple[str, ...], layout: TinyLayout, path: Path) -> Labelled:
    number = {wnid: label for label, wnid in enumerate(classes)}
    lines = members.read("val/val_annotations.txt").decode("utf-8", "replace").splitlines()
    pairs = [line.split("\t")[:2] for line in lines if "\t" in line]
    files = [(f"val/images/{file}", number[wnid]) for file, wnid in pairs if wnid in number and "/" not in file]
    expected = layout.classes * layout.test_images
    if len(files) != expected:
        raise _incomplete("lines in val_annotations.txt", expected, len(files), path)
    return files


def _incomplete(what: str, expected: int, found: int, path: Path) -> UserError:
    return UserError(f"expected {expected} {what}, got {found} in {path}: get the official tiny-imagenet-200.zip")


def _decode(members: Members, files: Labelled, layout: TinyLayout, report: Progress | None) -> Tensor:
    size = (layout.side, layout.side)
    images = np.empty((len(files), 3, *size), np.uint8)
    for row, (name, _) in enumerate(files):
        images[row] = pixels(members.read(name), name, size)
        if report is not None and row % 500 == 499:
            report("decoding", 500, 0)
    return torch.from_numpy(images)


def _counter(progress: Progress | None, total: int) -> Progress | None:
    """Progress over both sets as one, from reports of how many more were done."""
    if progress is None:
        return None
    done = 0

    def report(what: str, more: int, _: int) -> None:
        nonlocal done
        done += more
        progress(what, done, total)

    return report
