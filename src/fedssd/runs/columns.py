"""The rounds of a run as columns, a figure each, and back; with how much detail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from fedssd.errors import UserError

Line = Mapping[str, Any]
Columns = dict[str, Any]

DETAILS = ("curves", "classes", "all")
DECIMALS = {"global.loss": 4, "drift": 7, "distillation": 7}  # but for ``all``; everything else is kept as it is
SINGLE_CLIENTS = "local.acc."
BY_CLASS = ("global.class_acc", "local.class_acc", "client_0.class_acc")
LAST = (*BY_CLASS, "credibility", "confusion.global", "confusion.local.8")  # what the paper's figures show of the end
BEFORE_LAST = ("global.class_acc", "confusion.global")  # of the model that the last round began with
WORST = {"global.class_acc": "global.worst", "local.class_acc": "local.worst"}


def to_columns(rounds: Sequence[Line], detail: str = "curves") -> Columns:
    """Write rounds as columns: a list with a value a round, a value that is always the same, or a value at some rounds.

    ``all`` keeps everything as it is. ``curves`` keeps what is one figure a round, the recall of the worst class, and
    of the last round what the figures of classes are drawn from; ``classes`` also every class's recall in every round.
    What is forgotten is a difference of two other columns, so that only ``all`` has a column for it.
    """
    if detail == "all":
        flat = [dict(_leaves(line)) for line in rounds]
    else:
        flat = [_thinned(line, detail, len(rounds) - place) for place, line in enumerate(rounds, start=1)]
    for line in rounds:
        if wrong := [key for key in line if not key or "." in key]:
            raise UserError(f"a round's keys are words without a dot, got {wrong[0]!r}")
    names = sorted({name for line in flat for name in line})
    return {name: _column(name, flat) for name in names}


def to_rounds(columns: Columns, detail: str = "all") -> list[dict[str, Any]]:
    """Read columns of some detail back; ValueError where they do not fit together."""
    numbers = columns.get("round")
    if isinstance(numbers, int):  # a single round is always the same
        numbers = [numbers]
    if not isinstance(numbers, list):
        raise ValueError("expects a list of rounds in column 'round'")
    rounds: list[dict[str, Any]] = [{} for _ in numbers]
    for name, column in columns.items():
        *path, last = name.split(".")
        for line, value in _cells(name, column, rounds):
            for key in path:
                line = line.setdefault(key, {})
                if not isinstance(line, dict):
                    raise ValueError(f"has a value for {key!r} and for {name!r}, which cannot both be")
            if last in line:
                raise ValueError(f"has two values for {name!r}")
            line[last] = value
    for line in rounds if detail != "all" else []:
        if (lost := _forgotten(line)) is not None:
            line.setdefault("forgetting", lost)
    return rounds


def size(columns: Columns) -> int:
    """Count the values that the rounds will have."""
    numbers = columns.get("round")
    count = len(numbers) if isinstance(numbers, list) else 1
    return sum(len(column.get("round", ())) if isinstance(column, dict) else count for column in columns.values())


def _leaves(content: Line, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its path; an object without keys, or with keys that are no part of a path, is a value itself."""
    for key, value in content.items():
        if isinstance(value, dict) and value and all(one and "." not in one for one in value):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _thinned(line: Line, detail: str, rounds_left: int) -> dict[str, Any]:
    """The leaves of a round that are kept."""
    lists = (*(BY_CLASS if detail == "classes" else ()), *(LAST, BEFORE_LAST, ())[min(rounds_left, 2)])
    flat = dict(_leaves(line))
    kept = {
        name: _rounded(name, value)
        for name, value in flat.items()
        if name in lists or not (isinstance(value, list) or name.startswith(SINGLE_CLIENTS))
    }
    if kept.get("forgetting") == _forgotten(line):
        kept.pop("forgetting", None)
    return kept | {short: min(flat[name]) for name, short in WORST.items() if flat.get(name)}


def _forgotten(line: Line) -> float | None:
    """How much better the global model is than the clients' own, where both were measured."""
    both = [line.get(whose, {}).get(key) for whose, key in (("global", "acc"), ("local", "acc_mean"))]
    return None if not all(isinstance(one, float) for one in both) else both[0] - both[1]


def _rounded(name: str, value: Any) -> Any:
    places = DECIMALS.get(name, DECIMALS.get(name.partition(".")[0]))
    return value if places is None or not isinstance(value, float) else round(value, places)


def _column(name: str, flat: Sequence[Line]) -> Any:
    there = [number for number, line in enumerate(flat, start=1) if name in line]
    values = [flat[number - 1][name] for number in there]
    if len(there) < len(flat):
        return {"round": there, "value": values}
    first = values[0]
    alike = not isinstance(first, list | dict) and all(repr(one) == repr(first) for one in values)
    return first if alike else values


def _cells(name: str, column: Any, rounds: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Any]]:
    """The rounds that a column has a value for, each with it."""
    if isinstance(column, dict):
        there, values = column.get("round"), column.get("value")
        if not isinstance(there, list) or not isinstance(values, list) or len(there) != len(values):
            raise ValueError(f"expects as many rounds as values in column {name!r}")
        if not all(type(number) is int and 0 < number <= len(rounds) for number in there):
            raise ValueError(f"expects rounds from 1 to {len(rounds)} in column {name!r}")
        return zip([rounds[number - 1] for number in there], values, strict=True)
    if isinstance(column, list):
        if len(column) != len(rounds):
            raise ValueError(f"expects {len(rounds)} values in column {name!r}, got {len(column)}")
        return zip(rounds, column, strict=True)
    return zip(rounds, repeat(column))
