"""A run on disk: its recipe, its split, one JSON line a round, a summary and the final weights."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save

from fedssd.core import tree
from fedssd.core.tree import Tree
from fedssd.errors import UserError
from fedssd.recipe import Recipe
from fedssd.runs.archive import MOST_OF_A_LINE
from fedssd.runs.read import SUMMED, SUMS
from fedssd.simulation.events import Line
from fedssd.simulation.result import Round, Summary
from fedssd.simulation.setup import Federation

BEGUN = {"recipe.toml", "runs.json"}  # the first thing a run, or many, leaves in its folder
MOST_OF_A_SEAL = 2**28  # bytes of a sealed file
UNDER_WAY = "under-way"  # in a folder of many runs, where batches of them are until they are finished
PATIENCE = 3.0  # seconds to wait for a folder whose writer has just been killed


class Position(NamedTuple):
    """How far a record has come: its lines after the header, their bytes and the checksum of those."""

    lines: int
    bytes: int
    sha256: str


class RunFolder:
    """Where a run is written; nothing is created before the run is known to be able to start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines, self._bytes, self._hash = 0, 0, hashlib.sha256()
        self._lock: int | None = None

    @property
    def record(self) -> Path:
        return self.path / "rounds.jsonl"

    @property
    def position(self) -> Position:
        return Position(self._lines, self._bytes, self._hash.hexdigest())

    def begin(self, federation: Federation, header: Line) -> None:
        """Create the folder, or take an empty or begun one, with recipe, split and the header line."""
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self.hold()
            self._forget_results()
            write_whole(self.path / "recipe.toml", federation.recipe.to_toml().encode(), durable=True)
            federation.partition.save(self.path / "partition.json")
            write_whole(self.record, _as_line(header))
            sync_folder(self.path)
        self._lines, self._bytes, self._hash = 0, 0, hashlib.sha256()

    def go_on(self, federation: Federation, header: Line, position: Position) -> tuple[Line, list[Round]]:
        """Cut the record back to a position that :meth:`holds`, and give its header and rounds.

        What came later never happened. What the run had come to when it stopped is no longer so, and is gone until it
        ends again.
        """
        with explained(self.path):
            old, kept = self._read(position.bytes)
            if old is not None:
                header = {**old, "resumed": [*old.get("resumed", []), {"round": position.lines, **header}]}
            write_whole(self.record, _as_line(header) + kept, durable=True)
            self._forget_results()
            write_whole(self.path / "recipe.toml", federation.recipe.to_toml().encode(), durable=True)
            sync_folder(self.path)
        self._lines, self._bytes, self._hash = position.lines, len(kept), hashlib.sha256(kept)
        return header, [Round.from_json(json.loads(line)) for line in kept.splitlines()]

    def _forget_results(self) -> None:
        for result in (SUMS, "summary.json", "weights.safetensors"):
            (self.path / result).unlink(missing_ok=True)

    def holds(self, position: Position) -> bool:
        """Whether the record still begins with what it had at that position."""
        try:
            body = self._read(position.bytes)[1]
        except OSError:
            return False
        return len(body) == position.bytes and hashlib.sha256(body).hexdigest() == position.sha256

    def has_rounds(self) -> bool:
        """Whether a round has ever been recorded here."""
        return self.record.is_file() and bool(self._read(1)[1])

    def _read(self, most: int) -> tuple[Line | None, bytes]:
        """The header line, if it can be read, and at most so many bytes after it."""
        with self.record.open("rb") as file:
            first, body = file.readline(MOST_OF_A_LINE), file.read(min(most, os.fstat(file.fileno()).st_size))
        try:
            header = json.loads(first)
        except (ValueError, RecursionError):
            return None, body
        return header if isinstance(header, dict) else None, body

    def add(self, one: Round) -> None:
        """One more round, on disk before the next one starts."""
        text = _as_line(one.to_json())
        with explained(self.path), self.record.open("ab") as file:
            file.write(text)
        self._lines, self._bytes = self._lines + 1, self._bytes + len(text)
        self._hash.update(text)

    def sync(self) -> None:
        """See the record through to the disk, so that no checkpoint speaks of lines that a power cut took."""
        with explained(self.path), self.record.open("rb") as file:
            os.fsync(file.fileno())

    def finish(self, summary: Summary, weights: Tree) -> None:
        """The summary and the global weights, each written aside and renamed, and the checksums of all that is left."""
        with explained(self.path):
            (self.path / SUMS).unlink(missing_ok=True)
            flat = {name: leaf.contiguous().cpu() for name, leaf in tree.flatten(weights).items()}
            write_whole(self.path / "weights.safetensors", save(flat))
            write_json(self.path / "summary.json", summary.to_json())
            left = {name: self.path / name for name in SUMMED}
            sums = {name: hashlib.sha256(file.read_bytes()) for name, file in left.items() if file.is_file()}
            lines = "".join(f"{one.hexdigest()}  {name}\n" for name, one in sums.items())
            write_whole(self.path / SUMS, lines.encode())

    def hold(self) -> None:
        """Keep every other process out of the folder until :meth:`release` or this one's end, however it comes."""
        if self._lock is not None:
            return
        with explained(self.path):
            self._lock = os.open(self.path, os.O_RDONLY)
        limit = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > limit:
                    self.release()
                    raise UserError(f"another fedssd is writing to {self.path}: wait for it, or end it") from None
                time.sleep(0.05)
            except OSError:
                return  # a file system without locks

    def release(self) -> None:
        """Let others in again."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _as_line(content: Line) -> bytes:
    return (json.dumps(content, allow_nan=False) + "\n").encode()


def run_name(recipe: Recipe) -> str:
    """What a run's folder beside others is called: ``fedssd+fedprox-0``."""
    method = "".join(letter if letter.isalnum() or letter in "+-_" else "-" for letter in recipe.method)
    return f"{method}-{recipe.seed}"


