"""A look at a run's record without reading all of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedssd.runs.archive import is_packed, read_run


def header(run: Path) -> Mapping[str, Any]:
    """Line 0 of a run folder's record: what the run was made with; empty where it cannot be read."""
    if is_packed(run):
        return read_run(run).header
    try:
        with (run / "rounds.jsonl").open(encoding="utf-8") as file:
            found = json.loads(file.readline())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def rounds(run: Path) -> int:
    """Complete lines after the header; a line that was cut short does not count."""
    try:
        return max(0, (run / "rounds.jsonl").read_bytes().count(b"\n") - 1)
    except OSError:  # not begun, or moved to its place a moment ago
        return 0
