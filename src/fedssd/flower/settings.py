"""What a Flower run is told beside its recipe, under [tool.flwr.app.config] or with `flwr run --run-config`."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedssd.errors import UserError, nearest
from fedssd.recipe import Recipe, load_recipe

WEIGHTINGS = ("samples", "capped", "equal")


@dataclass(frozen=True)
class Settings:
    """Every field is a key of the run's configuration, with dashes."""

    set: str = ""
    server_data: str = ""
    out: str = ""
    resume: str = ""
    resume_from: str = "last"
    min_nodes: int = 0
    wait: float = 300.0
    round_timeout: float = 3600.0
    weighting: str = "samples"
    most_samples: int = 0


NOTES = {
    "set": 'recipe keys that differ for this run, such as "rounds=5 fedssd.m_max=0.3"',
    "server_data": "the server's samples, labelled; if empty, its share of the recipe's data",
    "out": "the folder of the run's record, below the server's working directory",
    "resume": "the folder of a run to go on with",
    "resume_from": "where it goes on: its last checkpoint, or last-good",
    "min_nodes": "clients that must be connected for a round to begin; 0: all that should take part",
    "wait": "seconds to wait for them before the run ends",
    "round_timeout": "seconds for a round's replies; who is later is left out",
    "weighting": "how much a client counts: samples, capped (at twice the median) or equal",
    "most_samples": "a client that claims more is left out; 0 sets no limit",
}


def settings_of(config: Mapping[str, Any]) -> Settings:
    """The settings in a run's configuration, checked; keys that are not ours are Flower's or the user's."""
    found: dict[str, Any] = {}
    for entry in fields(Settings):
        key, default = entry.name.replace("_", "-"), entry.default
        value = config.get(key, default)
        if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, type(default)) or isinstance(value, bool):
            raise UserError(f"run-config {key} expects {_KINDS[type(default)]}, got {value!r}")
        found[entry.name] = value
    settings = Settings(**found)
    for key in ("min_nodes", "most_samples"):
        if getattr(settings, key) < 0:
            raise UserError(f"run-config {key.replace('_', '-')} expects 0 or more, got {getattr(settings, key)}")
    for key in ("wait", "round_timeout"):
        if not 0 < getattr(settings, key) < math.inf:
            raise UserError(f"run-config {key.replace('_', '-')} expects seconds above 0, got {getattr(settings, key)}")
    if settings.resume_from not in ("last", "last-good"):
        raise UserError(f"run-config resume-from expects last or last-good, got {settings.resume_from!r}")
    if settings.weighting not in WEIGHTINGS:
        raise UserError(
            f"run-config weighting expects one of {', '.join(WEIGHTINGS)}, got {settings.weighting!r} "
            f"({nearest(settings.weighting, list(WEIGHTINGS))})"
        )
    return settings


def toml(value: str | float) -> str:
    """A value as it stands in a TOML file, whatever signs a text has."""
    return json.dumps(value, ensure_ascii=False)


_KINDS = {str: "text", int: "a whole number", float: "a number"}


def recipe_of(path: Path, overrides: str = "") -> Recipe:
    """The app's recipe with the keys that ``set`` changes."""
    given: dict[str, Any] = {}
    try:
        words = shlex.split(overrides)
    except ValueError as error:
        raise UserError(f"run-config set expects KEY=VALUE pairs, got {overrides!r}: {error}") from None
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UserError(f"run-config set expects KEY=VALUE pairs, got {word!r}")
        given[key] = value
    return load_recipe(path, given)


def refuse_for_simulations(recipe: Recipe) -> None:
    """Raise UserError for keys with which no federation runs."""
    if recipe.faults or recipe.on_bad_update == "keep":
        key = "faults" if recipe.faults else "on_bad_update = keep"
        raise UserError(f"{key} is for simulations: a federation has faults of its own, and always its guard")
