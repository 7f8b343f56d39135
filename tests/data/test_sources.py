"""Every source of data, from small copies in the official layouts; and every way they can be broken."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import pickle
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedssd.cli import data as data_command
from fedssd.cli import partition as partition_command
from fedssd.data import sources
from fedssd.data.dataset import Dataset, stratified_split
from fedssd.data.sources import cache, cifar, tiny_imagenet
from fedssd.data.sources.download import download
from fedssd.errors import UserError

torch.set_num_threads(1)
SMALL10 = replace(cifar.CIFAR10, train_images=100, test_images=20)
SMALL100 = replace(cifar.CIFAR100, train_images=200, test_images=100)
SMALLTINY = tiny_imagenet.Layout(classes=3, train_images=4, test_images=2)
RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSSD_CACHE", str(tmp_path / "cache"))


# --- datasets -------------------------------------------------------------------------------------------------------


def dataset_of(**changes: Any) -> Dataset:
    parts: dict[str, Any] = {
        "name": "made",
        "x_train": torch.arange(12.0).reshape(6, 2),
        "y_train": torch.tensor([0, 1, 2, 0, 1, 2]),
        "x_test": torch.zeros(3, 2),
        "y_test": torch.tensor([0, 1, 2]),
        "classes": ("a", "b", "c"),
    }
    return Dataset(**{**parts, **changes})


def with_value(value: float) -> torch.Tensor:
    samples = torch.zeros(6, 2)
    samples[4, 1] = samples[5, 0] = value
    return samples


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_train": with_value(float("nan"))}, "2 NaN or infinite values, the first in row 4"),
        ({"x_train": with_value(float("inf"))}, "2 NaN or infinite values, the first in row 4"),
        ({"y_train": torch.tensor([0, 1, 2, 3, 1, 2])}, "0…2, got 3 in row 3"),
        ({"y_test": torch.tensor([0, -1, 2])}, "got -1 in row 1 of the test set"),
        ({"y_train": torch.tensor([0, 1, 2])}, "each of 6 samples"),
        ({"y_train": torch.zeros(6)}, "int64"),
        ({"y_train": torch.tensor([0, 1, 1, 0, 1, 1])}, "none of class 'c'"),
        ({"x_train": torch.zeros(0, 2), "y_train": torch.zeros(0).long()}, "not empty"),
        ({"x_test": torch.zeros(0, 2), "y_test": torch.zeros(0).long()}, "the test set"),
        ({"x_test": torch.zeros(3, 4)}, "one shape"),
        ({"x_train": torch.zeros(6, 2, dtype=torch.int32)}, "uint8 or float32"),
        ({"classes": ("a",)}, "at least 2 classes"),
    ],
)
def test_a_dataset_refuses_what_training_would_choke_on(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        dataset_of(**changes)
    assert "\n" not in str(caught.value)


def test_the_fingerprint_follows_content_and_not_the_name() -> None:
    base = dataset_of()
    assert base.fingerprint == dataset_of(name="other").fingerprint
    changed = [
        dataset_of(x_train=base.x_train + 1e-6),
        dataset_of(classes=("a", "b", "d")),
        dataset_of(y_test=torch.tensor([0, 1, 1])),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in changed)}) == 4
    assert len(base.fingerprint) == 16
    assert (base.shape, base.num_classes) == ((2,), 3)


def test_the_test_split_takes_a_fifth_of_each_class() -> None:
    labels = torch.tensor([0] * 50 + [1] * 7 + [2] * 2 + [3])
    train, test = stratified_split(labels, 4)
    assert torch.bincount(labels[test], minlength=4).tolist() == [10, 1, 1, 0]
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(60))


def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    dataset = sources.load("digits")
    assert dataset.shape == (1, 8, 8)
    assert dataset.x_train.dtype == torch.float32
    assert len(dataset.y_train) + len(dataset.y_test) == 1797
    assert 0.19 < len(dataset.y_test) / 1797 < 0.21
    assert (float(dataset.x_train.min()), float(dataset.x_train.max())) == (0.0, 1.0)
    everything = torch.cat([dataset.x_train, dataset.x_test])
    assert float(everything.double().sum() * 16) == load_digits().data.sum()
    assert sources.load("digits").fingerprint == dataset.fingerprint


# --- CIFAR ----------------------------------------------------------------------------------------------------------


def cifar_files(layout: cifar.Layout) -> dict[str, bytes]:
    """The official files with random pixels; image i of a file has label i mod K."""
    files = {}
    counts = {name: layout.train_images // len(layout.train) for name in layout.train}
    for name, count in {**counts, layout.test: layout.test_images}.items():
        rows = RANDOM.integers(0, 256, (count, 3072), dtype=np.uint8)
        labels = [row % layout.classes for row in range(count)]
        files[name] = pickle.dumps({b"data": rows, layout.label_key: labels, b"filenames": [b"x.png"] * count}, 2)
    names = [f"class {k}".encode() for k in range(layout.classes)]
    files[layout.meta] = pickle.dumps({layout.names_key: names}, 2)
    return files


def write_tar(path: Path, folder: str, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, content in {"readme.html": b"<html>", **files}.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("layout", [SMALL10, SMALL100])
def test_cifar_reads_alike_from_archive_folder_and_parent(layout: cifar.Layout, tmp_path: Path) -> None:
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


# --- Tiny ImageNet --------------------------------------------------------------------------------------------------


def picture_bytes(mode: str = "RGB", side: int = 64, value: int = 100, kind: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    Image.new(mode, (side, side), value if mode == "L" else (value, 0, 255 - value)).save(stream, kind)
    return stream.getvalue()


def tiny_files() -> dict[str, bytes]:
    """Three classes of four and two images, and a fourth class that some copies carry at the end."""
    wnids = ["n03", "n01", "n02", "n99"]
    files = {"wnids.txt": "\n".join(wnids).encode(), "words.txt": b"n03\tthing\n"}
    notes = []
    for number, wnid in enumerate(wnids):
        for image in range(4):
            mode = "L" if image == 3 else "RGB"
            files[f"train/{wnid}/images/{wnid}_{image}.JPEG"] = picture_bytes(mode, value=number * 50)
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b""
        for image in range(2):
            name = f"val_{len(notes)}.JPEG"
            files[f"val/images/{name}"] = picture_bytes(value=number * 50 + image)
            notes.append(f"{name}\t{wnid}\t0\t0\t1\t1")
    files["val/val_annotations.txt"] = "\n".join(notes).encode()
    return files


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"tiny-imagenet-200/{name}", content)
    return path


def test_tiny_imagenet_reads_alike_from_archive_and_folder(tmp_path: Path) -> None:
    files = tiny_files()
    for name, content in files.items():
        target = tmp_path / "tiny-imagenet-200" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    steps: list[tuple[str, int, int]] = []
    dataset = tiny_imagenet.read(write_zip(tmp_path / "t.zip", files), SMALLTINY, lambda *step: steps.append(step))
    assert dataset.fingerprint == tiny_imagenet.read(tmp_path, SMALLTINY).fingerprint
    assert dataset.x_train.shape == (12, 3, 64, 64)
    assert dataset.classes == ("n03", "n01", "n02")  # the order of wnids.txt, the fourth left out
    assert dataset.y_train.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert dataset.y_test.tolist() == [0, 0, 1, 1, 2, 2]
    grey = dataset.x_train[7]  # the last image of a class is stored in grey
    assert (grey == 50).all()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train/n01/images/n01_2.JPEG", None, "4 train images of class n01, got 3"),
        ("train/n01/images/n01_2.JPEG", b"\xff\xd8\xff", "unreadable or truncated file: train/n01"),
        ("train/n01/images/n01_2.JPEG", picture_bytes(side=32), "64×64, got 32×32 in train/n01"),
        ("train/n01/images/n01_2.JPEG", picture_bytes()[:-200], "unreadable or truncated"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn03", "6 lines in val_annotations.txt, got 1"),
        ("val/images/val_3.JPEG", None, "val/images/val_3.JPEG"),
        ("wnids.txt", b"n01 n02", "3 classes in wnids.txt, got 2"),
        ("wnids.txt", None, "wnids.txt"),
    ],
)
def test_broken_tiny_imagenet_is_one_line(name: str, content: bytes | None, words: str, tmp_path: Path) -> None:
    files = {file: data for file, data in {**tiny_files(), name: content}.items() if data is not None}
    with pytest.raises(UserError, match=words):
        tiny_imagenet.read(write_zip(tmp_path / "t.zip", files), SMALLTINY)


def test_a_truncated_zip_is_one_line(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "t.zip", tiny_files())
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(UserError, match="truncated or damaged"):
        tiny_imagenet.read(path, SMALLTINY)


# --- the user's own files -------------------------------------------------------------------------------------------


def write_images(root: Path, classes: dict[str, int], side: int = 16) -> None:
    for number, (name, count) in enumerate(classes.items()):
        (root / name).mkdir(parents=True)
        for image in range(count):
            (root / name / f"{image}.png").write_bytes(picture_bytes(side=side, value=number, kind="PNG"))


def test_a_folder_of_images_with_and_without_its_own_test_set(tmp_path: Path) -> None:
    write_images(tmp_path / "parted" / "train", {"cat": 3, "dog": 4})
    write_images(tmp_path / "parted" / "test", {"dog": 2, "cat": 1})
    parted = sources.load(str(tmp_path / "parted"))
    assert (parted.classes, parted.shape, len(parted.y_train)) == (("cat", "dog"), (3, 16, 16), 7)
    assert parted.y_test.tolist() == [0, 1, 1]
    write_images(tmp_path / "whole", {"train": 10, "boat": 10})  # a class may be called train
    whole = sources.load(str(tmp_path / "whole"))
    assert whole.classes == ("boat", "train")
    assert torch.bincount(whole.y_test).tolist() == [2, 2]


def test_folders_that_cannot_be_read_name_the_file(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 6, "dog": 6})
    (tmp_path / "dog" / "3.png").write_bytes(picture_bytes(side=20, kind="PNG"))
    with pytest.raises(UserError, match=r"16×16, got 20×20 in .*dog/3\.png"):
        sources.load(str(tmp_path))
    (tmp_path / "dog" / "3.png").write_text("no image")
    with pytest.raises(UserError, match=r"unreadable.*dog/3\.png"):
        sources.load(str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="one folder for each class"):
        sources.load(str(tmp_path / "empty"))
    (tmp_path / "empty" / "cat").mkdir()
    with pytest.raises(UserError, match=r"expected images .* got none"):
        sources.load(str(tmp_path / "empty"))
    write_images(tmp_path / "odd" / "train", {"cat": 2, "dog": 2})
    write_images(tmp_path / "odd" / "test", {"cow": 2})
    with pytest.raises(UserError, match="'cow'"):
        sources.load(str(tmp_path / "odd"))


def save_npz(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def test_npz_images_and_features(tmp_path: Path) -> None:
    images = RANDOM.integers(0, 256, (10, 5, 7, 3), dtype=np.uint8)
    labels = np.arange(10) % 2
    both = {"x_train": images, "y_train": labels, "x_test": images[:2], "y_test": labels[:2]}
    dataset = sources.load(save_npz(tmp_path / "i.npz", **both, classes=np.array(["cat", "dog"])))
    assert (dataset.shape, dataset.classes, dataset.name) == ((3, 5, 7), ("cat", "dog"), "i")
    assert int(dataset.x_train[4, 2, 3, 6]) == images[4, 3, 6, 2]
    grey = sources.load(save_npz(tmp_path / "g.npz", x=images[..., 0], y=labels[:, None]))
    assert (grey.shape, grey.x_train.dtype) == ((1, 5, 7), torch.uint8)
    first = sources.load(save_npz(tmp_path / "c.npz", x=images.transpose(0, 3, 1, 2), y=labels))
    assert first.shape == (3, 5, 7)
    table = sources.load(save_npz(tmp_path / "t.npz", x=np.eye(10), y=np.array(["b", "a"] * 5)))
    assert (table.shape, table.x_train.dtype, table.classes) == ((10,), torch.float32, ("a", "b"))
    assert table.y_train.tolist() == [int(row.argmax()) % 2 == 0 for row in table.x_train]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros((4, 2))}, "add 'y'"),
        ({"x_train": np.zeros((4, 2)), "y_train": np.zeros(4)}, "add 'x_test'"),
        ({"x": np.array([[None]] * 4), "y": np.zeros(4)}, "pickled objects"),
        ({"x": np.full((10, 2), np.nan), "y": np.arange(10) % 2}, "NaN"),
        ({"x": np.full((10, 2), 1e300), "y": np.arange(10) % 2}, "infinite"),
        ({"x": np.zeros((10, 2)), "y": np.arange(10) % 2 - 1}, "got -1 in row 0"),
        ({"x": np.zeros((10, 2)), "y": np.arange(10) % 2 + 0.5}, "whole numbers"),
        ({"x": np.zeros((10, 2)), "y": np.arange(9) % 2}, "10 samples"),
        ({"x": np.zeros((10, 2)), "y": np.arange(10) % 2 * 2}, "none of class '1'"),
        ({"x": np.zeros((10, 2)), "y": np.arange(10) * 10**6}, "number the classes"),
        ({"x": np.zeros((10, 2)), "y": np.array(["a", "b"] * 5), "classes": np.array(["a", "c"])}, "got 'b' in row 1"),
        ({"x": np.zeros((10, 5, 5, 7), np.uint8), "y": np.arange(10) % 2}, "1 or 3 channels"),
        ({"x": np.zeros((10, 5, 5)), "y": np.arange(10) % 2}, "reshape"),
        ({"x": np.array(["a"] * 4)[:, None], "y": np.zeros(4)}, "expected numbers"),
    ],
)
def test_npz_mistakes_are_one_line(arrays: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as caught:
        sources.load(save_npz(tmp_path / "a.npz", **arrays))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_npz_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("hello")
    with pytest.raises(UserError, match="something else or half of one"):
        sources.load(str(tmp_path / "a.npz"))
    whole = Path(save_npz(tmp_path / "b.npz", x=np.ones((10, 2)), y=np.arange(10) % 2))
    flipped = bytearray(whole.read_bytes())
    flipped[200] ^= 1
    whole.write_bytes(flipped)
    with pytest.raises(UserError, match="damaged"):
        sources.load(str(whole))


def test_csv_is_standardised_by_its_training_rows(tmp_path: Path) -> None:
    lines = [f"{row},{row % 3}0,{row * row}.5,7" for row in range(60)]
    (tmp_path / "t.csv").write_text("age,Class,size,constant\n" + "\n".join(lines) + "\n\n")
    dataset = sources.load(str(tmp_path / "t.csv"))
    assert (dataset.classes, dataset.shape) == (("00", "10", "20"), (3,))
    assert torch.bincount(dataset.y_test).tolist() == [4, 4, 4]
    assert dataset.x_train[:, :2].double().mean(0).abs().max() < 1e-6
    assert (dataset.x_train[:, :2].double().std(0, unbiased=False) - 1).abs().max() < 1e-6
    assert (dataset.x_train[:, 2] == 0).all()
    # A row's class is its first column modulo three, which standardising must not have mixed up.
    order = torch.argsort(torch.cat([dataset.x_train, dataset.x_test])[:, 0])
    assert torch.cat([dataset.y_train, dataset.y_test])[order].tolist() == [row % 3 for row in range(60)]


def test_csv_takes_the_last_column_when_none_is_called_label(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,kind\n" + "".join(f"{row},1,{'xy'[row % 2]}\n" for row in range(20)))
    assert sources.load(str(tmp_path / "t.csv")).classes == ("x", "y")
    (tmp_path / "n.csv").write_text("a,label\n" + "".join(f"{row},{8 + row % 3}\n" for row in range(30)))
    assert sources.load(str(tmp_path / "n.csv")).classes == ("8", "9", "10")  # as numbers, not as text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,label\n1,x\n2,y\nthree,x\n", "got 'three' in column 'a' at .*t.csv:4"),
        ("a,label\n1,x\n,y\n", "got '' in column 'a' at .*:3"),
        ("a,label\nnan,x\n2,y\n", "got 'nan' .*:2"),
        ("a,label\n1,x\n2\n", "expected 2 fields, got 1 at .*:3"),
        ("a,label\n1,x\n2, \n", "expected a label.*:3"),
        ("a,label\n", "got none"),
        ("", "a header"),
        ("label\nx\n", "at least one feature"),
        ("1,2\n3,4\n", "got numbers at .*:1"),
        ("a,label\n1,x\n2,x\n", "at least 2 classes"),
        ('a,label\n"1,x\n', "comma-separated"),
    ],
)
def test_csv_mistakes_name_the_line(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        sources.load(str(tmp_path / "t.csv"))
    assert "\n" not in str(caught.value)


def test_csv_in_another_encoding_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("a,label\n1,é\n".encode("latin1"))
    with pytest.raises(UserError, match="UTF-8"):
        sources.load(str(tmp_path / "t.csv"))


# --- cache, downloads, commands -------------------------------------------------------------------------------------


@pytest.fixture
def small_cifar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An archive of CIFAR-10 with 120 images, and a source table that expects so many."""
    entry = replace(sources.SOURCES["cifar10"], read=lambda path, progress: cifar.read(path, SMALL10, progress))
    monkeypatch.setitem(sources.SOURCES, "cifar10", entry)
    return write_tar(tmp_path / "small.tar.gz", SMALL10.folder, cifar_files(SMALL10))


