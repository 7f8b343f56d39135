"""How often checkpoints are written."""

from __future__ import annotations

import time

from fedssd.experiment.recipe import interval

SHARE = 100  # auto: a checkpoint may cost a hundredth of the time since the last one
SOONEST = 5.0  # auto: seconds between checkpoints that cost next to nothing


class Cadence:
    """When the next checkpoint is due."""

    def __init__(self, every: str) -> None:
        self.kind, self.amount = interval(every)
        self._last = time.monotonic()
        self._cost = 0.0

    @property
    def never(self) -> bool:
        return self.kind == "never"

    def due(self, number: int) -> bool:
        """Whether the checkpoint of this round is to be written now."""
        if self.kind == "rounds":
            return number % int(self.amount) == 0
        wanted = self.amount if self.kind == "seconds" else max(SOONEST, SHARE * self._cost)
        return not self.never and time.monotonic() - self._last >= wanted

    def wrote(self, seconds: float) -> None:
        """A checkpoint has been written and took this long."""
        self._last, self._cost = time.monotonic(), seconds