def claim(path: Path, resume: bool = False) -> None:
    """Create an output folder, or say why it cannot be used."""
    refuse_taken(path, resume)
    with explained(path):
        path.mkdir(parents=True, exist_ok=True)


def refuse_taken(path: Path, resume: bool = False) -> None:
    """Refuse a folder that holds something; to ``resume``, that may be what a run of ours began."""
    with explained(path):
        names = {entry.name for entry in path.iterdir() if not entry.name.endswith(".part")} if path.is_dir() else set()
    if not names or (resume and names & BEGUN):
        return
    if resume:
        what = "already holds something, and no recipe.toml or runs.json that says what to go on with"
        raise UserError(f"{path} {what}: put it back, or move the folder away")
    raise UserError(f"output folder {path} already holds something: name another with --out")


def write_json(path: Path, content: Any) -> None:
    """A JSON file that is either whole or absent."""
    write_whole(path, (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def write_whole(path: Path, content: bytes, durable: bool = False) -> None:
    """A file with this content or, whatever happens on the way, with what it had before.

    ``durable`` waits until the disk has the content, so that a power cut cannot leave the name without it; whether the
    name itself outlasts one is up to :func:`sync_folder`.
    """
    aside = path.with_name(path.name + ".part")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW  # a link would let others choose what is written
        with os.fdopen(os.open(aside, flags, 0o666), "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        with suppress(OSError):  # what is half written only takes up room
            aside.unlink()
        raise


def sync_folder(path: Path) -> None:
    """See a folder's names through to the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class UnusableError(Exception):
    """Why what is on disk cannot be gone on from, in a few words."""


def sealed(content: dict[str, Any]) -> bytes:
    """A JSON file with its own checksum; there is exactly one way to write each content."""
    inner = json.dumps(content, ensure_ascii=False, allow_nan=False)
    return f'{{"sha256": "{hashlib.sha256(inner.encode()).hexdigest()}", "content": {inner}}}\n'.encode()


def unsealed(path: Path) -> dict[str, Any]:
    """The content of a sealed file, or :class:`UnusableError` if a single bit of it is another."""
    written = bytes_of(path, MOST_OF_A_SEAL)
    try:
        content = json.loads(written)["content"]
        intact = written == sealed(content)
    except (ValueError, KeyError, TypeError, RecursionError):
        intact = False
    if not intact or not isinstance(content, dict):
        raise UnusableError("its checksum does not fit")
    return content


def bytes_of(path: Path, most: int) -> bytes:
    """A file's content; no link is followed, as what it leads to may be somebody else's, and no pipe is waited for."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise UnusableError(f"{path.name} has {size:,} bytes, {most:,} at most are expected")
            return file.read()
    except OSError as error:
        why = "it is a link" if path.is_symlink() else error.strerror
        raise UnusableError(f"{path.name} cannot be read: {why}") from None


class DiskError(UserError):
    """A folder that can no longer be written to."""


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a failing disk into one clear line."""
    try:
        yield
    except OSError as error:
        raise DiskError(f"cannot write to {path}: {error.strerror or error}") from None