def test_preparing_once_is_loading_ever_after(small_cifar: Path) -> None:
    with pytest.raises(UserError, match="data prepare cifar10"):
        sources.load("cifar10")
    assert {row.name: row.prepared for row in sources.describe()}["cifar10"] is False
    path = sources.prepare("cifar10", small_cifar)
    assert sources.load("cifar10").fingerprint == cifar.read(small_cifar, SMALL10).fingerprint
    assert {row.name: row.prepared for row in sources.describe()}["cifar10"] is True
    assert sorted(file.name for file in path.parent.iterdir()) == ["cifar10.json", "cifar10.safetensors"]


def test_a_damaged_cache_is_noticed(small_cifar: Path) -> None:
    path = sources.prepare("cifar10", small_cifar)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-1000] ^= 1
    for damaged in (bytes(flipped), whole[:-10], b""):
        path.unlink()
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"damaged copy.*data prepare cifar10"):
            sources.load("cifar10")
    path.write_bytes(whole)
    cache.sidecar_path("cifar10").write_text("{}")
    with pytest.raises(UserError, match="damaged copy"):
        sources.load("cifar10")


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache.folder() == tmp_path / "cache"
    monkeypatch.delenv("FEDSSD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "fedssd"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder() == tmp_path / ".cache" / "fedssd"


def test_an_unwritable_cache_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_cifar: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDSSD_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(UserError, match="set FEDSSD_CACHE"):
        sources.prepare("cifar10", small_cifar)


CONTENT = bytes(range(256)) * 4000


class Server(BaseHTTPRequestHandler):
    """Serves CONTENT; /flaky breaks off halfway unless resumed, /whole ignores ranges."""

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.path != "/whole" else 0
        self.server.starts.append(start)  # type: ignore[attr-defined]
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : len(CONTENT) // 2] if self.path == "/flaky" and not start else CONTENT[start:])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Server) as running:
        running.starts = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_download_resumes_where_it_broke_off(server: Any, tmp_path: Path) -> None:
    address, target = f"http://127.0.0.1:{server.server_port}", tmp_path / "new" / "a.tar.gz"
    md5 = hashlib.md5(CONTENT).hexdigest()
    with pytest.raises(UserError, match="512000 bytes are kept"):
        download(f"{address}/flaky", target, md5, "cifar10")
    steps: list[tuple[str, int, int]] = []
    download(f"{address}/flaky", target, md5, "cifar10", lambda *step: steps.append(step))
    assert target.read_bytes() == CONTENT
    assert server.starts == [0, 512_000]
    assert steps[-1] == ("downloading", len(CONTENT), len(CONTENT))
    download(f"{address}/flaky", target, md5, "cifar10")
    assert len(server.starts) == 2  # it was there already
    target.rename(target.with_name("a.tar.gz.part"))
    download(f"{address}/flaky", target, md5, "cifar10")  # a part that is complete
    assert target.read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(server: Any, tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(b"old")
    md5 = hashlib.md5(CONTENT).hexdigest()
    download(f"http://127.0.0.1:{server.server_port}/whole", tmp_path / "a", md5, "cifar10")
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_wrong_checksum_is_an_error_and_leaves_nothing(server: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected md5 00"):
        download(f"http://127.0.0.1:{server.server_port}/a", tmp_path / "a", "00", "cifar10")
    assert list(tmp_path.iterdir()) == []


def test_no_network_says_how_to_bring_the_archive(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`fedssd data prepare cifar10 --from PATH`"):
        download("http://127.0.0.1:9/a", tmp_path / "a", "00", "cifar10")


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    data_command.register(commands)
    partition_command.register(commands)
    args = parser.parse_args(words)
    return int(args.main(args))


def test_the_data_commands(small_cifar: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("data", "list") == 0
    assert "cifar100" in capsys.readouterr().out
    assert command("data", "prepare", "cifar10", "--from", str(small_cifar)) == 0
    printed = capsys.readouterr()
    assert "100 train and 20 test samples" in printed.out
    assert "md5" in printed.err
    command("data", "list", "--json")
    assert [row["prepared"] for row in json.loads(capsys.readouterr().out)] == [True, True, False, False]
    command("data", "show", "cifar10", "--json")
    facts = json.loads(capsys.readouterr().out)
    assert (facts["shape"], facts["train_counts"], facts["type"]) == ([3, 32, 32], [10] * 10, "uint8")
    command("data", "show", "digits")
    assert "10 classes" in capsys.readouterr().out


def test_the_partition_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("partition", "--data", "digits", "--partition", "dirichlet:0.1", "--auxiliary", "64")
    assert command(*words, "--out", str(tmp_path / "p.json")) == 0
    assert "█" in capsys.readouterr().out
    command(*words, "--json")
    facts = json.loads(capsys.readouterr().out)
    assert sum(facts["sizes"]) + facts["auxiliary"] == 1438
    assert facts["hash"] == json.loads((tmp_path / "p.json").read_text())["hash"]
    with pytest.raises(UserError, match="which exists"):
        command(*words, "--out", str(tmp_path / "p.json"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("data", "show", "cifar11"), "did you mean 'cifar10'"),
        (("data", "show", "nothing.csv"), "got nothing at nothing.csv"),
        (("data", "show", ""), "unknown dataset"),
        (("data", "show", "photo.png"), "unknown dataset"),
        (("data", "prepare", "digits"), "needs no preparing"),
        (("data", "prepare", "imagenet"), "did you mean 'tiny-imagenet'"),
        (("data", "prepare", "cifar10", "--from", "nowhere"), "got nothing at nowhere"),
    ],
)
def test_command_mistakes(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        command(*words)
