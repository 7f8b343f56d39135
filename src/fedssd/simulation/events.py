"""What a running experiment tells whoever listens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

Line = dict[str, Any]  # one round's record


class Event(NamedTuple):
    """A round that ended, or a remark worth showing once."""

    run: str
    done: int  # rounds so far, over the whole job
    total: int
    line: Line | None = None
    note: str = ""
    folder: Path | None = None  # of the run whose round ended, where it is written to one


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener that hears nothing."""
