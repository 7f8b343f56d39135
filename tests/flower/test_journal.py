"""The journal: every line bound to the one before, written by several programs at once."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_roster import KeyedLab

from fedssd.cli import main
from fedssd.errors import UserError
from fedssd.flower import journal as journal_module
from fedssd.flower.enrolment import Enrolment
from fedssd.flower.journal import FILE, FIRST, Journal, Sparing, verify
from fedssd.flower.server import serve
from fedssd.flower.settings import Settings


def three(folder: Path) -> list[bytes]:
    """A journal of three lines, as they are in the file."""
    journal = Journal(folder, "door")
    for number in range(3):
        journal.add("came in", client=number, address="192.0.2.1")
    return (folder / FILE).read_bytes().splitlines()


def test_a_line_holds_the_hash_of_the_one_before(tmp_path: Path) -> None:
    lines = three(tmp_path)
    assert [json.loads(line)["prev"] for line in lines] == [
        FIRST,
        *(hashlib.sha256(one).hexdigest() for one in lines[:2]),
    ]
    assert verify(tmp_path / FILE) == (3, hashlib.sha256(lines[2]).hexdigest())
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    (tmp_path / FILE).write_bytes(b"")
    assert verify(tmp_path / FILE) == (0, FIRST)


def test_every_changed_byte_shows(tmp_path: Path) -> None:
    """Whatever byte of whatever line: at the next line, or for the last one by the hash that was noted."""
    lines = three(tmp_path)
    whole, head = (tmp_path / FILE).read_bytes(), verify(tmp_path / FILE).head
    for place in range(len(whole)):
        (tmp_path / FILE).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(UserError):
            verify(tmp_path / FILE, head)
    changed = lines[1].replace(b"192.0.2.1", b"192.0.2.9")
    (tmp_path / FILE).write_bytes(b"\n".join([lines[0], changed, lines[2], b""]))
    with pytest.raises(UserError, match="line 3 does not fit what comes before: line 2 was changed"):
        verify(tmp_path / FILE)


@pytest.mark.parametrize(
    ("kept", "why"), [([0, 2], "line 2 does not fit"), ([1, 2], "line 1 does not"), ([1, 0, 2], "line 1")]
)
def test_lines_that_are_gone_or_in_another_order_show(kept: list[int], why: str, tmp_path: Path) -> None:
    lines = three(tmp_path)
    (tmp_path / FILE).write_bytes(b"".join(lines[number] + b"\n" for number in kept))
    with pytest.raises(UserError, match=why):
        verify(tmp_path / FILE)


def test_an_end_that_is_gone_shows_by_the_hash_that_was_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = three(tmp_path)
    assert main(["federation", "journal", "verify", str(tmp_path)]) == 0
    head = capsys.readouterr().out.split()[-1]
    Journal(tmp_path, "door").add("came in")
    assert main(["federation", "journal", "verify", str(tmp_path), "--head", head]) == 0
    (tmp_path / FILE).write_bytes(b"".join(line + b"\n" for line in lines[:2]))
    assert main(["federation", "journal", "verify", str(tmp_path)]) == 0
    assert main(["federation", "journal", "verify", str(tmp_path), "--head", head]) == 2
    assert "no line has the hash" in capsys.readouterr().err


WRITER = """
import sys
from pathlib import Path
from fedssd.flower.journal import Journal
print("ready", flush=True)
sys.stdin.readline()
for number in range(100):
    Journal(Path(sys.argv[1]), sys.argv[2]).add("came in", number=number)
"""


def test_programs_write_at_once(tmp_path: Path) -> None:
    """As the door and the server's app do: no line is lost, and all fit each other."""
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    writers = [subprocess.Popen([*command, f"writer {one}"], text=True, **pipes) for one in range(3)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
    assert verify(tmp_path / FILE).lines == 300


def test_a_line_cut_short_stays_and_shows(tmp_path: Path) -> None:
    three(tmp_path)
    os.truncate(tmp_path / FILE, (tmp_path / FILE).stat().st_size - 20)
    Journal(tmp_path, "door").add("came in")
    with pytest.raises(UserError, match="line 3 does not fit"):
        verify(tmp_path / FILE)


def test_a_journal_is_no_link_and_does_not_stop_its_writer(tmp_path: Path) -> None:
    told: list[str] = []
    (tmp_path / "elsewhere").touch()
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    Journal(tmp_path, "door", told.append).add("came in")
    assert "cannot be written" in told[0]
    assert (tmp_path / "elsewhere").read_bytes() == b""


def test_a_flood_is_counted_and_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, written = [0.0], list[Any]()
    monkeypatch.setattr(journal_module.time, "monotonic", lambda: clock[0])
    sparing = Sparing(lambda what, **facts: written.append((what, facts)))
    for _ in range(1000):
        sparing.add("refused", (401, "192.0.2.1"), address="192.0.2.1")
    for number in range(1000):
        sparing.add("refused", (401, f"2001:db8::{number}"))
    assert len(written) == journal_module.MOST + 1
    clock[0] += 61
    sparing.add("refused", (401, "192.0.2.1"))
    again = {facts["kind"]: facts["times"] for what, facts in written if what == "again"}
    assert again["refused 401 192.0.2.1"] == 999
    assert again["others"] == 1000 - (journal_module.MOST - 1) - 1


def test_a_run_is_in_it_with_the_hashes_of_what_it_left(tmp_path: Path) -> None:
    lab = KeyedLab(tmp_path, method="fedavg", rounds=2)
    lab.spoil(1, 2, lambda reply: None)
    journal = Journal(tmp_path, "server")
    run = tmp_path / "run"
    with journal.noting_a_run(run, recipe=lab.recipe.hash):
        chosen = Settings(wait=0.5, round_timeout=1.0)
        tell = journal.also(lambda text: None)
        serve(lab.grid, lab.recipe, lab.samples, chosen, run, None, Enrolment(lab.enrolment), tell)
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text(encoding="utf-8").splitlines()]
    assert [lines[0]["what"], lines[-1]["what"]] == ["run begun", "run ended"]
    assert lines[0]["recipe"] == lab.recipe.hash
    assert [line for line in lines if "client 1 is left out: no reply" in line.get("text", "")]
    for name in journal_module.LEFT:
        assert lines[-1][name] == hashlib.sha256((run / name).read_bytes()).hexdigest()
    verify(tmp_path / FILE)


def test_a_run_that_fails_is_in_it(tmp_path: Path) -> None:
    with pytest.raises(UserError), Journal(tmp_path, "server").noting_a_run(tmp_path / "run"):
        raise UserError("too few nodes")
    assert '"why": "too few nodes"' in (tmp_path / FILE).read_text(encoding="utf-8").splitlines()[-1]
