"""Samples, to be changed at random: files, archives, what is prepared from them."""

from __future__ import annotations

import gzip
import os
import random
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from archives import SMALL10, SMALLTINY, cifar_files, tiny_files, write_tar
from mutated import Kind, changed
from mutated_runs import samples

from fedssd.data import sources
from fedssd.data.partition import Partition, split
from fedssd.data.sources import cache, cifar, tiny_imagenet


def digest(dataset: Any) -> Any:
    return dataset.digest


def an_npz(folder: Path) -> None:
    samples(folder / "a.npz")


def read_an_npz(folder: Path) -> Any:
    return digest(sources.load(str(folder / "a.npz")))


def change_npz_members(draw: random.Random, folder: Path) -> None:
    """Inside, with checksums that fit: what somebody does who wants to do harm."""
    change_zip_members(draw, folder / "a.npz")


def change_zip_members(draw: random.Random, file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name = draw.choice(sorted(members))
    members[name] = changed(draw, members[name])
    with zipfile.ZipFile(file, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)


def a_csv(folder: Path) -> None:
    rows = "".join(f"{n},{n / 7:.6f},{-n * n},{'xyz'[n % 3]}\n" for n in range(60))
    (folder / "a.csv").write_text("age,height,b,label\n" + rows)


def read_a_csv(folder: Path) -> Any:
    return digest(sources.load(str(folder / "a.csv")))


def a_tar(folder: Path) -> None:
    write_tar(folder / "a.tar.gz", SMALL10.folder, cifar_files(SMALL10))


def read_a_tar(folder: Path) -> Any:
    return digest(cifar.read(folder / "a.tar.gz", SMALL10))


def change_tar(draw: random.Random, folder: Path) -> None:
    file = folder / "a.tar.gz"
    file.write_bytes(gzip.compress(changed(draw, gzip.decompress(file.read_bytes())), 1))


def pickles(folder: Path) -> None:
    for name, content in cifar_files(SMALL10).items():
        (folder / name).write_bytes(content)


def read_pickles(folder: Path) -> Any:
    return digest(cifar.read(folder, SMALL10))


def a_zip(folder: Path) -> None:
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in tiny_files().items():
            archive.writestr(f"tiny-imagenet-200/{name}", content)


def read_a_zip(folder: Path) -> Any:
    return digest(tiny_imagenet.read(folder / "a.zip", SMALLTINY))


def change_images(draw: random.Random, folder: Path) -> None:
    change_zip_members(draw, folder / "a.zip")


def a_prepared_one(folder: Path) -> None:
    os.environ["FEDSSD_CACHE"] = str(folder)
    cache.save(replace(sources.load("digits"), name="cifar10"))


def read_a_prepared_one(folder: Path) -> Any:
    os.environ["FEDSSD_CACHE"] = str(folder)
    return digest(sources.load("cifar10"))


def a_split(folder: Path) -> None:
    split("dirichlet:0.5", np.arange(90) % 3, 3, 4, 0).save(folder / "partition.json")


def read_a_split(folder: Path) -> Any:
    return [rows.tolist() for rows in Partition.load(folder / "partition.json").clients]


KINDS = {
    "npz": Kind(an_npz, read_an_npz, True),
    "npz, inside": Kind(an_npz, read_an_npz, False, change_npz_members),
    "csv": Kind(a_csv, read_a_csv, False),
    "tar": Kind(a_tar, read_a_tar, True),
    "tar, inside": Kind(a_tar, read_a_tar, False, change_tar),
    "pickles": Kind(pickles, read_pickles, False),
    "zip": Kind(a_zip, read_a_zip, True),
    "images": Kind(a_zip, read_a_zip, False, change_images),
    "prepared data": Kind(a_prepared_one, read_a_prepared_one, True),
    "split": Kind(a_split, read_a_split, True),
}
