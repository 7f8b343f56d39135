"""The samples of a federation's machines: each node's own, and the server's for testing and judging.

A node's samples are read from what fedssd reads anywhere (.npz, .csv, a folder of images), but all of them are for
training, and the classes are those of the federation: a node may hold a few of them only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedssd.data import auxiliary as auxiliary_set
from fedssd.data.augment import resize
from fedssd.data.dataset import Dataset
from fedssd.data.partition import Partition, split
from fedssd.data.sources import load, npz, read_samples, tabular
from fedssd.engines.flower.messages import Kind
from fedssd.errors import UserError
from fedssd.experiment.federation import Samples
from fedssd.experiment.recipe import Recipe

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


def read_node(path: Path, kind: Kind) -> Samples:
    """A node's samples, checked against what the federation's samples look like."""
    x, y, _ = read_samples(path, kind.classes)
    if kind.mean:
        x = tabular.standardised(x, torch.tensor(kind.mean).double(), torch.tensor(kind.deviation).double())
    return fitted(x, y, kind, str(path))


def fitted(x: Tensor, y: Tensor, kind: Kind, where: str) -> Samples:
    """Samples that fit the federation's, or one line that says how they do not."""
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
    x, y, classes = read_samples(path)
    scale: tuple[tuple[float, ...], ...] = ()
    if x.dtype == torch.float64:  # a table, as it stands in its file
        mean, deviation = tabular.moments(x)
        x, scale = tabular.standardised(x, mean, deviation), (tuple(mean.tolist()), tuple(deviation.tolist()))
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


def deal(recipe: Recipe, folder: Path) -> list[Path]:
    """Deal a recipe's data out as its simulation would: a file for every client, and one for the server.

    Returns the clients' files. With these, a federation trains on what the simulation of the recipe trains on.
    """
    dataset = load(recipe.data)
    seed = recipe.seed if recipe.partition_seed < 0 else recipe.partition_seed
    labels, classes = dataset.y_train, dataset.num_classes
    partition = split(recipe.partition, labels, classes, recipe.clients, seed)
    rows, partition, _ = auxiliary_set.take(labels, partition, classes, recipe.auxiliary, recipe.auxiliary_mode, seed)
    names = np.array(dataset.classes)
    server = {"x_test": dataset.x_test.numpy(), "y_test": dataset.y_test.numpy(), "classes": names}
    if len(rows):
        server |= {"x_auxiliary": dataset.x_train[rows].numpy(), "y_auxiliary": labels[rows].numpy()}
    _write(folder / "server" / SAMPLES, server)
    files = []
    for client, own in enumerate(partition.clients):
        files.append(folder / f"node-{client}" / SAMPLES)
        _write(files[-1], {"x": dataset.x_train[own].numpy(), "y": labels[own].numpy(), "classes": names})
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
