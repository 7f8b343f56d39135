"""Small copies of datasets in their official layouts."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from fedssd.data.sources import cifar, tiny_imagenet

SMALL10 = replace(cifar.CIFAR10, train_images=100, test_images=20)
SMALL100 = replace(cifar.CIFAR100, train_images=200, test_images=100)
SMALLTINY = tiny_imagenet.TinyLayout(classes=3, train_images=4, test_images=2)
RANDOM = np.random.default_rng(0)


def cifar_files(layout: cifar.CifarLayout) -> dict[str, bytes]:
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
