"""A small reproduction of one of the paper's figures, and Ctrl-C at a moment of one's choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from fedssd.simulation import simulation
from studies.paper.__main__ import main

QUICK = ["--scale", "small", "--rounds", "1", "--seeds", "1", "--set", "epochs=1", "--workers", "1", "--quiet"]


def small_reproduction(folder: Path) -> Path:
    """One that is finished, and where it is; what it says is not what a test goes on to read."""
    with redirect_stdout(StringIO()):
        assert main(["run", "figure-confusion", *QUICK, "--out", str(folder / "out")]) == 0
    return folder / "out"


@contextmanager
def interrupted_at(evaluation: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ctrl-C as the rounds' results are about to be measured for the so many-th time."""
    evaluate, calls = simulation.evaluate_closed, []

    def stopping(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == evaluation:
            raise KeyboardInterrupt
        return evaluate(*args)

    with monkeypatch.context() as patch:
        patch.setattr(simulation, "evaluate_closed", stopping)
        yield
