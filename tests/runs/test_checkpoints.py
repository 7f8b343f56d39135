"""Checkpoints: when they are written, in which order, how many are kept, and a disk that fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from killing import outcome
from stopping import (
    KEYS,
    RUN,
    Captured,
    folder_with_samples,  # noqa: F401  # a fixture that all use
    interrupted,
    one_line,
    whole,
)

import fedssd
from fedssd.cli import main
from fedssd.runs.checkpoint import last_good
from fedssd.runs.folder import RunFolder
from fedssd.runs.loop import SHARE, SOONEST, Cadence


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_disk_that_fails_is_one_line_and_the_checkpoint_stays(
    code: int, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """At every operation in turn, so also in the middle of a checkpoint."""
    expected = whole()
    with monkeypatch.context() as patched:
        count = count_operations(patched, lambda _: None)
        assert main(["run", *RUN, "--out", "counted", "--quiet"]) == 0
    capsys.readouterr()
    for fatal in range(4, count[0], 7):

        def fail(number: int, fatal: int = fatal) -> None:
            if number >= fatal:
                raise OSError(code, os.strerror(code))

        folder = f"failed-{fatal}"
        with monkeypatch.context() as patched:
            count_operations(patched, fail)
            assert main(["run", *RUN, "--out", folder, "--quiet"]) == 2
        said = one_line(capsys)
        assert f"cannot write to {folder}" in said
        assert os.strerror(code) in said
        assert not list(Path(folder).rglob("*.part"))
        assert main(["run", *RUN, "--out", folder, "--resume", "--quiet"]) == 0
        assert outcome(Path(folder)) == expected
        capsys.readouterr()


def count_operations(patched: pytest.MonkeyPatch, each: Callable[[int], None]) -> list[int]:
    """Count what happens to files; ``each`` hears the number and may fail."""
    calls = [0]

    def counted(function: Any) -> Any:
        def call(*args: Any, **keys: Any) -> Any:
            calls[0] += 1
            each(calls[0])
            return function(*args, **keys)

        return call

    for name in ("fsync", "replace"):
        patched.setattr(os, name, counted(getattr(os, name)))
    return calls


def test_a_checkpoint_is_synced_before_it_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted("stopped", rounds=1)
    seen: list[tuple[str, str]] = []
    sync, rename = os.fsync, os.replace

    def name_of(file: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{file}")).name

    monkeypatch.setattr(os, "fsync", lambda file: seen.append(("sync", name_of(file))) or sync(file))
    monkeypatch.setattr(os, "replace", lambda a, b: seen.append(("name", Path(b).name)) or rename(a, b))
    fedssd.run("scaffold", **KEYS, rounds=6, out="stopped", resume=True)
    mine = [step for step in seen if "round-2" in step[1] or step in (("sync", "checkpoint"), ("sync", "rounds.jsonl"))]
    start = mine.index(("sync", "rounds.jsonl"))
    expected = []
    for file in ("round-2.safetensors", "round-2.json"):
        expected += [("sync", f"{file}.part"), ("name", file)]
    assert mine[start + 1 : start + 6] == [*expected, ("sync", "checkpoint")]


@pytest.mark.quick
def test_the_last_two_checkpoints_and_the_beginning_are_kept() -> None:
    folder = interrupted("stopped", rounds=5)
    names = {file.name for file in (folder / "checkpoint").iterdir()}
    kept = {4, 5, last_good(RunFolder(folder))}
    files = {f"round-{number}.{kind}" for number in kept for kind in ("json", "safetensors")}
    assert names == {"round-0.json", "last-good", *files}


@pytest.mark.quick
def test_auto_spends_a_hundredth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 3 s and checkpoints of 2 s: one may come when 200 s have passed since the last."""
    now = [0.0]
    monkeypatch.setattr("fedssd.runs.loop.time.monotonic", lambda: now[0])
    cadence = Cadence("auto")
    cost, rounds, written = 2.0, 1000, 0
    for number in range(1, rounds + 1):
        now[0] += 3.0
        if cadence.due(number):
            now[0] += cost
            cadence.wrote(cost)
            written += 1
    assert SOONEST == 5.0  # the first one, whose cost nobody knows yet, comes after two rounds
    assert written == 1 + (3 * rounds - 6) // 201  # then each after 67 rounds, the first to end at 200 s or more
    assert written * cost <= (3 * rounds) / SHARE + cost


@pytest.mark.quick
@pytest.mark.parametrize(("every", "due"), [("3", [3, 6, 9]), ("25s", [3, 6, 9]), ("1m", [6]), ("never", [])])
def test_rounds_and_times_between_checkpoints(every: str, due: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rounds of ten seconds."""
    now = [0.0]
    monkeypatch.setattr("fedssd.runs.loop.time.monotonic", lambda: now[0])
    cadence, found = Cadence(every), []
    for number in range(1, 11):
        now[0] += 10.0
        if cadence.due(number):
            found.append(number)
            cadence.wrote(0.0)
    assert found == due


@pytest.mark.parametrize("every", ["0", "-1", "1.5", "5x", "m", "", "often", "9" * 5000])
def test_a_wrong_interval_is_refused(every: str, capsys: Captured) -> None:
    assert main(["run", *RUN, f"--checkpoint-every={every}"]) == 2
    assert "checkpoint_every expects" in one_line(capsys)
