"""The strengths that methods have unless told otherwise: those the study found best on its tuning seeds, if any.

One that was tried on all its splits stands before one that was tuned on the first.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "recipes" / "study" / "chosen.toml"


@cache
def _strengths() -> dict[str, dict[str, Any]]:
    if not FILE.is_file():
        return {}
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    tuned, best = content.get("strengths", {}), content.get("defaults", {})
    return {data: tuned.get(data, {}) | best.get(data, {}) for data in tuned | best}


def shipped_options(method: str, dataset: str) -> dict[str, Any]:
    """A method's options on a dataset; without any, the paper's values stand."""
    named = ((*key.rpartition("."), value) for key, value in _strengths().get(dataset, {}).items())
    return {option: value for owner, _, option, value in named if owner == method}
