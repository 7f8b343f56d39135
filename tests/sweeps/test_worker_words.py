"""What workers say comes another way than their results, and is heard out."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from fedssd.simulation.events import Event
from fedssd.sweeps.workers import _Relay

pytestmark = pytest.mark.quick


def test_words_that_come_after_the_results_are_heard() -> None:
    channel: Any = queue.Queue()
    heard: list[tuple[int, int]] = []
    relay = _Relay(channel, 10, 13, lambda event: heard.append((event.done, event.total)))
    channel.put((1, Event("a", 1, 2)))
    relay.pass_on()
    assert heard == [(11, 13)]
    late = [(1, Event("a", 2, 2)), None, (1, Event("b", 1, 1)), None]
    relay.pass_on()  # nothing more yet, and no waiting for it
    threading.Timer(0.05, lambda: [channel.put(word) for word in late]).start()
    relay.pass_on(until=2)
    assert heard == [(11, 13), (12, 13), (13, 13)]
    assert channel.empty()
