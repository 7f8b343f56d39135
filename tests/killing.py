"""Starts many ``fedssd`` commands as processes of their own, cheaply, and kills them at chosen moments.

Run as a program it imports everything once and then forks a child for every command it reads, so that a kill costs
what the run costs and not what importing torch costs. The child does what ``python -m fedssd`` does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

PRELOADED = (
    "fedssd.cli.resume",
    "fedssd.engines.vectorised",
    "fedssd.sweeps.grid",
    "fedssd.reports.charts",
    "fedssd.reports.comparison",
    "torch.fx.experimental.proxy_tensor",
)


class Nursery:
    """The forking program, seen from a test."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)  # its input ends, and so does it

    def run(
        self,
        *words: str,
        after: float | None = None,
        at: int | None = None,
        lines: tuple[str, int] | None = None,
        by: int = signal.SIGKILL,
    ) -> Ended:
        """One command, killed ``after`` so many seconds, ``at`` the n-th thing it does to a file, or not at all.

        Or sent a signal when a file has so many ``lines``.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"words": words, "after": after, "at": at, "lines": lines, "by": by, "folder": os.getcwd()}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return Ended(**json.loads(self._process.stdout.readline()))


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int  # as of a process: negative is a signal's number
    seconds: float
    said: str

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL


def _child(words: list[str], at: int | None, said: int) -> None:
    from fedssd.cli import main

    for stream in (1, 2):
        os.dup2(said, stream)
    if at is not None:
        _die_at(at)
    status = 1
    try:
        status = main(words)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _die_at(count: int) -> None:
    """Kill this process in its ``count``-th sync, rename or removal; a file about to be synced is cut in half first."""
    calls = 0

    def counted(function: Any) -> Any:
        def call(*args: Any, **keys: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == count:
                if function is sync:
                    with suppress(OSError):
                        os.ftruncate(args[0], os.fstat(args[0]).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **keys)

        return call

    sync = os.fsync
    os.fsync, os.replace, os.unlink = counted(os.fsync), counted(os.replace), counted(os.unlink)


def _serve() -> None:
    for module in PRELOADED:
        import_module(module)
    for line in sys.stdin:
        order = json.loads(line)
        said = os.memfd_create("said")
        begun = time.monotonic()
        child = os.fork()
        if child == 0:
            os.chdir(order["folder"])
            _child(order["words"], order["at"], said)
        ended = None
        if order["after"] is not None or order["lines"] is not None:
            ended = _wait(child, order)
            if ended is None:
                os.kill(child, order["by"])
        if ended is None:
            _, ended = os.waitpid(child, 0)
        os.lseek(said, 0, os.SEEK_SET)
        with os.fdopen(said, "rb") as file:
            text = file.read().decode(errors="replace")
        status = os.waitstatus_to_exitcode(ended)
        print(json.dumps({"status": status, "seconds": time.monotonic() - begun, "said": text}), flush=True)


def _wait(child: int, order: dict[str, Any]) -> int | None:
    """The child's end if it comes before the moment it is to be sent a signal."""
    limit = time.monotonic() + (60 if order["after"] is None else order["after"])
    while time.monotonic() < limit:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        if order["lines"] is not None:
            file = Path(order["folder"], order["lines"][0])
            if file.exists() and file.read_bytes().count(b"\n") >= order["lines"][1]:
                return None
        time.sleep(0.001)
    return None


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves, to be compared; without the seconds, and without what it was made with."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()[1:]]
    summary = json.loads((folder / "summary.json").read_text())
    return {
        "weights": (folder / "weights.safetensors").read_bytes(),
        "rounds": [{**line, "seconds": sorted(line["seconds"])} for line in lines],
        "summary": {**summary, "seconds": None},
        "recipe": (folder / "recipe.toml").read_text(),
        "partition": (folder / "partition.json").read_text(),
    }


if __name__ == "__main__":
    _serve()
