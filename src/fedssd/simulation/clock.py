"""Where a round's time goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Seconds by purpose, with the device idle at every reading."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def move(self, purpose: str, other: str, seconds: float) -> None:
        """Count seconds of one purpose as those of another."""
        self.seconds[purpose] -= seconds
        self.seconds[other] = self.seconds.get(other, 0.0) + seconds

    @contextmanager
    def measure(self, purpose: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds[purpose] = self.seconds.get(purpose, 0.0) + time.perf_counter() - begun
