"""Programs in the background: what one command starts, a later one ends, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest

from fedssd.errors import UserError
from fedssd.flower import node as node_module
from fedssd.flower.app import write_app
from fedssd.flower.command import Ending
from fedssd.flower.local import SUPEREXEC, SUPERLINK, LocalFederation, node_name
from fedssd.flower.node import REFUSED
from fedssd.flower.processes import Processes, _last_words
from fedssd.flower.settings import Settings
from fedssd.recipe import load_recipe

# A program with a child of its own, as Flower's have; it says so when both run.
SCRIPT = "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
PARENT = [sys.executable, "-c", SCRIPT]


def begun(folder: Path) -> tuple[Processes, int]:
    """A program that is ready, and its child's number."""
    processes = Processes(folder)
    folder.mkdir(exist_ok=True)
    processes.start("parent", PARENT, dict(os.environ), folder)
    processes.wait_until("parent", lambda: processes.log("parent").endswith("\n"))
    return processes, int(processes.log("parent"))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")


@needs_proc
@pytest.mark.parametrize("hard", [False, True])
def test_a_program_ends_with_what_it_started(hard: bool, tmp_path: Path) -> None:
    processes, child = begun(tmp_path)
    assert alive(child)
    assert Processes(tmp_path).running() == ["parent"]  # as another command sees it
    assert processes.stop("parent", hard=hard) == ["parent"]
    assert not alive(child)
    assert processes.running() == []


@needs_proc
@pytest.mark.parametrize("own", [False, True])
def test_what_a_killed_program_has_left_is_ended(own: bool, tmp_path: Path) -> None:
    """The app of a SuperExec that was killed, say: it is in the dead one's session, or in one of its own."""
    processes = Processes(tmp_path)
    child_of_its_own = f"subprocess.Popen(['sleep', '60'], start_new_session={own})"
    script = f"import subprocess; p = {child_of_its_own}; print(p.pid, flush=True)"
    processes.start("superexec", [sys.executable, "-c", f"{script}; p.wait()"], dict(os.environ), tmp_path)
    processes.wait_until("superexec", lambda: processes.log("superexec").endswith("\n"))
    child, leader = int(processes.log("superexec")), int(processes.known()["superexec"]["pid"])
    os.kill(leader, signal.SIGKILL)
    while alive(leader):
        time.sleep(0.01)
    assert processes.running() == []
    assert Processes(tmp_path / "elsewhere").end_all() == []
    assert alive(child)
    assert Processes(tmp_path).end_all() == ["superexec"]
    assert not alive(child)


@needs_proc
def test_a_process_with_a_number_that_was_ours_is_left_alone(tmp_path: Path) -> None:
    """The book says when each began; somebody else's process of the same number began at another time."""
    processes, child = begun(tmp_path)
    book = tmp_path / "processes.json"
    true = book.read_text(encoding="utf-8")
    noted = json.loads(true)
    noted["parent"]["started"] = "1"
    book.write_text(json.dumps(noted), encoding="utf-8")
    assert processes.running() == []
    assert processes.stop("parent") == []
    assert alive(child)
    book.write_text(true, encoding="utf-8")
    assert processes.end_all() == ["parent"]
    assert not alive(child)
    assert processes.known() == {}


WRITES = "import os; os.mkdir('folder'); open('folder/file', 'w').close(); print('written')"


@pytest.mark.parametrize("before", [None, 0o644])
def test_others_cannot_read_what_a_program_writes(before: int | None, tmp_path: Path) -> None:
    """Under the usual umask, which lets everybody on the machine read, and where a log of an earlier time is open."""
    processes, log = Processes(tmp_path), tmp_path / "writer.log"
    if before is not None:
        log.touch()
        log.chmod(before)
    usual = os.umask(0o022)
    try:
        processes.start("writer", [sys.executable, "-c", WRITES], dict(os.environ), tmp_path)
        assert os.umask(0o022) == 0o022  # ours stays
    finally:
        os.umask(usual)
    processes.wait_until("writer", lambda: processes.log("writer") == "written\n")
    processes.end_all()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "folder", tmp_path / "folder" / "file", log)]
    assert modes == [0o700, 0o600, 0o600]


def test_a_program_that_ends_too_early_is_told_with_its_last_words(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    command = [sys.executable, "-c", "print('ERROR : no such key')"]
    processes.start("node", command, dict(os.environ), tmp_path)
    with pytest.raises(UserError, match="node did not get ready; its last words: no such key"):
        processes.wait_until("node", lambda: False)


def test_why_a_program_of_flower_s_ended_is_told_rather_than_its_helper_s_goodbye(tmp_path: Path) -> None:
    said = "\x1b[91mERROR \x1b[0m:     Exit Code: 305\nNo connection.\n[code: 2004] Refused.\nINFO :  Helper ended.\n"
    processes = Processes(tmp_path)
    processes.start("node", [sys.executable, "-c", f"print({said!r})"], dict(os.environ), tmp_path)
    with pytest.raises(UserError, match=r"last words: Exit Code: 305 No connection\. \[code: 2004\] Refused\. \("):
        processes.wait_until("node", lambda: False)


class Refusing(LocalFederation):
    """A trial whose nodes are refused a few times, as after a kill, and then let in or not."""

    answers: ClassVar[list[str]] = []

    def start_node(self, node: int, key: Path | None = None, insecure: bool = False) -> None:
        script = f"import time; print({self.answers.pop(0)!r}, flush=True); time.sleep(60 * {not self.answers})"
        self.processes.start(node_name(node), [sys.executable, "-c", script], dict(os.environ), self.app)


def test_an_error_is_told_rather_than_the_goodbye_after_it() -> None:
    """What a SuperLink says whose port is taken."""
    taken = "12:12:11 ERROR [uvicorn.error] [Errno 98] error while attempting to bind: address already in use"
    after = "12:12:11 INFO [uvicorn.error] Waiting for application shutdown.\n\x1b[92mINFO \x1b[0m:      stop\n"
    assert _last_words(f"\x1b[92mINFO \x1b[0m:      start\n{taken}\n{after}") == taken
    assert _last_words(after) == "stop"
    assert _last_words("") == "nothing"


@pytest.mark.parametrize("last", ["SuperNode ID: 7", "no such key"])
def test_a_node_that_flower_takes_for_connected_comes_again(
    last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "COME_AGAIN", 0.0)
    write_app(tmp_path / "app", load_recipe(None, {"clients": 1}), Settings())
    trial = Refusing(tmp_path / "app")
    trial.answers[:] = [REFUSED, REFUSED, last, *([] if "ID" in last else ["never asked"])]
    trial.start_node(0)
    if "ID" in last:
        trial.await_node(0)
    else:
        with pytest.raises(UserError, match="no such key"):
            trial.await_node(0)
    assert trial.down() == (["node-0"] if "ID" in last else [])


def test_a_run_starts_the_superexec_again_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a run would wait for ever."""
    write_app(tmp_path / "app", load_recipe(None, {"clients": 1}), Settings())
    trial, begun, heard = LocalFederation(tmp_path / "app"), [], []
    monkeypatch.setattr(trial.processes, "running", lambda: [SUPERLINK])
    monkeypatch.setattr(trial, "start_superexec", lambda: begun.append(SUPEREXEC))
    monkeypatch.setattr(trial.flwr, "run", lambda app, settings, hear: Ending("1", "finished:completed", ""))
    assert trial.run({}, heard.append).completed
    assert begun == [SUPEREXEC]
    assert heard == ["the SuperExec had ended and is started again"]
