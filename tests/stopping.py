"""Small runs that are stopped and gone on with, in a folder that holds their samples."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killing import outcome

import fedssd
from fedssd.runs.folder import sealed, unsealed
from fedssd.simulation.events import Event

Captured = pytest.CaptureFixture[str]
RUN = shlex.split(
    "--data samples.npz --clients 4 --participation 0.5 --partition iid --auxiliary 3 --rounds 6 --epochs 1 --batch 8 "
    "--engine reference --method scaffold --checkpoint-every 1"
)
KEYS: dict[str, Any] = {
    "data": "samples.npz", "clients": 4, "participation": 0.5, "partition": "iid", "auxiliary": 3, "epochs": 1,
    "batch": 8, "engine": "reference", "checkpoint_every": "1",
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder_with_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_samples()


def write_samples(shift: float = 0.0) -> None:
    draws = np.random.default_rng(5)
    y = np.arange(120) % 3
    x = draws.normal(size=(120, 4)) + 2 * draws.normal(size=(3, 4))[y] + shift
    np.savez("samples.npz", x=x.astype(np.float32), y=y)


def stop_after(rounds: int) -> Callable[[Event], None]:
    """A listener that presses Ctrl-C when a round has ended."""

    def listen(event: Event) -> None:
        if event.round is not None and event.round.number == rounds:
            raise KeyboardInterrupt

    return listen


def interrupted(folder: str, rounds: int = 4, of: int = 6, method: str = "scaffold", **keys: Any) -> Path:
    """A run that was stopped after some rounds."""
    with pytest.raises(KeyboardInterrupt):
        fedssd.run(method, **{**KEYS, "rounds": of, **keys}, out=folder, listen=stop_after(rounds))
    return Path(folder)


def whole(**keys: Any) -> dict[str, Any]:
    """The same rounds without a stop."""
    fedssd.run("scaffold", **{**KEYS, "rounds": 6, **keys}, out="whole")
    return outcome(Path("whole"))


def one_line(capsys: Captured) -> str:
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1, printed.err
    return printed.err


def without_matrices(found: dict[str, Any]) -> dict[str, Any]:
    """A run that was extended keeps the confusion matrices of the rounds that were once its last."""
    rounds = [{key: value for key, value in line.items() if key != "confusion"} for line in found["rounds"]]
    return {**found, "rounds": rounds}


def reseal(file: Path, **changes: Any) -> None:
    """Change what a checkpoint says and seal it again, as another version would have."""
    content = unsealed(file)
    for key, value in changes.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) else value
    file.write_bytes(sealed(content))
