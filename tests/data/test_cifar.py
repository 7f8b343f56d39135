"""CIFAR-10 and CIFAR-100, from small copies in the official layout; and every way they can be broken."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from archives import SMALL10, SMALL100, cifar_files, write_tar

from fedssd.data.sources import cifar
from fedssd.errors import UserError


@pytest.mark.parametrize("layout", [SMALL10, SMALL100])
def test_cifar_reads_alike_from_archive_folder_and_parent(layout: cifar.CifarLayout, tmp_path: Path) -> None:
    files = cifar_files(layout)
    archive = write_tar(tmp_path / "cifar.tar.gz", layout.folder, files)
    folder = tmp_path / "out" / layout.folder
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    read = [cifar.read(path, layout) for path in (archive, folder, folder.parent)]
    assert len({dataset.fingerprint for dataset in read}) == 1
    dataset = read[0]
    assert dataset.x_train.shape == (layout.train_images, 3, 32, 32)
    assert dataset.x_test.dtype == torch.uint8
    assert dataset.classes[-1] == f"class {layout.classes - 1}"
    rows = pickle.loads(files[layout.test])[b"data"]
    # The official row is all red, then all green, then all blue, each row by row.
    assert int(dataset.x_test[5, 1, 2, 3]) == rows[5, 1024 + 2 * 32 + 3]
    assert int(dataset.y_test[13]) == 13 % layout.classes


def test_broken_cifar_archives_are_one_line(tmp_path: Path) -> None:
    files = cifar_files(SMALL10)
    whole = write_tar(tmp_path / "whole.tar.gz", SMALL10.folder, files)
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(whole.read_bytes()[:-30_000])
    for name, position in [("middle", whole.stat().st_size // 2), ("checksum", -5)]:
        flipped = bytearray(whole.read_bytes())
        flipped[position] ^= 0xFF
        (tmp_path / f"{name}.tar.gz").write_bytes(flipped)
    (tmp_path / "text.tar.gz").write_text("hello")
    del files["data_batch_3"]
    write_tar(tmp_path / "missing.tar.gz", SMALL10.folder, files)
    for name, words in [
        ("cut", "truncated or damaged"),
        ("middle", "truncated or damaged"),
        ("checksum", "truncated or damaged"),
        ("text", "truncated or damaged"),
        ("missing", "data_batch_3"),
        ("absent", "got nothing at"),
    ]:
        with pytest.raises(UserError, match=words) as caught:
            cifar.read(tmp_path / f"{name}.tar.gz", SMALL10)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("data_batch_2", {b"data": np.zeros((20, 3072)), b"labels": [0] * 20}, "uint8 rows"),
        ("data_batch_2", {b"data": np.zeros((20, 3071), np.uint8), b"labels": [0] * 20}, "rows of 3072"),
        ("data_batch_2", {b"data": np.zeros((20, 3072), np.uint8), b"labels": [10] * 20}, "labels in 0…9"),
        ("data_batch_2", {b"data": np.zeros((20, 3072), np.uint8), b"labels": [0] * 19}, "20 labels"),
        ("data_batch_2", {b"data": np.zeros((20, 3072), np.uint8)}, "20 labels"),
        ("data_batch_2", {b"data": np.zeros((19, 3072), np.uint8), b"labels": [0] * 19}, "expected 100 images"),
        ("data_batch_2", [1, 2], "a dictionary"),
        ("data_batch_2", {b"data": print}, "refuses to call"),
        ("batches.meta", {b"label_names": [b"cat"]}, "10 class names"),
    ],
)
def test_tampered_cifar_files_are_one_line(file: str, content: object, words: str, tmp_path: Path) -> None:
    files = {**cifar_files(SMALL10), file: pickle.dumps(content, 2)}
    with pytest.raises(UserError, match=words):
        cifar.read(write_tar(tmp_path / "a.tar.gz", SMALL10.folder, files), SMALL10)


def test_members_outside_the_official_folder_are_not_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo(f"{SMALL10.folder}/data_batch_1")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        outside = tarfile.TarInfo(f"../{SMALL10.folder}/data_batch_2")
        archive.addfile(outside, io.BytesIO())
    with pytest.raises(UserError, match=r"data_batch_1 in .*, got none"):
        cifar.read(tmp_path / "a.tar.gz", SMALL10)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]
