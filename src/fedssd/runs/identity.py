"""Whether a run is the one it was: its recipe and what that names, and the first thing that differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fedssd.core.contract import parts_of
from fedssd.experiment.recipe import MACHINE, Recipe
from fedssd.methods.custom import source_hash
from fedssd.runs.checkpoint import Content
from fedssd.simulation.setup import Federation

FREE = ("rounds", "on_bad_update", *MACHINE)  # keys that may be others when a run goes on


def identity(federation: Federation) -> Content:
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
