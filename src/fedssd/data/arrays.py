"""A user's own arrays as clients, a test set and an auxiliary set, or one line that says what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedssd.data.dataset import Dataset
from fedssd.data.numbers import alike
from fedssd.data.partition import Partition
from fedssd.errors import UserError

Array = Tensor | np.ndarray | Sequence[Any]
Samples = Sequence[Array]  # a pair (x, y)
Whole = int | np.integer[Any]

OWN = "your own arrays"
LARGEST = 2**63 - 1
EXPECTED_CLIENTS = "clients expects a list of (x, y) pairs, one a client, or a whole number"
EXPECTED_AUXILIARY = "auxiliary expects a pair (x, y), a whole number of samples per class, or 0 for none"


def whole(value: object) -> int | None:
    """Python's or numpy's whole number as an int; None for anything else."""
    return int(value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else None


def client_pairs(clients: object) -> list[tuple[Tensor, Tensor]]:
    if isinstance(clients, (str, bytes, Mapping, Tensor, np.ndarray)) or not isinstance(clients, Iterable):
        raise UserError(f"{EXPECTED_CLIENTS}, got {short(clients)}")
    pairs = [pair(samples, f"client {number}") for number, samples in enumerate(clients)]
    if not pairs:
        raise UserError(f"{EXPECTED_CLIENTS}, got an empty list")
    samples = alike([x for x, _ in pairs])
    for number, x in enumerate(samples):
        _check_alike(x, samples[0], f"client {number}", "client 0")
    return [(x, y) for x, (_, y) in zip(samples, pairs, strict=True)]


def own_data(pairs: list[tuple[Tensor, Tensor]], test: tuple[Tensor, Tensor]) -> tuple[Dataset, Partition]:
    *samples, test_x = alike([*(x for x, _ in pairs), test[0]])
    test_y = test[1]
    _check_alike(test_x, samples[0], "test", "the clients")
    ends = np.cumsum([len(y) for _, y in pairs])
    rows = tuple(torch.arange(end - len(y), end) for end, (_, y) in zip(ends.tolist(), pairs, strict=True))
    x, y = torch.cat(samples), torch.cat([y for _, y in pairs])
    classes = int(max(y.max(), test_y.max())) + 1
    if classes > len(y):  # said here, as that many names may not fit into memory
        raise UserError(
            f"labels expects classes numbered 0, 1, 2, …, got {classes - 1} among {len(y)} training samples"
        )
    return Dataset(OWN, x, y, test_x, test_y, tuple(map(str, range(classes)))), Partition("given", 0, rows)


def auxiliary_of(auxiliary: object) -> tuple[int, tuple[Tensor, Tensor] | None]:
    """Samples per class to take from the clients, or the caller's own set."""
    count = whole(auxiliary)
    if count is not None:
        return count, None
    if not isinstance(auxiliary, (tuple, list)):
        raise UserError(f"{EXPECTED_AUXILIARY}, got {short(auxiliary)}")
    return 0, pair(auxiliary, "auxiliary")


def with_auxiliary(dataset: Dataset, given: tuple[Tensor, Tensor]) -> tuple[Dataset, tuple[Tensor, Tensor]]:
    """A dataset and an auxiliary set that fits it."""
    x, y = given
    if x.dtype == torch.float32 and dataset.x_train.dtype == torch.int64:
        dataset = dataset.as_float32
    _, x = alike([dataset.x_train, x])
    _check_alike(x, dataset.x_train, "auxiliary", "the clients")
    if int(y.max()) >= dataset.num_classes:
        raise UserError(f"auxiliary: expected labels in 0…{dataset.num_classes - 1}, got {int(y.max())}")
    return dataset, (x, y)


def _check_alike(x: Tensor, other: Tensor, where: str, of: str) -> None:
    if x.shape[1:] != other.shape[1:] or x.dtype != other.dtype:
        kinds = [f"{str(t.dtype).removeprefix('torch.')} {list(t.shape[1:])}" for t in (other, x)]
        raise UserError(f"{where}: expected samples like those of {of}, {kinds[0]}, got {kinds[1]}")


def pair(samples: object, where: str) -> tuple[Tensor, Tensor]:
    """Samples (uint8, int64 or float32) and int64 labels, as many of both and all of them usable."""
    if not isinstance(samples, (tuple, list)) or len(samples) != 2:
        raise UserError(f"{where}: expected a pair (x, y), got {short(samples)}")
    x, y = _tensor(samples[0], f"{where}, x"), _tensor(samples[1], f"{where}, y")
    if x.ndim < 2 or y.ndim != 1:
        shapes = f"{list(x.shape)} and {list(y.shape)}"
        raise UserError(f"{where}: expected x of shape [n, …] and y of shape [n], got {shapes}")
    if len(x) != len(y) or len(x) == 0:
        raise UserError(f"{where}: expected as many samples as labels and at least one, got {len(x)} and {len(y)}")
    if x.dtype != torch.uint8:
        x = x.to(torch.float32 if x.is_floating_point() or x.dtype == torch.bool else torch.int64)
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        row = int(torch.nonzero(~torch.isfinite(x).flatten(1).all(1))[0])
        raise UserError(f"{where}: expected finite samples, got NaN or infinity in row {row}")
    whole = y.to(torch.float64)
    wrong = torch.nonzero(~torch.isfinite(whole) | (whole != whole.round()) | (whole < 0)).flatten()
    if len(wrong):
        row = int(wrong[0])
        raise UserError(f"{where}: expected labels that are whole numbers from 0, got {y[row].item()} in row {row}")
    return x, y.to(torch.int64)


def _tensor(values: object, where: str) -> Tensor:
    """An array of real numbers as a tensor on the CPU; whole numbers of any size as int64, but bytes."""
    if isinstance(values, Tensor):
        if values.layout != torch.strided or values.is_complex():
            raise UserError(f"{where}: expected a dense array of real numbers, got {values.dtype} {values.layout}")
        if values.dtype != torch.uint64:
            return values.detach().cpu()
        values = values.cpu().numpy()
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError):
        raise UserError(f"{where}: expected an array of numbers, got {short(values)} with rows unalike") from None
    if array.dtype.kind not in "biuf":
        raise UserError(f"{where}: expected an array of real numbers, got {array.dtype}")
    if array.dtype.kind == "u" and array.size and int(array.max()) > LARGEST:
        raise UserError(f"{where}: expected whole numbers below 2⁶³, got {array.max()}: number from 0")
    native = {"b": "?", "i": "i8", "u": "u1" if array.itemsize == 1 else "i8"}
    kind = native.get(array.dtype.kind, "f8" if array.itemsize >= 8 else "f4")
    # Torch takes neither negative strides nor foreign byte orders, and warns of what it may not write to.
    return torch.from_numpy(np.require(array, dtype=kind, requirements=["C", "W"]))


def short(value: object) -> str:
    """A value in a few words: arrays by type, everything else as written where that is short."""
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}" if len(repr(value)) > 40 else repr(value)
    if isinstance(value, (Tensor, np.ndarray)):
        return f"a {type(value).__name__} of shape {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"
