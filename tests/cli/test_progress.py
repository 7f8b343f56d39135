"""How long the rest takes, and what a log shows of it."""

from __future__ import annotations

import io

import pytest

from fedssd.cli.progress import Bar, Estimate, Lines, listening, spoken
from fedssd.simulation.events import Event
from fedssd.simulation.result import Round

pytestmark = pytest.mark.quick


class Clock:
    """A clock that stands still unless told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def ended(done: int, total: int, accuracy: float = 0.5) -> Event:
    return Event("fedssd seed 0", done, total, Round(done, 0, 0, accuracy=accuracy))


def test_nothing_is_promised_before_the_first_round() -> None:
    estimate = Estimate(Clock())
    assert estimate.left() is None
    estimate.update(0, 20)
    assert estimate.left() is None


@pytest.mark.parametrize(("seconds", "left"), [(2, None), (30, 19 * 30)])
def test_a_first_round_that_is_mostly_starting_up_promises_nothing(seconds: float, left: float | None) -> None:
    clock = Clock()
    estimate = Estimate(clock)
    estimate.update(0, 20)
    clock.now += seconds
    estimate.update(1, 20)
    assert estimate.left() == left


def test_a_steady_pace_and_time_passing() -> None:
    clock = Clock()
    estimate = Estimate(clock)
    estimate.update(0, 10)
    clock.now += 6
    estimate.update(2, 10)  # 3 s a round, 8 to go
    assert estimate.left() == 24
    clock.now += 4
    assert estimate.left() == 20
    clock.now += 400
    assert estimate.left() == 0


def test_a_slow_start_is_forgotten_and_a_resumed_job_counts_only_its_own_rounds() -> None:
    clock = Clock()
    estimate = Estimate(clock)
    estimate.update(50, 60)
    clock.now += 30  # starting up
    estimate.update(51, 60)
    assert estimate.left() == 9 * 30
    for done in (52, 53, 54):
        clock.now += 2
        estimate.update(done, 60)
    assert estimate.left() == 6 * 2


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min 0 s"), (125.2, "2 min 5 s"), (3599.7, "1 h 0 min"), (12000, "3 h 20 min")],
)
def test_durations_for_people(seconds: float, words: str) -> None:
    assert spoken(seconds) == words


def test_lines_come_every_few_seconds_notes_once_and_the_end_always() -> None:
    clock, stream = Clock(), io.StringIO()
    lines = Lines(stream, "fedssd on digits", clock)
    for _ in range(2):
        lines(Event("fedssd", 0, 4, note="reference engine on cpu (asked for)"))
    for done in (1, 2, 3, 4):
        clock.now += 3
        lines(ended(done, 4, 0.9))
    assert stream.getvalue().splitlines() == [
        "fedssd on digits",
        "reference engine on cpu (asked for)",
        "2/4 rounds  fedssd seed 0: 90.0 %  about 6 s left",
        "4/4 rounds  fedssd seed 0: 90.0 %",
    ]


def test_a_round_without_evaluation_has_no_accuracy() -> None:
    clock, stream = Clock(), io.StringIO()
    Lines(stream, clock=clock)(Event("fedavg seed 1", 1, 1, Round(1, 0, 0)))
    assert stream.getvalue() == "1/1 rounds  fedavg seed 1\n"


def test_quiet_says_nothing() -> None:
    stream = io.StringIO()
    with listening(True, "", stream) as listen:
        listen(ended(1, 1))
    assert stream.getvalue() == ""


def test_a_pipe_gets_lines_and_a_terminal_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(False, "", io.StringIO()) as listen:
        assert isinstance(listen, Lines)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    with listening(False, "", terminal) as listen:
        assert isinstance(listen, Bar)
        listen(Event("fedssd", 0, 2, note="a remark with [brackets]"))
        listen(ended(1, 2))
    assert "a remark with [brackets]" in terminal.getvalue()


def test_without_rich_a_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("fedssd.cli.progress._has_rich", lambda: False)
    with listening(False, "", terminal) as listen:
        assert isinstance(listen, Lines)
