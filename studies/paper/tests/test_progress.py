"""Progress over cells, with a clock of our own."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from fedssd.simulation.events import Event
from fedssd.simulation.result import Round
from studies.paper.progress import CellProgress

pytestmark = pytest.mark.quick


def test_work_done_is_counted_on_disk_and_weighted(tmp_path: Path) -> None:
    now = [0.0]
    stream = io.StringIO()
    work = {"a/fedavg-0": (10.0, 2), "a/moon-0": (30.0, 2), "b/fedavg-0": (60.0, 4)}
    progress = CellProgress(work, guess=100.0, stream=stream, clock=lambda: now[0])
    listen = progress.begin({name: tmp_path / name for name in ("a/fedavg-0", "a/moon-0")})
    (tmp_path / "a/fedavg-0").mkdir(parents=True)
    (tmp_path / "a/fedavg-0/rounds.jsonl").write_text("header\none\ntwo\n")
    assert progress.done() == (pytest.approx(0.10), 1)
    now[0] = 30.0
    listen(Event("fedavg seed 0", 2, 4, Round(2, 0, 0, accuracy=0.5)))
    line = stream.getvalue()
    assert line.startswith("1/3 cells  10 %  fedavg seed 0: 50.0 %  about ")
    progress.begin({"b/fedavg-0": tmp_path / "b/fedavg-0"})
    (tmp_path / "b/fedavg-0").mkdir(parents=True)
    (tmp_path / "b/fedavg-0/rounds.jsonl").write_text("header\none\ntwo\nthr")
    done, cells = progress.done()
    assert done == pytest.approx((10 + 30 + 60 * 2 / 4) / 100)  # a line cut short does not count
    assert cells == 2
    assert progress.left(0.5) == pytest.approx(30.0)  # half the work took 30 s
    assert progress.left(0.0) == pytest.approx(70.0)  # nothing measured: the guess of 100 s less 30
    assert progress.left(0.1) == pytest.approx((270 + 70) / 2)  # a tenth took 30 s; half way to trusting that


def test_what_an_interrupted_batch_brings_took_no_time_now(tmp_path: Path) -> None:
    """Six of ten rounds were there; in 10 s two more came, so the last two take 10 s, not 2.5."""
    now = [0.0]
    (tmp_path / "a").mkdir()
    record = tmp_path / "a" / "rounds.jsonl"
    record.write_text("header\n" + "line\n" * 6)
    progress = CellProgress({"a": (100.0, 10)}, guess=20.0, stream=io.StringIO(), clock=lambda: now[0])
    progress.begin({"a": tmp_path / "a"})
    assert progress.left(progress.done()[0]) == pytest.approx(20.0)
    record.write_text("header\n" + "line\n" * 8)
    now[0] = 10.0
    assert progress.done() == (pytest.approx(0.8), 0)
    assert progress.left(0.8) == pytest.approx(10.0)
    record.write_text("header\n" + "line\n" * 5)  # cut back to its checkpoint
    assert progress.left(0.5) == pytest.approx(10.0)


def test_a_note_is_said_once() -> None:
    stream = io.StringIO()
    progress = CellProgress({}, 1.0, stream)
    for _ in range(2):
        progress(Event("x", 0, 1, note="on a GPU"))
    assert stream.getvalue() == "on a GPU\n"
