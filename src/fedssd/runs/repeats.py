"""The same run made twice: which of them counts, wherever tables and figures are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedssd.runs import glance

RULE = "the one begun last counts"


def begun(header: Mapping[str, Any]) -> str:
    """When a run was begun, or last gone on with, by line 0 of its record; empty for a run that does not say."""
    times = [entry.get("started") for entry in (header, *header.get("resumed", []))]
    return max((time for time in times if isinstance(time, str)), default="")


def newest_last(runs: Iterable[Path]) -> list[Path]:
    """Run folders by when they were begun; those that do not say come first, in the order of their paths."""
    return sorted(runs, key=lambda run: (begun(glance.header(run)), run))
