"""Keep the programs of one machine running until somebody ends them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from fedssd.errors import UserError
from fedssd.flower.command import another_version
from fedssd.flower.processes import Processes

LOOK = 1.0  # seconds between two looks at what runs
PAUSE = 2.0  # seconds before what has ended is started again
MOST_STARTS = 20  # a minute, before something is wrong that starting again does not mend


class Programs(Protocol):
    """Programs that belong together."""

    processes: Processes
    speaker: str  # the program whose words are passed on

    def start(self) -> None:
        """Start everything."""

    @property
    def starts(self) -> Mapping[str, Callable[[], None]]:
        """How each is started again."""

    @property
    def ready(self) -> str:
        """What to say when everything runs."""


def keep_running(programs: Programs, tell: Callable[[str], None]) -> None:
    """Start programs, start again what ends, and end everything at SIGTERM or SIGINT."""
    ended = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in numbers}
    processes, again = programs.processes, list[float]()
    try:
        if processes.end_all():
            tell("ended what an earlier one had left")
        if note := another_version():
            tell(note)
        programs.start()
        tell(programs.ready)
        heard = 0
        while not ended.wait(LOOK):
            lines, heard = processes.lines_since(programs.speaker, heard)
            for line in lines:
                tell(line)
            for name, start in programs.starts.items():
                if name in processes.running() or ended.wait(PAUSE):
                    continue
                again = [*(then for then in again if time.monotonic() - then < 60), time.monotonic()]
                if len(again) > MOST_STARTS:
                    raise UserError(f"{name} ends again and again: {processes.last_words(name)}")
                tell(f"{name} has ended and is started again: {processes.last_words(name)}")
                start()
    finally:
        processes.end_all()
        for number, handler in before.items():
            signal.signal(number, handler)
