"""Progress over cells: how many are done, which round the latest is in, and the time left, judged by work done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from fedssd.cli.progress import EVERY, Remarks, spoken
from fedssd.runs.read import rounds_recorded

if TYPE_CHECKING:
    from fedssd.simulation.events import Event, Listener


TRUSTED = 0.2  # the share of the work after which only measured speed counts


class CellProgress:
    """Counts on disk what the runs of each batch have written: it need not know which process says what."""

    def __init__(
        self,
        work: Mapping[str, tuple[float, int]],  # a cell's name: how much work it is, and its rounds
        guess: float,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.work, self.guess, self.stream, self.clock = work, guess, stream or sys.stderr, clock
        self.begun = self.printed = clock()
        self.total = sum(amount for amount, _ in work.values()) or 1.0
        self.before = 0.0  # work of batches that have ended
        self.brought = 0.0  # work that batches had done before they were interrupted
        self.cells_before = 0
        self.batch: dict[str, Path] = {}
        self.remarks = Remarks("")

    def begin(self, places: Mapping[str, Path]) -> Listener:
        """What :func:`run_cells` asks for: told a batch's cells and their folders, gives its listener."""
        self.before += sum(self.work[name][0] for name in self.batch)
        self.cells_before += len(self.batch)
        self.batch = dict(places)
        self.brought += self._work_in_batch()
        return self

    def __call__(self, event: Event) -> None:
        for text in self.remarks.new(event):
            print(text, file=self.stream, flush=True)
        if event.round is None or self.clock() - self.printed < EVERY:
            return
        self.printed = self.clock()
        print(self.line(event), file=self.stream, flush=True)

    def line(self, event: Event) -> str:
        """Where things stand."""
        done, cells = self.done()
        accuracy = None if event.round is None else event.round.accuracy
        latest = event.run if accuracy is None else f"{event.run}: {100 * accuracy:.1f} %"
        return f"{cells}/{len(self.work)} cells  {100 * done:.0f} %  {latest}  about {spoken(self.left(done))} left"

    def done(self) -> tuple[float, int]:
        """The share of the work that is done, and the cells that are."""
        work = self.before + self._work_in_batch()
        whole = sum(recorded(place, self.work[name][1]) == 1.0 for name, place in self.batch.items())
        return work / self.total, self.cells_before + whole

    def _work_in_batch(self) -> float:
        return sum(self.work[name][0] * recorded(place, self.work[name][1]) for name, place in self.batch.items())

    def left(self, done: float) -> float:
        """Seconds to go: by the guess at first, more and more by what the work done so far has taken.

        What was brought from before an interruption took none of this time.
        """
        spent = self.clock() - self.begun
        brought = self.brought / self.total
        share = max(0.0, done - brought) / (1 - brought) if brought < 1 else 1.0
        trust = min(1.0, share / TRUSTED)
        measured = spent / share - spent if share > 0 else 0.0
        return trust * measured + (1 - trust) * max(self.guess - spent, 0.0)


def recorded(run: Path, rounds: int) -> float:
    """The share of so many rounds that a run folder has on record."""
    return min(1.0, rounds_recorded(run) / rounds)
