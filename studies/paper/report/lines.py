"""A run's rounds as lines of its record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedssd.simulation.result import Result


def lines_of(run: Result) -> list[dict[str, Any]]:
    """Every round as ``rounds.jsonl`` has it."""
    return [one.to_json() for one in run.rounds]


def until(run: Result, rounds: int) -> Result:
    """Its first rounds, and the summary of all."""
    return replace(run, rounds=tuple(one for one in run.rounds if one.number <= rounds))
