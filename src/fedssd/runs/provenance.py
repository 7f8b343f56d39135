"""What a run was made with: versions, machine and commit, and whether it is still the run it was."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

import fedssd
from fedssd.core.contract import parts_of
from fedssd.methods.custom import source_hash
from fedssd.recipe import FREE, Recipe
from fedssd.runs.rules import RULES
from fedssd.simulation.events import Line
from fedssd.simulation.machine import card_name
from fedssd.simulation.setup import Federation

ROOT = Path(__file__).parents[3]
VARIABLE = "FEDSSD_COMMIT"  # for a copy that has left its repository behind


@cache
def source_commit() -> str:
    """The checkout's commit, with a + where files differ from it; empty outside a checkout."""
    if VARIABLE in os.environ or not (ROOT / ".git").exists():
        return os.environ.get(VARIABLE, "")
    try:
        commit, changes = (
            subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.CalledProcessError):  # no git, or a repository it refuses
        return ""
    return f"{commit}+" if changes else commit


def header(federation: Federation, engine: str, device: torch.device, threads: int) -> Line:
    """Line 0 of rounds.jsonl: what the run was made with."""
    data = federation.dataset
    counts = federation.partition.counts(data.y_train, data.num_classes).tolist()
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "fedssd": fedssd.__version__,
        "rules": RULES,
        "commit": source_commit(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "engine": engine,
        "device": str(device),
        "card": card_name(device),
        "threads": threads,
        "deterministic": federation.recipe.deterministic,
        "recipe_hash": federation.recipe.hash,
        "split_hash": federation.partition.hash,
        "data": data.fingerprint,
        "parameters": sum(federation.parameters.values()),
        "classes": list(data.classes),
        **({} if federation.terms else {"counts": counts}),  # which classes a client holds is no secret otherwise
    }


def begun(header: Mapping[str, Any]) -> str:
    """When a run was begun, or last gone on with, by its header; empty for a run that does not say."""
    times = [entry.get("started") for entry in (header, *header.get("resumed", []))]
    return max((time for time in times if isinstance(time, str)), default="")


def identity(federation: Federation) -> dict[str, Any]:
    """The recipe and the hashes of what it names but does not hold."""
    return {
        "recipe": asdict(federation.recipe),
        "split": federation.partition.hash,
        "data": federation.dataset.fingerprint,
        "source": [found for part in parts_of(federation.method.local) if (found := source_hash(type(part)))],
    }


def difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Which key of two identities differs first and how; empty where they are one run's."""
    words = {
        "data": "data (its content)",
        "split": "partition (who holds what)",
        "source": "method (its file or what it imports)",
    }
    found = [recipe_difference(then["recipe"], now["recipe"])]
    found += [_differs(name, then[key], now[key]) for key, name in words.items()]
    return next(filter(None, found), "")


def recipe_difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Which key of two recipes differs first and how; how long and where they run does not count.

    The method comes first: other keys follow it, as MOON's projection head does.
    """
    old = {**asdict(Recipe()), **then}  # a key that has come since had its default
    for key in dict.fromkeys(("method", *now, *old)):
        if key == "options":
            found = _option_difference(old[key], now.get(key, {}))
        else:
            found = "" if key in FREE else _differs(key, old.get(key), now.get(key))
        if found:
            return found
    return ""


def _option_difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    for method in sorted({*then, *now}):
        old, new = then.get(method, {}), now.get(method, {})
        for option in sorted({*old, *new}):
            if found := _differs(f"options.{method}.{option}", old.get(option), new.get(option)):
                return found
    return ""


def _differs(name: str, then: Any, now: Any) -> str:
    return "" if then == now else f"{name} was {then!r} and is {now!r}"
