"""The user's own data: folders of images, NPZ and CSV files; and every way they can be broken."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from archives import RANDOM, picture_bytes

from fedssd.data import sources
from fedssd.data.sources import npz
from fedssd.errors import UserError


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
    ("x", "kind"),
    [
        (np.eye(10, dtype=np.int16), torch.int64),
        (np.eye(10, dtype=np.uint8), torch.int64),  # no image, as it has two dimensions
        (np.eye(10, dtype=np.uint64), torch.int64),
        (np.eye(10, dtype=np.float16), torch.float32),
        (np.eye(10, dtype=bool), torch.float32),
        (np.zeros((10, 1, 4, 4), np.uint8), torch.uint8),
        (np.zeros((10, 1, 4, 4), np.int32), torch.int64),
    ],
)
def test_npz_keeps_whole_numbers_whole(x: Any, kind: torch.dtype, tmp_path: Path) -> None:
    dataset = sources.load(
        save_npz(tmp_path / "a.npz", x_train=x, y_train=np.arange(10) % 2, x_test=x, y_test=np.ones(10))
    )
    assert dataset.x_train.dtype == dataset.x_test.dtype == kind
    assert dataset.x_train.tolist() == x.tolist()


def test_npz_whole_numbers_beside_floats_are_floats(tmp_path: Path) -> None:
    both = {
        "x_train": np.eye(10, dtype=int),
        "y_train": np.arange(10) % 2,
        "x_test": np.eye(10) / 2,
        "y_test": np.ones(10),
    }
    dataset = sources.load(save_npz(tmp_path / "a.npz", **both))
    assert dataset.x_train.dtype == dataset.x_test.dtype == torch.float32


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


def npy(shape: object, kind: str = "<f4", body: bytes = b"") -> bytes:
    """A member whose head says what it likes."""
    head = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + body


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (npy((2**40, 4)), "it is damaged"),  # 16 TiB that are not there
        (npy((2**62, 2**62)), "it is damaged"),
        (npy((-1, 4), body=b"\0" * 16), "it is damaged"),
        (npy((2, 2), body=b"\0" * 15), "it is damaged"),
        (npy((2, 2), body=b"\0" * 17), "it is damaged"),
        (npy((1,), "|O", b"cos\nsystem\n(S'touch hacked'\ntR."), "it holds pickled objects"),
        (npy("(" * 5000), "it is damaged"),
        (b"hello", "it is damaged"),
    ],
)
def test_a_head_that_says_another_size_is_refused(member: bytes, why: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", member)
        archive.writestr("y.npy", npy((2,), "<i8", b"\0" * 16))
    with pytest.raises(UserError, match=why) as caught:
        sources.load(str(tmp_path / "a.npz"))
    assert "\n" not in str(caught.value)


def test_more_than_half_of_the_free_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros: a file of kilobytes. All arrays count together, numbers that are no pixels with eight bytes at least."""
    taken = 8 * 1000 * 1000 + 8 * 1000
    for kind in (np.float32, np.float64, np.uint8):
        np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 1000), kind), y=np.arange(1000) % 2)
        assert (tmp_path / "a.npz").stat().st_size < 20_000
        monkeypatch.setattr(npz, "free_memory", lambda: 2 * taken)
        assert sources.load(str(tmp_path / "a.npz")).shape == (1000,)
        with monkeypatch.context() as patched:
            patched.setattr(npz, "free_memory", lambda: 2 * taken - 1)
            patched.setattr(np, "load", lambda *args, **keys: pytest.fail("read"))
            with pytest.raises(UserError, match=r"a.npz unpacks to 0\.0 GiB, and 0\.0 GiB of memory are free"):
                sources.load(str(tmp_path / "a.npz"))
    monkeypatch.undo()
    assert npz.free_memory() > 2**20


def test_a_path_that_no_system_takes_is_one_line(tmp_path: Path) -> None:
    for data in (
        "a" * 300,
        "a" * 300 + ".npz",
        str(tmp_path / "/".join(["b" * 200] * 30)),
        "~nobody-of-that-name/x.csv",
    ):
        with pytest.raises(UserError, match="expected a dataset's name or a path"):
            sources.load(data)


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """Numbers in place of letters, of which Python can make no text, and halves of letters, which no page can show."""
    for number, why in ((0x7FFFFFFF, "it is damaged"), (0xDC80, "expected class names that can be written as UTF-8")):
        names = np.array([number, 98], np.uint32).view("<U1")
        with pytest.raises(UserError, match=why):
            sources.load(save_npz(tmp_path / "a.npz", x=np.ones((10, 2)), y=np.arange(10) % 2, classes=names))


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


def test_csv_keeps_whole_numbers_as_they_stand(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,label\n" + "".join(f"{row},{10**17 + row},{row % 2}\n" for row in range(20)))
    dataset = sources.load(str(tmp_path / "t.csv"))
    rows = torch.cat([dataset.x_train, dataset.x_test])
    assert sorted(rows.tolist()) == [[row, 10**17 + row] for row in range(20)]
    for number in ("7.0", "1e3", str(2**63)):
        (tmp_path / "f.csv").write_text(f"a,label\n{number},1\n" + "".join(f"{row},{row % 2}\n" for row in range(20)))
        assert sources.load(str(tmp_path / "f.csv")).x_train.dtype == torch.float32


def test_csv_without_a_column_called_label_is_refused_unless_one_is_named(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("age,kind,charges\n" + "".join(f"{row},{'xy'[row % 2]},{2 * row}.5\n" for row in range(20)))
    with pytest.raises(UserError) as caught:
        sources.load(str(table))
    assert "a column called label, class or target" in str(caught.value)
    assert "got age, kind, charges: name yours with --label COLUMN" in str(caught.value)
    named = sources.load(str(table), "kind")
    assert (named.classes, named.shape) == (("x", "y"), (2,))
    order = torch.argsort(torch.cat([named.x_train, named.x_test])[:, 1])  # by charges, which go up line by line
    assert torch.cat([named.y_train, named.y_test])[order].tolist() == [row % 2 for row in range(20)]
    with pytest.raises(UserError, match=r"a column 'Kind', as label says, in .*got age, kind, charges"):
        sources.load(str(table), "Kind")
    table.write_text("kind,a,kind\n" + "x,1,x\ny,2,y\n" * 10)
    with pytest.raises(UserError, match=r"one column 'kind' .*got 2"):
        sources.load(str(table), "kind")


def test_a_label_named_wins_over_a_column_called_label(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,label,kind\n" + "".join(f"{row},7,{'xy'[row % 2]}\n" for row in range(20)))
    assert sources.load(str(tmp_path / "t.csv"), "kind").classes == ("x", "y")


def test_a_label_for_what_is_no_table_is_refused(tmp_path: Path) -> None:
    for data in ("digits", save_npz(tmp_path / "a.npz", x=np.ones((4, 2)), y=np.arange(4) % 2), str(tmp_path)):
        with pytest.raises(UserError, match=r"label names a column of a .csv file, got label 'kind'"):
            sources.load(data, "kind")


def test_classes_that_are_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
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
