"""Flower's own command, ``flwr``, against one SuperLink: registers nodes, starts runs, follows them to their end."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedssd.errors import UserError
from fedssd.flower.private_files import read_secret, write_new
from fedssd.flower.settings import toml

PINNED = "1.41.0"  # the Flower that fedssd is tested with; pyproject.toml pins the same
LOOK_AGAIN = 3.0  # seconds between two questions how a run stands
PATIENCE = 120.0  # seconds a SuperLink may be silent while a run goes on
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # or Flower would fetch torch for every app
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}


@dataclass(frozen=True)
class Ending:
    """How a Flower run ended."""

    run_id: str
    status: str
    details: str

    @property
    def completed(self) -> bool:
        return self.status == "finished:completed"

    @property
    def reason(self) -> str:
        """Why it did not complete, in one line."""
        said = " ".join(self.details.removeprefix("ServerApp failed with exception: ").split())
        return said or f"the run is {self.status}"


class FlowerCommand:
    """``flwr`` with a home of its own, in which one SuperLink is known by a name."""

    def __init__(self, home: Path, name: str) -> None:
        self.home, self.name = home.resolve(), name  # flwr runs in it, wherever we are

    def configure(self, address: str, authority: Path, token: Path) -> None:
        """Say where the SuperLink is, whose certificate it has, and by which token it obeys."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        _log_in(self.home / "credentials.yaml", address, read_secret(token))
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{self.name}"\n\n[superlink.{self.name}]\naddress = "{address}"\n'
            f"root-certificates = {toml(str(authority))}\n",
            encoding="utf-8",
        )

    @property
    def configured(self) -> bool:
        """Whether a SuperLink has been started that this command knows."""
        return (self.home / "config.toml").exists()

    def register(self, public_key: str) -> None:
        """Tell the SuperLink of a node's key; its database may know it from an earlier time."""
        file = self.home / "register.pub"
        file.write_text(public_key + "\n", encoding="utf-8")
        try:
            self._ask("supernode", "register", str(file), self.name)
        except UserError as error:
            if "already in use" not in str(error):
                raise

    def run(self, app: Path, settings: Mapping[str, Any], hear: Callable[[str], None]) -> Ending:
        """Start a run of an app, pass on what its server says, and wait for its end; an interruption stops the run."""
        override = self.home / "run-config.toml"
        lines = (f"{key} = {toml(value)}" for key, value in settings.items())
        override.write_text("\n".join(lines) + "\n", encoding="utf-8")
        heard: list[str] = []
        started: list[str] = []

        def once(line: str, place: int) -> None:
            if place >= len(heard):  # a stream that begins again repeats what was said
                heard.append(line)
                hear(line)

        try:
            self._follow(["run", str(app), self.name, "--stream", "--run-config", str(override)], once, started.append)
            if not started:
                raise UserError(f"flwr run failed: {self._last_words()} ({self._log})")
            return self._to_the_end(started[0], once)
        except KeyboardInterrupt:
            if started:
                with suppress(UserError):  # it may have ended just now, or the SuperLink may be gone
                    self._ask("stop", started[0], self.name)
            raise

    def _to_the_end(self, run_id: str, hear: Callable[[str, int], None]) -> Ending:
        """A stream ends with the run, or with the SuperLink; then it is taken up again."""
        silent_since = time.monotonic()
        while True:
            try:
                outcome = self.outcome(run_id)
                if outcome.status.startswith("finished"):
                    return outcome
                silent_since = time.monotonic()
                self._follow(["log", run_id, self.name, "--stream"], hear)
            except UserError:
                if time.monotonic() - silent_since > PATIENCE:
                    raise
            time.sleep(LOOK_AGAIN)

    def outcome(self, run_id: str) -> Ending:
        """How a run stands now."""
        found = self._ask("list", self.name, "--run-id", run_id)["runs"][0]
        return Ending(run_id, str(found["status"]), str(found["status-details"]))

    def _follow(
        self,
        words: list[str],
        hear: Callable[[str, int], None],
        begun: Callable[[str], None] = lambda run_id: None,
    ) -> None:
        """Pass on what a run's server says, line by line with its place, until it ends, and the run's number."""
        place = 0
        with (
            self._log.open("a", encoding="utf-8") as log,
            subprocess.Popen(
                [program("flwr"), *words],
                env=environment(self.home),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    log.write(line)
                    started = re.search(r"Successfully started run (\d+)", line)
                    if started:
                        begun(started[1])
                    if line.startswith("fedssd: "):
                        hear(line.strip().removeprefix("fedssd: "), place)
                        place += 1
            except BaseException:  # the stream would go on as long as the run
                process.terminate()
                raise

    def _ask(self, *words: str) -> Any:
        """What the command answers, read from its JSON; its complaint is ours, on one line."""
        command = [program("flwr"), *words, "--format", "json"]
        done = subprocess.run(command, env=environment(self.home), cwd=self.home, capture_output=True, text=True)
        try:
            answer = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            answer = {"error-message": f"{done.stderr} {done.stdout}"}
        if not answer.get("success"):
            said = " ".join(str(answer.get("error-message", "no reason given")).split())
            raise UserError(f"flwr {words[0]} failed: {said[-500:]}")
        return answer

    @property
    def _log(self) -> Path:
        return self.home / "run.log"

    def _last_words(self) -> str:
        return " ".join(self._log.read_text(encoding="utf-8", errors="replace").split())[-200:] or "it said nothing"


def _log_in(file: Path, address: str, token: str) -> None:
    """Write what `flwr login` would leave for a SuperLink, which then hears the token with every order."""
    known = {"authn-type": "oidc", "oidc-access-token": token, "oidc-refresh-token": "none"}
    lines = {f"flower.account-auth.{address}.{key}": _base64(value) for key, value in known.items()}
    aside = file.with_suffix(".part")
    aside.unlink(missing_ok=True)
    write_new(aside, json.dumps(lines).encode())  # JSON is YAML
    aside.replace(file)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def environment(home: Path) -> dict[str, str]:
    """What a Flower program needs: a home of its own, and its siblings on the path, which it starts by name."""
    home.mkdir(parents=True, exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path}


def program(name: str) -> str:
    """A Flower program beside this Python."""
    found = Path(sys.executable).parent / name
    if not found.exists():
        raise UserError(f"{name} is not installed beside this Python: run `pip install 'fedssd[flower]'`")
    return str(found)


def another_version() -> str | None:
    """Return one line where the installed Flower is not the one fedssd is tested with."""
    try:
        found = version("flwr")
    except PackageNotFoundError:  # whoever needs it says so
        return None
    return None if found == PINNED else f"fedssd is tested with Flower {PINNED}, this is {found}"
