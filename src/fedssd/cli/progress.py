"""Progress on stderr: a bar with the time left on a terminal, a line every few seconds anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from fedssd.simulation.events import Event, Listener

EVERY = 5.0  # seconds between lines
TELLING = 20.0  # seconds of a first round that say something about the next
WARM_UP = 3  # rounds after which the first one, slowed by starting up, no longer counts


class Estimate:
    """How long the rest takes, judged by the rounds done so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.start: tuple[float, int] | None = None  # when we began to look, and the rounds done by then
        self.first: tuple[float, int] | None = None  # when the first round after that ended
        self.last = (0.0, 0)
        self.total = 0

    def update(self, done: int, total: int) -> None:
        """Take note that ``done`` rounds of ``total`` have ended."""
        now = self.clock()
        self.total = total
        if self.start is None:
            self.start = (now, done)
        elif self.first is None and done > self.start[1]:
            self.first = (now, done)
        self.last = (now, done)

    def left(self) -> float | None:
        """Seconds to go; None before the first round has ended, or while a short one, mostly starting up, is all."""
        if self.start is None or self.first is None:
            return None
        if self.last[1] - self.start[1] == 1 and self.last[0] - self.start[0] < TELLING:
            return None
        warm = self.last[1] - self.first[1] >= WARM_UP
        since, before = self.first if warm else self.start
        per_round = (self.last[0] - since) / (self.last[1] - before)
        ended = (self.total - self.last[1]) * per_round
        return max(0.0, ended - (self.clock() - self.last[0]))


def spoken(seconds: float) -> str:
    """A duration for people: 8 s, 2 min 5 s, 3 h 20 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _time_left(estimate: Estimate) -> str:
    left = estimate.left()
    if left is None:
        return ""
    return "finishing" if estimate.last[1] == estimate.total else f"about {spoken(left)} left"


def _result(event: Event) -> str:
    """Which run the round belongs to, and how good its global model is now."""
    accuracy = None if event.round is None else event.round.accuracy
    return event.run if accuracy is None else f"{event.run}: {100 * accuracy:.1f} %"


class Remarks:
    """What is worth saying once: an opening as soon as the work is known to be possible, then every new note."""

    def __init__(self, opening: str) -> None:
        self.opening = opening
        self.said = {""}

    def new(self, event: Event) -> list[str]:
        """What this event adds."""
        fresh = [text for text in dict.fromkeys((self.opening, event.note)) if text not in self.said]
        self.said.update(fresh)
        return fresh


class Lines:
    """A line every few seconds, for logs and pipes."""

    def __init__(self, stream: TextIO, opening: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.stream, self.clock = stream, clock
        self.estimate, self.remarks = Estimate(clock), Remarks(opening)
        self.printed = clock()

    def __call__(self, event: Event) -> None:
        self.estimate.update(event.done, event.total)
        for text in self.remarks.new(event):
            print(text, file=self.stream, flush=True)
        finished = event.done == event.total
        if event.round is None or (self.clock() - self.printed < EVERY and not finished):
            return
        self.printed = self.clock()
        left = "" if finished else _time_left(self.estimate)
        parts = [f"{event.done}/{event.total} rounds", _result(event), left]
        print("  ".join(part for part in parts if part), file=self.stream, flush=True)


class Bar:
    """rich's bar, on a terminal; it goes away when the work is done."""

    def __init__(self, stream: TextIO, opening: str = "") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
        from rich.text import Text

        estimate = self.estimate = Estimate()
        self.remarks = Remarks(opening)

        class TimeLeft(ProgressColumn):
            """Drawn anew several times a second, so that it counts down between rounds."""

            def render(self, task: Task) -> Text:
                return Text(_time_left(estimate))

        bar = BarColumn(bar_width=14, complete_style="cyan", finished_style="green")
        columns = (bar, TextColumn("{task.description}", markup=False), TimeLeft())
        self.progress = Progress(*columns, console=Console(file=stream, highlight=False), transient=True)
        self.task = self.progress.add_task("starting", total=None)

    def __call__(self, event: Event) -> None:
        self.estimate.update(event.done, event.total)
        for text in self.remarks.new(event):
            self.progress.console.print(text, markup=False)
        self.progress.update(self.task, completed=event.done, total=event.total)
        if event.round is not None:
            self.progress.update(self.task, description=f"{event.done}/{event.total} rounds  {_result(event)}")


@contextmanager
def listening(quiet: bool, opening: str = "", stream: TextIO | None = None) -> Iterator[Listener]:
    """A listener that shows progress while the block runs."""
    stream = stream or sys.stderr
    if quiet:
        yield lambda event: None
    elif not stream.isatty() or not _has_rich():
        yield Lines(stream, opening)
    else:
        bar = Bar(stream, opening)
        with bar.progress:
            yield bar


def _has_rich() -> bool:
    """A bare machine may have torch and little else."""
    try:
        import rich.progress  # noqa: F401
    except ImportError:
        return False
    return True
