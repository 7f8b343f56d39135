"""The samples of a federation's machines: each node's own, and the server's for testing and judging.

A node's samples are read from what fedssd reads anywhere (.npz, .csv, a folder of images), but all of them are for
training, and the classes are those of the federation: a node may hold a few of them only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedssd.data import auxiliary as auxiliary_set
from fedssd.data import numbers
from fedssd.data.augment import resize
from fedssd.data.dataset import Dataset, Samples
from fedssd.data.partition import Partition, split
from fedssd.data.sources import npz, read_samples
from fedssd.errors import UserError
from fedssd.flower.messages import Kind
from fedssd.recipe import Recipe
from fedssd.simulation.setup import load_for

SAMPLES = "samples.npz"  # what `deal` writes for every machine


@dataclass(frozen=True)
class ServerSamples:
    """What the server holds: a test set, and D_V where there is one."""

    kind: Kind
    test: Samples
    auxiliary: Samples | None

    def dataset(self, name: str) -> Dataset:
        """The server's samples as a dataset, with D_V (or else the test set) where training samples would be."""
        x, y = self.auxiliary or self.test
        return Dataset(name, x, y, *self.test, self.kind.classes)


def read_node(path: Path, kind: Kind, label: str = "") -> Samples:
    """A node's samples, checked against what the federation's samples look like."""
    x, y, _ = read_samples(path, kind.classes, label)
    if kind.mean:
        x = numbers.standardised(x, torch.tensor(kind.mean).double(), torch.tensor(kind.deviation).double())
    return fitted(x, y, kind, str(path))


def fitted(x: Tensor, y: Tensor, kind: Kind, where: str) -> Samples:
    """Samples that fit the federation's, or one line that says how they do not."""
    if x.dtype == torch.int64 and kind.dtype == "float32":
        x = x.to(torch.float32)
    if tuple(x.shape[1:]) != kind.shape or str(x.dtype) != f"torch.{kind.dtype}":
        got = f"{str(x.dtype).removeprefix('torch.')} {list(x.shape[1:])}"
        raise UserError(f"expected samples of {kind.dtype} {list(kind.shape)}, as the server's, got {got} in {where}")
    if len(x) == 0 or len(y) != len(x):
        raise UserError(f"expected samples with one label each, got {len(x)} samples and {len(y)} labels in {where}")
    if int(y.min()) < 0 or int(y.max()) >= len(kind.classes):
        raise UserError(
            f"expected labels in 0…{len(kind.classes) - 1}, got {int(y.min())} to {int(y.max())} in {where}"
        )
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise UserError(f"expected finite features, got NaN or infinity in {where}")
    return x, y


def read_server(path: Path, recipe: Recipe) -> ServerSamples:
    """The server's samples: test and auxiliary sets as named in a .npz, or any labelled samples, split here."""
    if path.suffix.lower() == ".npz" and path.is_file():
        arrays = npz.arrays_in(path)
        if "x_test" in arrays and "x_train" not in arrays:
            return _named(arrays, path)
    x, y, classes = read_samples(path, label=recipe.label)
    scale: tuple[tuple[float, ...], ...] = ()
    if x.dtype == torch.float64:  # a table, as it stands in its file
        mean, deviation = numbers.moments(x)
        x, scale = numbers.standardised(x, mean, deviation), (tuple(mean.tolist()), tuple(deviation.tolist()))
    everything = Partition("server", 0, (torch.arange(len(y)),))
    rows, rest, _ = auxiliary_set.take(y, everything, len(classes), recipe.auxiliary, "heldout", recipe.seed)
    test = rest.clients[0]
    kind = Kind(tuple(x.shape[1:]), _name(x), classes, *scale)
    return ServerSamples(kind, (x[test], y[test]), (x[rows], y[rows]) if len(rows) else None)


def _named(arrays: dict[str, npz.Array], path: Path) -> ServerSamples:
    for key in ("y_test", *(["y_auxiliary"] if "x_auxiliary" in arrays else [])):
        if key not in arrays:
            raise UserError(f"expected labels {key!r} beside the samples in {path}: add them")
    x, y, classes = npz.labelled(arrays, "x_test", "y_test", path, None)
    kind = Kind(tuple(x.shape[1:]), _name(x), classes)
    auxiliary = None
    if "x_auxiliary" in arrays:
        auxiliary = fitted(*npz.labelled(arrays, "x_auxiliary", "y_auxiliary", path, classes)[:2], kind, str(path))
    return ServerSamples(kind, fitted(x, y, kind, str(path)), auxiliary)


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


class Shares(NamedTuple):
    """A recipe's data as its simulation deals them out: a federation with these trains on what the simulation does."""

    dataset: Dataset
    auxiliary: Tensor  # rows of the training set that are the server's
    clients: tuple[Tensor, ...]  # and every client's

    def of_client(self, client: int) -> Samples:
        """What one client holds."""
        own = self.clients[client]
        return self.dataset.x_train[own], self.dataset.y_train[own]

    def of_server(self) -> ServerSamples:
        """What the server holds."""
        data, rows = self.dataset, self.auxiliary
        kind = Kind(data.shape, _name(data.x_train), data.classes)
        own = (data.x_train[rows], data.y_train[rows]) if len(rows) else None
        return ServerSamples(kind, (data.x_test, data.y_test), own)


def dealing(recipe: Recipe) -> dict[str, Any]:
    """What of a recipe decides who holds what."""
    keys = ("data", "label", "partition", "clients", "auxiliary", "auxiliary_mode")
    return {**{key: getattr(recipe, key) for key in keys}, "partition_seed": recipe.split_seed}


def shares(recipe: Recipe) -> Shares:
    """Who holds what of a recipe's data."""
    dataset, seed = load_for(recipe), recipe.split_seed
    labels, classes = dataset.y_train, dataset.num_classes
    partition = split(recipe.partition, labels, classes, recipe.clients, seed)
    rows, partition, _ = auxiliary_set.take(labels, partition, classes, recipe.auxiliary, recipe.auxiliary_mode, seed)
    return Shares(dataset, rows, partition.clients)


def deal(recipe: Recipe, folder: Path) -> list[Path]:
    """Write every machine's share of a recipe's data to a file of its own; returns the clients' files."""
    dealt = shares(recipe)
    server, names = dealt.of_server(), np.array(dealt.dataset.classes)
    arrays = {"x_test": server.test[0].numpy(), "y_test": server.test[1].numpy(), "classes": names}
    if server.auxiliary is not None:
        arrays |= {"x_auxiliary": server.auxiliary[0].numpy(), "y_auxiliary": server.auxiliary[1].numpy()}
    _write(folder / "server" / SAMPLES, arrays)
    files = [folder / f"node-{client}" / SAMPLES for client in range(len(dealt.clients))]
    for client, file in enumerate(files):
        x, y = dealt.of_client(client)
        _write(file, {"x": x.numpy(), "y": y.numpy(), "classes": names})
    return files


def _write(file: Path, arrays: dict[str, npz.Array]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise UserError(f"cannot write samples to {file}: {error.strerror}") from None


def resized(samples: Samples, size: int | None) -> Samples:
    """Samples scaled to what the augmentation works on."""
    x, y = samples
    return (resize(x, size), y) if size and tuple(x.shape[-2:]) != (size, size) else samples
