"""Where data come from: names that need nothing, names that are prepared once, and the user's own files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedssd.data.dataset import Dataset, with_test_split
from fedssd.data.sources import cache, cifar, folder, npz, table, tiny_imagenet
from fedssd.data.sources.archive import Progress, md5_of
from fedssd.data.sources.download import download
from fedssd.errors import UserError, perhaps

Reader = Callable[[Path, Progress | None], Dataset]


@dataclass(frozen=True)
class Source:
    """A dataset with a name: what it is, and where it comes from if it has to be fetched."""

    name: str
    what: str
    origin: str  # an address, or words
    md5: str = ""
    size: str = ""
    read: Reader | None = None  # None: needs no preparing

    @property
    def archive(self) -> str:
        """The official archive's file name."""
        return self.origin.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Description:
    """One line of the list of datasets."""

    name: str
    what: str
    origin: str
    prepared: bool


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source("digits", "handwritten digits, 1,797 images 8×8, 10 classes", "bundled with scikit-learn"),
        Source(
            "cifar10",
            "photographs, 60,000 images 32×32, 10 classes",
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            "163 MiB",
            lambda path, progress: cifar.read(path, cifar.CIFAR10, progress),
        ),
        Source(
            "cifar100",
            "photographs, 60,000 images 32×32, 100 classes",
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            "161 MiB",
            lambda path, progress: cifar.read(path, cifar.CIFAR100, progress),
        ),
        Source(
            "tiny-imagenet",
            "photographs, 110,000 images 64×64, 200 classes",
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "90528d7ca1a48142e341f4ef8d21d0de",
            "237 MiB",
            lambda path, progress: tiny_imagenet.read(path, tiny_imagenet.OFFICIAL, progress),
        ),
    )
}
FILES = "or a path to a folder of images, a .npz or a .csv file"


def load(name_or_path: str, label: str = "") -> Dataset:
    """The dataset of that name, or the one in that folder, ``.npz`` or ``.csv`` file.

    ``label`` names the column of a ``.csv`` file that holds the label, where it is not called label, class or target.
    """
    if label and Path(name_or_path).suffix.lower() != ".csv":
        raise UserError(f"label names a column of a .csv file, got label {label!r} for data {name_or_path!r}: drop it")
    if name_or_path == "digits":
        return _digits()
    if name_or_path in SOURCES:
        return _prepared(SOURCES[name_or_path])
    path = place(name_or_path)
    suffix = path.suffix.lower()
    if name_or_path and path.is_dir():
        return folder.read(path.resolve())
    if suffix in (".npz", ".csv"):
        if not path.is_file():
            raise UserError(f"expected a {suffix} file, got nothing at {path}: check the path")
        return npz.read(path) if suffix == ".npz" else table.read(path, label)
    hint = perhaps(name_or_path, list(SOURCES))
    raise UserError(f"unknown dataset {name_or_path!r}: expected one of {', '.join(SOURCES)}, {FILES}{hint}")


def place(text: str | Path) -> Path:
    """A path that the system can be asked about, with the home folder in place of ~."""
    try:
        path = Path(text).expanduser()
        path.is_dir()
    except (OSError, RuntimeError) as error:  # a name that is too long; a user who has no home
        why = getattr(error, "strerror", None) or error
        raise UserError(f"expected a dataset's name or a path, got {str(text)[:40]!r}…: {why}") from None
    return path


def read_samples(
    path: Path, classes: tuple[str, ...] | None = None, label: str = ""
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Every sample of a folder, ``.npz`` or ``.csv`` file, without a test split; a table's features as they stand.

    Machines of one federation may have files of several kinds: ``label`` is for those that have a table.
    """
    if path.is_dir():
        return folder.read_samples(path, classes)
    if path.suffix.lower() not in (".npz", ".csv") or not path.is_file():
        raise UserError(f"expected a folder of images, a .npz or a .csv file, got nothing of the kind at {path}")
    if path.suffix.lower() == ".npz":
        return npz.read_samples(path, classes)
    return table.read_samples(path, classes, label)


def _digits() -> Dataset:
    """The digits of scikit-learn as float32 [N, 1, 8, 8] in [0, 1], with a fixed fifth of each class for testing."""
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = torch.from_numpy(np.asarray(bundle.images, np.float32) / 16.0).unsqueeze(1)
    labels = torch.from_numpy(np.asarray(bundle.target, np.int64))
    return with_test_split("digits", images, labels, tuple("0123456789"))


def _prepared(source: Source) -> Dataset:
    if not cache.is_prepared(source.name):
        raise UserError(
            f"{source.name} is not prepared in {cache.folder()}: run `fedssd data prepare {source.name}` (downloads "
            f"{source.size}), or with `--from PATH` where you have the official archive or folder"
        )
    return cache.load(source.name)


def prepare(name: str, source: Path | None = None, progress: Progress | None = None) -> Path:
    """Read an official archive or folder into the cache; returns the file of arrays.

    Where none is given it is downloaded, unless a sound copy is in the cache already.
    """
    entry = SOURCES.get(name)
    if entry is None or entry.read is None:
        fetched = [known for known, candidate in SOURCES.items() if candidate.read is not None]
        why = "needs no preparing" if entry is not None else f"is not known{perhaps(name, fetched)}"
        raise UserError(f"expected one of {', '.join(fetched)} to prepare, got {name!r}, which {why}")
    if source is None and cache.is_sound(name):
        return cache.arrays_path(name)
    path = source or download(entry.origin, cache.folder() / "downloads" / entry.archive, entry.md5, name, progress)
    return cache.save(entry.read(place(path), progress))


def remarks(name: str, path: Path | None) -> list[str]:
    """What a user should know: that an archive they brought is not the official one, or that nothing will be read."""
    entry = SOURCES.get(name)
    if entry is None or entry.read is None:
        return []
    if path is None:
        anew = f"to have it read anew give --from PATH, or delete {cache.arrays_path(name)}"
        return [f"{name} is prepared already; {anew}"] if cache.is_sound(name) else []
    if not entry.md5 or not path.is_file():
        return []
    found = md5_of(path)
    if found == entry.md5:
        return []
    return [f"{path} has md5 {found}, the official archive {entry.md5}: its structure is checked, its content is not"]


def describe() -> list[Description]:
    """Every named dataset, and whether it can be loaded right away."""
    return [
        Description(source.name, source.what, source.origin, source.read is None or cache.is_prepared(source.name))
        for source in SOURCES.values()
    ]
