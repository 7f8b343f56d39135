"""A dataset as four tensors and the names of its classes; nothing malformed gets past its constructor."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedssd.core.randomness import Purpose, permutation
from fedssd.data.numbers import moments, standardised
from fedssd.errors import UserError

TEST_SHARE = 0.2
Samples = tuple[Tensor, Tensor]  # and their labels
STORED = (torch.uint8, torch.int64, torch.float32)


@dataclass(frozen=True)
class Dataset:
    """Training and test samples with their labels, checked on construction.

    Images are uint8 ``[N, C, H, W]``; features that are numbers already are float32 or, where they are whole numbers,
    int64, ``[N, D]`` or ``[N, C, H, W]``.
    """

    name: str
    x_train: Tensor
    y_train: Tensor  # int64 [N], in [0, K)
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    columns: bool = False  # whether whole numbers are a table's columns, which are standardised to become floats

    def __post_init__(self) -> None:
        validate(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x_train.shape[1:])

    @property
    def num_classes(self) -> int:
        """How many classes there are (K)."""
        return len(self.classes)

    @property
    def whole(self) -> bool:
        """Whether samples are whole numbers, and no images."""
        x = self.x_train
        return x.dtype == torch.int64 or (x.dtype == torch.uint8 and x.ndim != 4)

    @cached_property
    def as_int64(self) -> Dataset:
        """Whole numbers for a model that takes them so."""
        return replace(self, x_train=self.x_train.to(torch.int64), x_test=self.x_test.to(torch.int64))

    @cached_property
    def as_float32(self) -> Dataset:
        """Whole numbers for a model that takes no int64; bytes are floats only when they are looked up."""
        return replace(self, x_train=self.floats(self.x_train), x_test=self.floats(self.x_test), columns=False)

    def floats(self, x: Tensor) -> Tensor:
        """Whole numbers like those of this dataset as float32; other samples as they are."""
        if x.dtype != torch.int64:
            return x
        return standardised(x.double(), *moments(self.x_train.double())) if self.columns else x.to(torch.float32)

    @cached_property
    def digest(self) -> str:
        """The sha256 of everything the dataset consists of, except what it is called."""
        total = hashlib.sha256(json.dumps(self.classes).encode())
        for name in ("x_train", "y_train", "x_test", "y_test"):
            tensor: Tensor = getattr(self, name).detach().cpu().contiguous()
            total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            total.update(tensor.numpy().data.cast("B"))
        return total.hexdigest()

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any class name, shape or value."""
        return self.digest[:16]


def validate(dataset: Dataset) -> None:
    """Raise a UserError for the first thing about the dataset that training would choke on."""
    name = dataset.name
    if dataset.num_classes < 2:
        count = dataset.num_classes
        raise UserError(f"expected at least 2 classes, got {count} in {name!r}: add samples of another class")
    for known in dataset.classes:
        if any("\ud800" <= letter <= "\udfff" for letter in known):  # as of a folder's name in another encoding
            raise UserError(f"expected class names that can be written as UTF-8, got {known!r} in {name!r}: rename it")
    _check_part(name, "train", dataset.x_train, dataset.y_train, dataset.classes)
    _check_part(name, "test", dataset.x_test, dataset.y_test, dataset.classes)
    if dataset.x_train.shape[1:] != dataset.x_test.shape[1:] or dataset.x_train.dtype != dataset.x_test.dtype:
        train, test = _kind(dataset.x_train), _kind(dataset.x_test)
        raise UserError(f"expected train and test samples of one shape and type, got {train} and {test} in {name!r}")
    counts = torch.bincount(dataset.y_train, minlength=dataset.num_classes)
    empty = [dataset.classes[k] for k in torch.nonzero(counts == 0).flatten().tolist()]
    if empty:
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise UserError(
            f"expected training samples of every class, got none of class {empty[0]!r}{more} in {name!r}: "
            "add samples or remove the class"
        )


def _kind(samples: Tensor) -> str:
    return f"{str(samples.dtype).removeprefix('torch.')} {list(samples.shape[1:])}"


def _check_part(name: str, part: str, samples: Tensor, labels: Tensor, classes: tuple[str, ...]) -> None:
    where = f"the {part} set of {name!r}"
    if samples.ndim < 2 or samples[:1].numel() == 0 or samples.dtype not in STORED:
        raise UserError(
            f"expected uint8, int64 or float32 samples, one a row and not empty, got {samples.dtype} "
            f"{list(samples.shape)} in {where}: convert the arrays"
        )
    if labels.ndim != 1 or labels.dtype != torch.int64 or len(labels) != len(samples):
        raise UserError(
            f"expected one int64 label for each of {len(samples)} samples, got {labels.dtype} {list(labels.shape)} "
            f"in {where}: check the label array"
        )
    _check_labels(where, labels, len(classes))
    if samples.dtype.is_floating_point:
        _check_finite(where, samples)


def _check_labels(where: str, labels: Tensor, count: int) -> None:
    outside = torch.nonzero((labels < 0) | (labels >= count)).flatten()
    if len(outside):
        row = int(outside[0])
        raise UserError(
            f"expected labels in 0…{count - 1}, got {int(labels[row])} in row {row} of {where} "
            f"({len(outside)} such labels): fix the labels or name more classes"
        )


def _check_finite(where: str, samples: Tensor) -> None:
    bad = ~torch.isfinite(samples).flatten(1)  # [N, D]
    count = int(bad.sum())
    if count:
        row = int(torch.nonzero(bad.any(1))[0])
        raise UserError(
            f"expected finite features, got {count} NaN or infinite values, the first in row {row} of {where}: "
            "remove or fill them"
        )


def stratified_split(labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Train and test rows (ascending) with a fifth of each class for the test set, the same on every call.

    A run's seed has no part in it: results of different seeds must be measured on the same test samples. A class with
    a single sample keeps it for training.
    """
    test = torch.zeros(len(labels), dtype=torch.bool)
    for k in range(classes):
        rows = torch.nonzero(labels == k).flatten()
        taken = max(1, round(TEST_SHARE * len(rows))) if len(rows) > 1 else 0
        test[rows[permutation(len(rows), 0, Purpose.SPLIT, k)[:taken]]] = True
    return torch.nonzero(~test).flatten(), torch.nonzero(test).flatten()


def with_test_split(name: str, samples: Tensor, labels: Tensor, classes: tuple[str, ...]) -> Dataset:
    """A dataset from samples that come without a test set of their own."""
    if len(labels) != len(samples):
        raise UserError(f"expected one label for each of {len(samples)} samples, got {len(labels)} in {name!r}")
    if len(labels):
        _check_labels(repr(name), labels, len(classes))
    train, test = stratified_split(labels, len(classes))
    return Dataset(name, samples[train], labels[train], samples[test], labels[test], classes)
