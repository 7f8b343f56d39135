"""What a node remembers between rounds, each memory with the round that left it.

A reply can be lost or refused after the node has moved on. So a node keeps the memory it started from beside the one it
ended with, and the server names the last round it accepted: the next round starts from that round's memory, and what
was never accepted is forgotten. Otherwise FedCurv, say, would subtract what was never added.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Protocol

from fedssd.core import tree
from fedssd.core.tree import Tree
from fedssd.errors import UserError
from fedssd.flower.library import ConfigRecord, Context
from fedssd.flower.messages import NEVER
from fedssd.flower.packing import UnreadableError, pack, unpack

LONGEST_HEAD = 1 << 16  # bytes of a file's first line
Memories = dict[int, bytes]  # by the round that left them, packed


class Keeper(Protocol):
    """Where a node's memories are between two rounds."""

    def load(self, run: str) -> Memories: ...

    def save(self, run: str, memories: Memories) -> None: ...


class InContext:
    """In Flower's state of the node: lost when the node restarts, and when a run is resumed as a new one."""

    RECORD = "fedssd-memory"

    def __init__(self, context: Context) -> None:
        self._state = context.state

    def load(self, run: str) -> Memories:
        record = self._state.config_records.get(self.RECORD)
        if record is None or record.get("run") != run:
            return {}
        rounds = (key for key in record if key != "run")
        return {int(key): bytes(record[key]) for key in rounds}  # type: ignore[arg-type]

    def save(self, run: str, memories: Memories) -> None:
        kept = {str(round_): content for round_, content in memories.items()}
        self._state[self.RECORD] = ConfigRecord({"run": run, **kept})


class InFolder:
    """In a folder of the node's own: survives a restart of the node and a resumed run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, run: str) -> Memories:
        try:
            with self._file(run).open("rb") as file:
                lengths = {int(round_): int(length) for round_, length in json.loads(file.readline(LONGEST_HEAD))}
                whole = file.tell() + sum(lengths.values()) == os.fstat(file.fileno()).st_size
                return {round_: file.read(length) for round_, length in lengths.items()} if whole else {}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise UserError(f"cannot read the node's memory {self._file(run)}: {error.strerror}") from None
        except (ValueError, TypeError, RecursionError, OverflowError):  # a power cut may leave half a file
            return {}

    def save(self, run: str, memories: Memories) -> None:
        head = json.dumps([[round_, len(content)] for round_, content in memories.items()]).encode()
        aside = self._file(run).with_suffix(".part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            aside.write_bytes(b"\n".join([head, b"".join(memories.values())]))
            os.replace(aside, self._file(run))
        except OSError as error:
            raise UserError(f"cannot write the node's memory to {self._folder}: {error.strerror}") from None

    def _file(self, run: str) -> Path:
        if not run.isalnum():
            raise UserError(f"expected a run's name of letters and digits, got {run!r}")
        return self._folder / f"{run}.memory"


class NodeMemory:
    """One client's memory in one run."""

    def __init__(self, keeper: Keeper, run: str) -> None:
        self._keeper, self._run = keeper, run

    def at(self, accepted: int, first: Tree) -> tuple[Tree, bool]:
        """The memory the last accepted round left, and whether it had to be made anew although there should be one."""
        if accepted == NEVER:
            return first, False
        if not tree.leaves(first):
            return first, False
        kept = self._keeper.load(self._run).get(accepted)
        if kept is None:
            return first, True
        try:
            return unpack(kept), False
        except UnreadableError:  # half a file, say: the node says so and begins anew
            return first, True

    def keep(self, accepted: int, began: Tree, round_: int, ended: Tree) -> None:
        """Remember where this round began and where it ended; which of the two counts, the server will say."""
        if not tree.leaves(ended):
            return
        start = {} if accepted == NEVER else {accepted: pack(began)}
        self._keeper.save(self._run, {**start, round_: pack(ended)})
