"""Progress over cells: how many are done, which round the latest is in, and the time left, judged by work done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from fedssd.cli.progress import EVERY, Remarks, spoken

if TYPE_CHECKING:
    from fedssd.experiment.events import Event, Listener


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
        self.cells_before = 0
        self.batch: dict[str, Path] = {}
        self.remarks = Remarks("")

    def begin(self, places: Mapping[str, Path]) -> Listener:
        """What :func:`run_cells` asks for: told a batch's cells and their folders, gives its listener."""
        self.before += sum(self.work[name][0] for name in self.batch)
        self.cells_before += len(self.batch)
        self.batch = dict(places)
        return self

    def __call__(self, event: Event) -> None:
        for text in self.remarks.new(event):
            print(text, file=self.stream, flush=True)
        if event.line is None or self.clock() - self.printed < EVERY:
            return
        self.printed = self.clock()
        print(self.line(event), file=self.stream, flush=True)

    def line(self, event: Event) -> str:
        """Where things stand."""
        done, cells = self.done()
        accuracy = ((event.line or {}).get("global") or {}).get("acc")
        latest = event.run if accuracy is None else f"{event.run}: {100 * accuracy:.1f} %"
        return f"{cells}/{len(self.work)} cells  {100 * done:.0f} %  {latest}  about {spoken(self.left(done))} left"

    def done(self) -> tuple[float, int]:
        """The share of the work that is done, and the cells that are."""
        work, cells = self.before, self.cells_before
        for name, place in self.batch.items():
            amount, rounds = self.work[name]
            written = _rounds_in(place / "rounds.jsonl")
            work += amount * min(1.0, written / rounds)
            cells += written >= rounds
        return work / self.total, cells

    def left(self, done: float) -> float:
        """Seconds to go: by the guess at first, more and more by what the work done so far has taken."""
        spent = self.clock() - self.begun
        trust = min(1.0, done / TRUSTED)
        measured = spent / done - spent if done > 0 else 0.0
        return trust * measured + (1 - trust) * max(self.guess - spent, 0.0)


def _rounds_in(record: Path) -> int:
    try:
        return max(0, record.read_bytes().count(b"\n") - 1)
    except OSError:  # not begun, or moved to its place a moment ago
        return 0
