"""Tiny ImageNet, from small copies in the official layout; and every way they can be broken."""

from __future__ import annotations

from pathlib import Path

import pytest
from archives import SMALLTINY, picture_bytes, tiny_files, write_zip

from fedssd.data.sources import tiny_imagenet
from fedssd.errors import UserError


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
