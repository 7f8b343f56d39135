"""Changed files and messages are refused in one line or read as what they were: no traceback, little memory.

The seed is the day; to see one again: ``python tests/mutations.py SEED 10000 KIND``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("mutations.py")
KNOWN = 3  # the seed of the few that every run of the tests makes
MOST_MEMORY = 2 << 30  # bytes


def outcomes(seed: int, count: int) -> dict[str, Any]:
    print(f"seed {seed}")
    command = [sys.executable, str(PROGRAM), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def assert_sound(found: dict[str, Any], count: int) -> None:
    assert found["wrong"] == []
    assert found["memory"] <= MOST_MEMORY
    assert sum(sum(each.values()) for each in found["outcomes"].values()) == count
    for kind, each in found["outcomes"].items():
        assert each["refused"] or kind == "memory", f"of {kind} nothing was refused: is it changed at all?"


def test_changes_are_refused_or_change_nothing() -> None:
    assert_sound(outcomes(KNOWN, 660), 660)


@pytest.mark.slow
def test_ten_thousand_changes_are_refused_or_change_nothing() -> None:
    seed = int(datetime.now(UTC).strftime("%Y%m%d"))
    found = outcomes(seed, 10_000)
    assert_sound(found, 10_000)
