"""What runs say while they train: a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from fedssd import Event

EVERY = 5.0  # seconds


def progress() -> Callable[[Event], None]:
    """Return a listener that prints to stderr."""
    spoken = [0.0]

    def listen(event: Event) -> None:
        if event.round is not None and time.monotonic() - spoken[0] > EVERY:
            spoken[0] = time.monotonic()
            print(f"  {event.done} of {event.total} rounds; {event.run}", file=sys.stderr, flush=True)

    return listen
