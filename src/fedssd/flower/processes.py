"""Programs in the background by name, written down so that a later command ends exactly what an earlier one began.

Each is started in a session of its own, with a log, and noted with its start time: a process number alone may be
another's by the time it is looked at. What they write, and their logs, only the user who started them can read.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedssd.errors import UserError

HOST = "127.0.0.1"
START_LIMIT = 120.0  # seconds for a process to be ready
END_LIMIT = 15.0  # seconds for a process to end after SIGTERM, before SIGKILL
MARK = "FEDSSD_PROGRAM"  # in the environment of a program and of all it starts: which one of which folder it is
UMASK = 0o077  # a SuperLink's database holds every client's update, a node's state its memory

_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}  # what this process started


class Processes:
    """The programs of one folder, which holds their logs and the book they are written down in."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._book = folder, folder / "processes.json"

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        """Start a program in a folder, with its output in its log."""
        port = self.port(name)
        with open(self._folder / f"{name}.log", "wb", opener=_owner_only) as log:
            process = subprocess.Popen(
                command,
                env={**environment, MARK: str(self._folder / name)},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=UMASK,
            )
        _CHILDREN[process.pid] = process
        self._write({**self.known(), name: {"pid": process.pid, "started": _started(process.pid), "port": port}})

    def wait_until(self, name: str, ready: Callable[[], bool]) -> None:
        """Wait until a program is ready; if it ends before that or takes too long, its last words are the error."""
        end = time.monotonic() + START_LIMIT
        while not ready():
            if name not in self.running() or time.monotonic() > end:
                raise UserError(f"{name} did not get ready; its last words: {self.last_words(name)}")
            time.sleep(0.2)

    def end_all(self) -> list[str]:
        """End every program that still runs, and what dead ones have left, and forget them; returns their names."""
        ended = self.stop(*self.known())
        for number in (signal.SIGTERM, signal.SIGKILL):  # such as the app of a SuperExec that was killed
            left = self._left_over()
            for pid in left:
                _signal(pid, number, os.kill)
            end = time.monotonic() + END_LIMIT
            while number == signal.SIGTERM and self._left_over() and time.monotonic() < end:
                time.sleep(0.1)
            ended += [name for name in dict.fromkeys(left.values()) if name not in ended]
        if self._book.exists():
            self._write({})
        return ended

    def stop(self, *names: str, hard: bool = False) -> list[str]:
        """End programs and what they started, all at once; ``hard`` without asking first. Returns who was running."""
        running = [name for name in self.running() if name in names]
        groups = [int(self.known()[name]["pid"]) for name in running]
        for group in groups:
            _signal(group, signal.SIGKILL if hard else signal.SIGTERM)
        end = time.monotonic() + END_LIMIT
        while any(_members(group) for group in groups) and time.monotonic() < end:
            time.sleep(0.1)
        for group in groups:
            _signal(group, signal.SIGKILL)
            _reap(group)
        return running

    def _left_over(self) -> dict[int, str]:
        """Processes of ours that began as part of a program of this folder, with its name; where /proc tells."""
        found, start = {}, f"{MARK}={self._folder}/".encode()
        for place in Path("/proc").glob("[0-9]*/environ"):
            try:
                values = place.read_bytes().split(b"\0")
            except OSError:  # another user's, or gone
                continue
            names = [value.removeprefix(start).decode() for value in values if value.startswith(start)]
            if names and int(place.parent.name) != os.getpid():
                found[int(place.parent.name)] = names[0]
        return found

    def running(self) -> list[str]:
        """The names of the programs that run now."""
        known = self.known()
        for one in known.values():
            _reap(one["pid"])
        return [name for name, one in known.items() if _same(one)]

    def port(self, name: str) -> int:
        """The port of a program: the one it had before, or a free one."""
        known = self.known().get(name)
        if known is None:
            with socket.socket() as probe:
                probe.bind((HOST, 0))
                known = {"port": probe.getsockname()[1], "pid": 0, "started": ""}
            self._write({**self.known(), name: known})
        return int(known["port"])

    def log(self, name: str) -> str:
        """All a program has said since it was started last."""
        try:
            return (self._folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def lines_since(self, name: str, place: int) -> tuple[list[str], int]:
        """Whole lines a program has said since a place in its log, and where they end."""
        try:
            with (self._folder / f"{name}.log").open("rb") as log:
                size = os.fstat(log.fileno()).st_size
                log.seek(place if place <= size else 0)  # a program that is started again begins a new log
                start, said = log.tell(), log.read(1 << 20)
        except OSError:
            return [], place
        whole = said[: said.rfind(b"\n") + 1]
        return whole.decode("utf-8", errors="replace").splitlines(), start + len(whole)

    def last_words(self, name: str) -> str:
        """What a program said at its end, and where the rest is."""
        return f"{_last_words(self.log(name))} ({self._folder / name}.log)"

    def known(self) -> dict[str, Any]:
        """What is written down: pid, start time and port by name."""
        try:
            found = json.loads(self._book.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, processes: dict[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        aside = self._book.with_suffix(".part")
        aside.write_text(json.dumps(processes, indent=2) + "\n", encoding="utf-8")
        os.replace(aside, self._book)


def _owner_only(path: str, flags: int) -> int:
    """Open a file that others cannot read, also where an earlier version has left one that they can."""
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def _started(pid: int) -> str:
    """When a process began; empty if it is gone. In the kernel's words where it tells, else in those of ps."""
    if Path("/proc/self/stat").exists():
        try:
            after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        except OSError:
            return ""
        return after_name.split()[19]  # ticks since the machine started
    said = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return said.stdout.strip()


def _same(known: dict[str, Any]) -> bool:
    return bool(known["pid"]) and bool(known["started"]) and _started(known["pid"]) == known["started"]


def _members(group: int) -> bool:
    """Whether anybody of a process group is left."""
    _reap(group)
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _signal(group: int, number: int, how: Callable[[int, int], None] = os.killpg) -> None:
    try:
        how(group, number)
    except (ProcessLookupError, PermissionError):
        return


def _reap(pid: int) -> None:
    """Let a child of ours that has ended go; what an earlier command started is no child of ours."""
    child = _CHILDREN.get(pid)
    if child is not None:
        child.poll()


def _last_words(log: str) -> str:
    """The last line of a log, or why a program of Flower's ended, after which its helpers still say goodbye."""
    said = [line for line in log.splitlines() if line.strip()]
    lines, errors = [_plain(line) for line in said], [_plain(line) for line in said if re.search(r"\bERROR\b", line)]
    ended = next((place for place, line in enumerate(lines) if line.startswith("Exit Code")), None)
    return " ".join((errors or lines)[-1:] if ended is None else lines[ended : ended + 3]) or "nothing"


def _plain(line: str) -> str:
    """A line of a log without colours and level."""
    return re.sub(r"^\W*(INFO|ERROR|WARNING)\W*:", "", re.sub(r"\x1b\[\d+m", "", line)).strip()
