"""A whole federation on one machine, for trying out: a SuperLink and SuperNodes with TLS and node authentication.

Everything it needs and leaves is below the app's folder, in ``.federation``. Each process is started in a session of
its own and written down with its start time, so that ``down`` ends exactly what ``up`` began.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedssd.deployment import certificates
from fedssd.deployment.project import TRIAL, recipe_in
from fedssd.deployment.samples import SAMPLES, deal
from fedssd.deployment.settings import recipe_of
from fedssd.errors import UserError

HOST = "127.0.0.1"
NAME = "trial"  # of the SuperLink in Flower's configuration
SUPERLINK, SUPEREXEC = "superlink", "superexec"
START_LIMIT = 120.0  # seconds for a process to be ready
LOOK_AGAIN = 3.0  # seconds between two questions how a run stands
END_LIMIT = 15.0  # seconds for a process to end after SIGTERM, before SIGKILL
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # or Flower would fetch torch for every app
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}


_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}  # what this process started


@dataclass(frozen=True)
class Outcome:
    """How a Flower run ended."""

    run_id: str
    status: str
    details: str

    @property
    def completed(self) -> bool:
        return self.status == "finished:completed"


class Trial:
    """A federation of an app on this machine."""

    def __init__(self, app: Path, database: bool = True) -> None:
        self.app, self.database = app.resolve(), database
        self.recipe = recipe_of(recipe_in(self.app))
        self.place = self.app / TRIAL
        self.keys = self.place / "certificates"
        self._book = self.place / "processes.json"

    def up(self, count: int | None = None, tell: Callable[[str], None] = lambda text: None) -> None:
        """Deal the recipe's data out, make keys, start everything and wait until every node is connected."""
        if count is not None and not 1 <= count <= self.recipe.clients:
            raise UserError(f"--nodes expects 1 to {self.recipe.clients}, the recipe's clients, got {count}")
        running = self.running()
        if running:
            raise UserError(f"the federation in {self.app} is up already: {', '.join(running)}")
        nodes = range(count or self.recipe.clients)
        try:
            if not (self.place / "samples").exists():
                deal(self.recipe, self.place / "samples")
                tell(f"dealt {self.recipe.data} out to {self.recipe.clients} nodes and the server")
            if not self.keys.exists():
                certificates.write_certificates(self.keys, [HOST, "localhost"], self.recipe.clients)
                tell(f"made certificates and keys in {self.keys}")
            self.start_superlink()
            self.start_superexec()
            tell(f"SuperLink at {HOST}:{self.port(SUPERLINK)}, with TLS and node authentication")
            self.register(certificates.node_key(self.keys, node).with_suffix(".key.pub") for node in nodes)
            for node in nodes:
                self.start_node(node)
            for node in nodes:
                self.await_node(node)
            tell(f"{len(nodes)} SuperNodes are connected")
        except BaseException:
            self.down()
            raise

    def start_superlink(self) -> None:
        """Start the SuperLink, on the port it had before if it had one, and wait until it answers."""
        port = self.port(SUPERLINK)
        self._configure(port)
        keys = self.keys
        command = ["flower-superlink", "--host", HOST, "--port", str(port), "--isolation", "process"]
        command += ["--ssl-ca-certfile", str(keys / certificates.AUTHORITY)]
        command += ["--ssl-certfile", str(keys / certificates.SERVER)]
        command += ["--ssl-keyfile", str(keys / certificates.SERVER_KEY)]
        command += ["--enable-supernode-auth"]
        command += ["--database", str(self.place / "superlink.db")] if self.database else []
        command += ["--superexec-auth-secret-file", str(keys / certificates.SECRET)]
        command += ["--disable-runtime-dependency-installation"]
        self._start(SUPERLINK, command)
        self._await(SUPERLINK, lambda: _answers(port, keys / certificates.AUTHORITY))

    def start_superexec(self) -> None:
        """Start what runs the server's app; apart from the SuperLink, so that a run outlives it."""
        address = f"{HOST}:{self.port(SUPERLINK)}"
        authority = str(self.keys / certificates.AUTHORITY)
        command = ["flower-superexec", "--runtime-api-address", address, "--root-certificates", authority]
        self._start(SUPEREXEC, [*command, "--superexec-auth-secret-file", str(self.keys / certificates.SECRET)])

    def start_node(self, node: int, key: Path | None = None, insecure: bool = False) -> None:
        """Start one SuperNode with its own samples, state and port; ``insecure`` leaves out TLS and its key."""
        name = node_name(node)
        samples, state = self.place / "samples" / name / SAMPLES, self.place / name / "state"
        private = str(key or certificates.node_key(self.keys, node))
        authority = str(self.keys / certificates.AUTHORITY)
        secure = ["--root-certificates", authority, "--auth-supernode-private-key", private]
        config = f'partition-id={node} data-path="{samples}" state-path="{state}"'
        command = ["flower-supernode", "--superlink", f"{HOST}:{self.port(SUPERLINK)}"]
        command += ["--insecure"] if insecure else secure
        self._start(name, [*command, "--host", HOST, "--port", str(self.port(name)), "--node-config", config])

    def await_node(self, node: int) -> None:
        """Wait until a node is connected."""
        name = node_name(node)
        self._await(name, lambda: "SuperNode ID:" in self.log(name))

    def register(self, public_keys: Any) -> None:
        """Tell the SuperLink which nodes it may let in; its database may know them from an earlier time."""
        for key in public_keys:
            try:
                self.flwr("supernode", "register", str(key), NAME)
            except UserError as error:
                if "already in use" not in str(error):
                    raise

    def run(
        self, settings: Mapping[str, Any], hear: Callable[[str], None] = lambda line: None, app: Path | None = None
    ) -> Outcome:
        """Start a Flower run of the app, pass on what its server says, and wait for its end."""
        override = self.place / "run-config.toml"
        own = {"server-data": str(self.place / "samples" / "server" / SAMPLES)}
        lines = (f"{key} = {json.dumps(value)}" for key, value in {**own, **settings}.items())
        override.write_text("\n".join(lines) + "\n", encoding="utf-8")
        heard: list[str] = []

        def once(line: str, place: int) -> None:
            if place >= len(heard):  # a stream that begins again repeats what was said
                heard.append(line)
                hear(line)

        run_id = self._follow(["run", str(app or self.app), NAME, "--stream", "--run-config", str(override)], once)
        if not run_id:
            raise UserError(f"flwr run failed, see {self.place / 'run.log'}")
        silent_since = time.monotonic()
        while True:  # a stream ends with the run, or with the SuperLink
            try:
                outcome = self.outcome(run_id)
                if outcome.status.startswith("finished"):
                    return outcome
                silent_since = time.monotonic()
                self._follow(["log", run_id, NAME, "--stream"], once)
            except UserError:
                if time.monotonic() - silent_since > START_LIMIT:
                    raise
            time.sleep(LOOK_AGAIN)

    def _follow(self, words: list[str], hear: Callable[[str, int], None]) -> str:
        """Pass on what a run's server says, line by line with its place, until it ends; returns the run's number."""
        run_id, place = "", 0
        with (
            (self.place / "run.log").open("a", encoding="utf-8") as log,
            subprocess.Popen(
                [_program("flwr"), *words],
                env=self._environment("user"),
                cwd=self.app,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                started = re.search(r"Successfully started run (\d+)", line)
                run_id = started[1] if started else run_id
                if line.startswith("fedssd: "):
                    hear(line.strip().removeprefix("fedssd: "), place)
                    place += 1
        return run_id

    def outcome(self, run_id: str) -> Outcome:
        """How a run stands now."""
        found = self.flwr("list", NAME, "--run-id", run_id)["runs"][0]
        return Outcome(run_id, str(found["status"]), str(found["status-details"]))

    def flwr(self, *words: str) -> Any:
        """What Flower's own command answers, read from its JSON; its complaint is ours, on one line."""
        command = [_program("flwr"), *words, "--format", "json"]
        done = subprocess.run(command, env=self._environment("user"), cwd=self.app, capture_output=True, text=True)
        try:
            answer = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            answer = {"error-message": f"{done.stderr} {done.stdout}"}
        if not answer.get("success"):
            said = " ".join(str(answer.get("error-message", "no reason given")).split())
            raise UserError(f"flwr {words[0]} failed: {said[-500:]}")
        return answer

    def down(self) -> list[str]:
        """End every process of this trial that still runs; returns their names."""
        ended = self.stop(*self._processes())
        self._write({})
        return ended

    def stop(self, *names: str, hard: bool = False) -> list[str]:
        """End processes and what they started, all at once; ``hard`` without asking first. Returns who was running."""
        running = [name for name in self.running() if name in names]
        groups = [int(self._processes()[name]["pid"]) for name in running]
        for group in groups:
            _signal(group, signal.SIGKILL if hard else signal.SIGTERM)
        end = time.monotonic() + END_LIMIT
        while any(_members(group) for group in groups) and time.monotonic() < end:
            time.sleep(0.1)
        for group in groups:
            _signal(group, signal.SIGKILL)
            _reap(group)
        return running

    def running(self) -> list[str]:
        """The names of the processes that run now."""
        known = self._processes()
        for one in known.values():
            _reap(one["pid"])
        return [name for name, one in known.items() if _same(one)]

    def port(self, name: str) -> int:
        """The port of a process: the one it had before, or a free one."""
        known = self._processes().get(name)
        if known is None:
            with socket.socket() as probe:
                probe.bind((HOST, 0))
                known = {"port": probe.getsockname()[1], "pid": 0, "started": ""}
            self._write({**self._processes(), name: known})
        return int(known["port"])

    def log(self, name: str) -> str:
        """All a process has said since it was started last."""
        try:
            return (self.place / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _configure(self, port: int) -> None:
        """Flower's own configuration, so that its commands know this SuperLink as ``trial``."""
        home = self.place / "user"
        home.mkdir(parents=True, exist_ok=True)
        authority = json.dumps(str(self.keys / certificates.AUTHORITY))
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{HOST}:{port}"\n'
            f"root-certificates = {authority}\n",
            encoding="utf-8",
        )

    def _environment(self, name: str) -> dict[str, str]:
        beside = str(Path(sys.executable).parent)
        home = self.place / name
        home.mkdir(parents=True, exist_ok=True)
        path = f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"  # Flower starts its own programs by name
        return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path}

    def _start(self, name: str, command: list[str]) -> None:
        port = self.port(name)
        with (self.place / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [_program(command[0]), *command[1:]],
                env=self._environment(name),
                cwd=self.app,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _CHILDREN[process.pid] = process
        self._write({**self._processes(), name: {"pid": process.pid, "started": _started(process.pid), "port": port}})

    def _await(self, name: str, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + START_LIMIT
        while not ready():
            _reap(self._processes()[name]["pid"])
            if not _same(self._processes()[name]) or time.monotonic() > end:
                said = [line for line in self.log(name).splitlines() if line.strip()]
                last = _plain(said[-1]) if said else "nothing"
                raise UserError(f"{name} did not get ready; its last words: {last} ({self.place / name}.log)")
            time.sleep(0.2)

    def _processes(self) -> dict[str, Any]:
        try:
            found = json.loads(self._book.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, processes: dict[str, Any]) -> None:
        self._book.parent.mkdir(parents=True, exist_ok=True)
        aside = self._book.with_suffix(".part")
        aside.write_text(json.dumps(processes, indent=2) + "\n", encoding="utf-8")
        os.replace(aside, self._book)


def node_name(node: int) -> str:
    """What a node is called among the processes and folders."""
    return f"node-{node}"


def _program(name: str) -> str:
    found = Path(sys.executable).parent / name
    if not found.exists():
        raise UserError(f"{name} is not installed beside this Python: run `pip install 'fedssd[flower]'`")
    return str(found)


def _answers(port: int, authority: Path) -> bool:
    """Whether something with a certificate of our authority listens there."""
    try:
        context = ssl.create_default_context(cafile=str(authority))
        with socket.create_connection((HOST, port), 1) as plain, context.wrap_socket(plain, server_hostname=HOST):
            return True
    except OSError:
        return False


def _started(pid: int) -> str:
    """When a process began, in ps's words; empty if it is gone. A pid alone may be another's by now."""
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


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def _reap(pid: int) -> None:
    """Let a child of ours that has ended go; what an earlier command started is no child of ours."""
    child = _CHILDREN.get(pid)
    if child is not None:
        child.poll()


def _plain(line: str) -> str:
    """A line of a log without colours and level."""
    return re.sub(r"\x1b\[\d+m|^\W*(INFO|ERROR|WARNING)\W*:", "", line).strip()
