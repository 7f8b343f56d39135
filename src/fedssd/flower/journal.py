"""The journal: who came, who was refused, what was decided, one line each, every line bound to the one before.

A line holds the SHA-256 of the line before it, so that a line that is changed, taken out or put in later shows at the
next one. Whoever can write the file can also write all of it anew: keep the last hash somewhere else (`federation
journal verify` prints it), and compare it later with ``--head``.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fedssd.errors import UserError

FILE = "journal.jsonl"
FIRST = "0" * 64  # what the first line has in place of a hash
LONGEST = 500  # characters of one fact
LONGEST_LINE = 64 << 10  # bytes
LEFT = ("rounds.jsonl", "summary.json", "weights.safetensors")  # what a run leaves
MINUTE = 60.0  # seconds in which what happens again is counted and not written
MOST = 60  # different things written in a minute; a flood must not fill the disk

Fact = str | int | float | bool | None


class Journal:
    """A journal in a folder, written by several programs.

    Args:
        folder: The folder of keys, or a node's state.
        who: Which program writes.
        tell: Hears of a journal that cannot be written: what it is about goes on nevertheless.
    """

    def __init__(self, folder: Path, who: str, tell: Callable[[str], None] = lambda text: None) -> None:
        self.path, self._who, self._tell = folder / FILE, who, tell

    def add(self, what: str, **facts: Fact) -> None:
        """Write one line."""
        try:
            self._add(what, facts)
        except OSError as error:
            self._tell(f"the journal {self.path} cannot be written: {error.strerror}")

    def _add(self, what: str, facts: dict[str, Fact]) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self.path, flags, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed: two programs must not follow one line
            before = _last_line(file.fileno())
            line: dict[str, Fact] = {
                "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "who": self._who,
                "what": what,
                **{name: value[:LONGEST] if isinstance(value, str) else value for name, value in facts.items()},
                "prev": FIRST if before is None else _hash(before),
            }
            os.write(file.fileno(), json.dumps(line).encode() + b"\n")

    def also(self, tell: Callable[[str], None]) -> Callable[[str], None]:
        """Return a function that tells a text and writes it down."""

        def both(text: str) -> None:
            tell(text)
            self.add("said", text=text)

        return both

    @contextmanager
    def noting_a_run(self, folder: Path, **facts: Fact) -> Iterator[None]:
        """Write when a run begins and how it ends, with the hashes of what it has left."""
        self.add("run begun", folder=str(folder), **facts)
        try:
            yield
        except BaseException as error:
            self.add("run failed", folder=str(folder), why=str(error) or type(error).__name__, **_hashes(folder))
            raise
        self.add("run ended", folder=str(folder), **_hashes(folder))


class Sparing:
    """Writes what happens often once a minute, with how many times it happened."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._since, self._times = time.monotonic(), dict[tuple[Any, ...], int]()

    def add(self, what: str, key: tuple[Any, ...], **facts: Fact) -> None:
        """Write the first of its kind in a minute, and count the others."""
        self.flush()
        kind = (what, *key) if len(self._times) < MOST or (what, *key) in self._times else ("others",)
        self._times[kind] = self._times.get(kind, 0) + 1
        if self._times[kind] == 1:
            self._write(what, **facts)

    def flush(self) -> None:
        """After a minute, write how many there were."""
        if time.monotonic() - self._since < MINUTE:
            return
        for kind, times in self._times.items():
            if times > 1:
                self._write("again", kind=" ".join(map(str, kind)), times=times - 1)
        self._since, self._times = time.monotonic(), {}


def _hashes(folder: Path) -> dict[str, str]:
    files = (folder / name for name in LEFT)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}


def _last_line(descriptor: int) -> bytes | None:
    """The last line of a file, without its end; None for an empty file."""
    size = os.fstat(descriptor).st_size
    start = max(0, size - LONGEST_LINE)
    content = os.pread(descriptor, size - start, start)
    if content and not content.endswith(b"\n"):  # cut short by a full disk or a dead machine; it stays, and shows
        os.write(descriptor, b"\n")
        content += b"\n"
    return content[:-1].rpartition(b"\n")[2] if content else None


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


class Verified(NamedTuple):
    """A journal whose lines fit each other."""

    lines: int
    head: str  # the hash of the last line


def verify(file: Path, head: str | None = None) -> Verified:
    """Check a journal line by line.

    Args:
        file: The journal.
        head: A hash that was noted earlier: one of the lines must have it.

    Returns:
        How many lines there are, and the hash of the last.

    Raises:
        UserError: A line does not fit the one before it, or no line has the hash.
    """
    expected, number, seen = FIRST, 0, head in (None, FIRST)
    try:
        with file.open("rb") as journal:
            for number, raw in enumerate(iter(lambda: journal.readline(LONGEST_LINE), b""), 1):
                line = raw.removesuffix(b"\n")
                if _prev(line) != expected:
                    before = (
                        f"line {number - 1} was changed, or lines after it are gone"
                        if number > 1
                        else "it is not the first"
                    )
                    raise UserError(f"{file}: line {number} does not fit what comes before: {before}")
                expected = _hash(line)
                seen = seen or expected == head
    except OSError as error:
        raise UserError(f"cannot read the journal {file}: {error.strerror}") from None
    if not seen:
        raise UserError(f"{file}: no line has the hash {head}: lines were changed or are gone since it was noted")
    return Verified(number, expected)


def _prev(line: bytes) -> str | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    prev = found.get("prev") if isinstance(found, dict) else None
    return prev if isinstance(prev, str) else None
