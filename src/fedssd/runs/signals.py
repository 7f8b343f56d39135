"""Ctrl-C and SIGTERM: they end a run between two moments at which its state and its files agree."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM came: the same as Ctrl-C, but for the exit status."""


def terminate(_signum: int, _frame: FrameType | None) -> None:
    """A signal handler: what is under way stops here."""
    raise Terminated


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises :class:`Terminated` while the block runs; elsewhere than in the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@contextmanager
def unbroken() -> Iterator[None]:
    """Signals that come while the block runs are heard at its end: memory and disk change together or not at all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(signum: int, _frame: FrameType | None) -> None:
        held.append(signum)

    before: dict[int, Any] = {number: signal.signal(number, hold) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        for number in held:
            signal.raise_signal(number)
