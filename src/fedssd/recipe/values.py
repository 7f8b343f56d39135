"""Values of a recipe's keys: read from text, of the right type and within bounds, or one line that says why not."""

from __future__ import annotations

import json
import math
import tomllib
from typing import Any

from fedssd.errors import UserError
from fedssd.recipe.keys import KEYS, Key


def checked(name: str, value: Any) -> Any:
    """A value within the key's bounds, or one line that says what was expected."""
    one = KEYS[name]
    if one.choices and value not in one.choices:
        raise UserError(
            f"{name} expects one of {', '.join(choice or 'nothing' for choice in one.choices)}, got {value!r}"
        )
    if one.understand is not None:
        one.understand(value)
    if one.kind in (int, float) and not _within(one, value):
        raise UserError(f"{name} expects {_bounds(one, value)}, got {value}")
    return value


def _within(one: Key, value: float) -> bool:
    return (
        math.isfinite(value)
        and (one.low is None or value >= one.low)
        and (one.above is None or value > one.above)
        and (one.high is None or value <= one.high)
        and (one.below is None or value < one.below)
    )


def _bounds(one: Key, value: float) -> str:
    """What a value is to be: of whole numbers only the bound it missed."""
    if one.kind is int:
        low = one.low is not None and value < one.low
        return f"a whole number of {f'at least {one.low}' if low else f'at most {one.high:,}'}"
    words = {"of at least": one.low, "above": one.above, "at most": one.high, "below": one.below}
    found = " and ".join(f"{word} {bound:g}" for word, bound in words.items() if bound is not None)
    return f"a {'' if math.isfinite(value) else 'finite '}number {found}"


def typed(name: str, value: Any, where: str) -> Any:
    """A value of the key's type, from text where need be, or one line that says what was expected."""
    kind = KEYS[name].kind
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        value = value.item()
    if isinstance(value, str) and kind is not str:
        value = parsed(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise UserError(f"{where}: {name} expects {names[kind]}, got {value!r}")
    return value


def parsed(text: str) -> Any:
    """A value as TOML would read it, or the word itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # the latter of brackets within brackets
        return text


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
