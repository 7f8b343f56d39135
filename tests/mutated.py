"""Changes at random of what lies in a folder, and what can be changed so."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORDS = (
    *("null", "true", "-1", "0", "1e999", "NaN", "-Infinity", "9" * 400, "1" * 5000, '"', "''", "{}", "[]", "[" * 3000),
    *("\0", "\n", "é", "\udcff", "inf", "1e308", "9007199254740993", '{"a":' * 2000, "../..", "|O", ">f8", "(9,", "="),
)
Read = Callable[[Path], Any]  # of a folder: a value that can be compared
Change = Callable[[random.Random, Path], None]  # of what lies in a folder


@dataclass(frozen=True)
class Kind:
    """Something that is written and read."""

    write: Callable[[Path], None]
    read: Read
    checked: bool  # by checksums: what is read is what was written
    change: Change | None = None  # other than of the bytes of one file


def changed(draw: random.Random, content: bytes) -> bytes:
    """Bytes with one change, or seldom a few."""
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        content = _changed(draw, content)
    return content


def _changed(draw: random.Random, content: bytes) -> bytes:
    size = len(content)
    start = draw.randrange(size + 1)
    end = min(size, start + draw.choice([0, 1, 2, 8, 64, 1000]))
    other = draw.randrange(size + 1)
    what = draw.randrange(10)
    if what in (0, 1, 2) and size:  # a bit, as a bad disk has it
        place = draw.randrange(size)
        return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]
    if what == 3:
        return content[:start]
    if what == 4:
        return content[:start] + content[end:]
    if what == 5:
        return content[:start] + draw.choice(WORDS).encode("utf-8", "surrogatepass") + content[end:]
    if what == 6:
        return content[:start] + draw.randbytes(end - start) + content[end:]
    if what == 7:
        return content[:start] + content[other : other + 200] + content[start:]
    if what == 8:
        return content[:start] + b"\0" * draw.choice([1, 7, 4096]) + content[start:]
    return draw.choice([b"", content * 2, content[::-1], b"\xff" * size, b"[" * 10_000])


def change_a_file(draw: random.Random, folder: Path) -> None:
    """One file's bytes; seldom the file is gone, or a folder, or a link that leads nowhere or to itself."""
    file = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    if draw.random() < 0.95:
        file.write_bytes(changed(draw, file.read_bytes()))
        return
    file.unlink()
    what = draw.randrange(4)
    if what == 0:
        file.mkdir()
    elif what == 1:
        file.symlink_to(file)
    elif what == 2:
        with file.open("wb") as stream:  # a terabyte that takes no room on the disk
            stream.truncate(2**40)


def change_bytes(draw: random.Random, folder: Path) -> None:
    """The bytes of the one file, and nothing else: it is a message."""
    (file,) = folder.iterdir()
    file.write_bytes(changed(draw, file.read_bytes()))
