"""What a running experiment tells whoever listens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fedssd.simulation.result import Round

Line = dict[str, Any]  # a line of rounds.jsonl


class Event(NamedTuple):
    """A round that ended, or a remark worth showing once."""

    run: str
    done: int  # rounds so far, over the whole job
    total: int
    round: Round | None = None
    note: str = ""
    folder: Path | None = None  # of the run whose round ended, where it is written to one


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener that hears nothing."""
