"""Which code may run on a node: apps by the SHA-256 of the bytes that travel, approved by whoever owns the node."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from fedssd.errors import UserError
from fedssd.flower.command import environment, program
from fedssd.flower.journal import Journal, Sparing

FILE = "approved.json"
RECIPE = "recipe.toml"
LARGEST = 64 << 20  # bytes of an app; Flower takes 10 MB
READABLE = 1 << 20  # bytes of a recipe that are shown


def code_hash(content: bytes) -> str:
    """Return what names an app: the SHA-256 of its packed bytes."""
    return hashlib.sha256(content).hexdigest()


def read_code(app: Path) -> bytes:
    """Return an app as it travels: a .fab as it is, a folder as `flwr run` would pack it."""
    if app.is_dir():
        return _packed(app)
    try:
        if app.stat().st_size > LARGEST:
            raise UserError(f"{app} is no app: it has more than {LARGEST >> 20} MB")
        return app.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the app {app}: {error.strerror}") from None


def _packed(app: Path) -> bytes:
    """Let Flower pack a folder, which comes to the same bytes everywhere."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program("flwr"), "build", "--app", str(app.resolve())]
        done = subprocess.run(
            command, cwd=folder, env=environment(Path(folder) / "home"), capture_output=True, text=True
        )
        made = list(Path(folder).glob("*.fab"))
        if len(made) != 1:
            said = " ".join(f"{done.stderr} {done.stdout}".split())[-300:]
            raise UserError(f"flwr cannot pack {app}: {said}")
        return made[0].read_bytes()


def describe(content: bytes) -> str:
    """Return what an app consists of: every file with its size, and its recipe, safe to print."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            entries = sorted(packed.infolist(), key=lambda entry: entry.filename)
            rows = [f"{entry.file_size:>9,}  {_shown(entry.filename)}" for entry in entries]
            with packed.open(RECIPE) as file:
                recipe = file.read(READABLE).decode("utf-8", errors="replace")
    except (zipfile.BadZipFile, KeyError, OSError, NotImplementedError, RuntimeError, EOFError) as error:
        raise UserError(f"expected an app of `fedssd federation init`, got something else: {error}") from None
    return "\n".join([*rows, "", f"{RECIPE}:", *(f"  {_shown(line)}" for line in recipe.splitlines())])


def _shown(text: str) -> str:
    return "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in text)


def approve(state: Path, content: bytes) -> str:
    """Let an app run on the node whose state is in this folder; returns its hash."""
    name, known = code_hash(content), read_approved(state / FILE)
    if name not in known:
        entries = {**known, name: datetime.now(UTC).isoformat(timespec="seconds")}
        try:
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, aside = tempfile.mkstemp(dir=state, prefix=FILE)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"approved": entries}, file, indent=2)
            os.replace(aside, state / FILE)
        except OSError as error:
            raise UserError(f"cannot write {state / FILE}: {error.strerror}") from None
        Journal(state, "owner").add("approved", code=name)
    return name


def read_approved(file: Path) -> dict[str, str]:
    """Return when each approved app was approved, by its hash; none where there is no file."""
    if not file.exists():
        return {}
    try:
        if file.stat().st_mode & 0o022:
            raise UserError(f"{file} can be changed by others: chmod 600 {file}")
        found = json.loads(file.read_text(encoding="utf-8"))["approved"]
        return {str(name): str(when) for name, when in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"cannot read {file}: {error}") from None


class Gate:
    """Decides which code passes, and keeps what does not for its owner to look at."""

    def __init__(self, state: Path, tell: Callable[[str], None]) -> None:
        self._state, self._tell = state, tell
        self._journal = Sparing(Journal(state, "node", tell).add)

    def passes(self, content: bytes) -> bool:
        """Return whether an app is approved; one that is not waits in a file."""
        name = code_hash(content)
        try:
            if name in read_approved(self._state / FILE):
                return True
        except UserError as error:
            self._tell(str(error))
        waiting = self._state / "waiting"
        if not (waiting / f"{name}.fab").exists():
            shutil.rmtree(waiting, ignore_errors=True)  # one at a time: a server must not fill the disk
            waiting.mkdir(parents=True, mode=0o700)
            (waiting / f"{name}.fab").write_bytes(content)
        how = f"fedssd federation approve {waiting / name}.fab --state {self._state}"
        self._journal.add("code is not approved", (name,), code=name)
        self._tell(f"the server sends code that is not approved, {name}: {how}")
        return False
