"""Typed values out of a JSON object; a ValueError names in one line the key that does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

Json = Mapping[str, Any]
Vector = tuple[float, ...]
Matrix = tuple[Vector, ...]
NAN = math.nan  # one object, so that values which hold it are equal to themselves


class Fields:
    """Take an object's values one by one, each once; what is left over is ``rest``."""

    def __init__(self, content: object, name: str = "") -> None:
        if not isinstance(content, dict):
            raise ValueError(f"expects an object{_for(name)}, got {short(content)}")
        self.rest: dict[str, Any] = dict(content)
        self._name = name

    def __contains__(self, key: str) -> bool:
        return key in self.rest

    def text(self, key: str, default: str | None = None) -> str:
        """Take text."""
        found: str = self._take(key, str, "text", default)
        return found

    def whole(self, key: str, default: int | None = None) -> int:
        """Take a whole number."""
        found: int = self._take(key, int, "a whole number", default)
        return found

    def flag(self, key: str) -> bool:
        """Take true or false."""
        found: bool = self._take(key, bool, "true or false", None)
        return found

    def number(self, key: str) -> float:
        """Take a number."""
        found: float = self._take(key, (int, float), "a number", None)
        return found

    def maybe(self, key: str) -> float | None:
        """Take a number; NaN for null, which is no finite number; None where the key is not there."""
        if key not in self.rest:
            return None
        if self.rest[key] is None:
            del self.rest[key]
            return NAN
        found: float = self._take(key, (int, float), "a number or null", None)
        return found

    def vector(self, key: str) -> Vector:
        """Take a list of numbers; empty where the key is not there."""
        return as_vector(self.rest.pop(key, []), self._path(key))

    def matrix(self, key: str) -> Matrix:
        """Take rows of numbers, all of one length; empty where the key is not there."""
        return as_matrix(self.rest.pop(key, []), self._path(key))

    def vector_or_matrix(self, key: str) -> Vector | Matrix:
        """Take a list of numbers or rows of them; empty where the key is not there."""
        value = self.rest.get(key)
        rows = isinstance(value, list) and value and isinstance(value[0], list)
        return self.matrix(key) if rows else self.vector(key)

    def inner(self, key: str) -> Fields:
        """Take an object within; an empty one where the key is not there."""
        return Fields(self.rest.pop(key, {}), self._path(key))

    def by_name(self, key: str) -> dict[str, float]:
        """Take numbers by name; NaN for null."""
        inner = self.inner(key)
        found = {name: inner.maybe(name) for name in list(inner.rest)}
        return {name: value for name, value in found.items() if value is not None}

    def numbers(self, key: str) -> dict[str, float]:
        """Take numbers by name; empty where the key is not there."""
        inner = self.inner(key)
        return {name: inner.number(name) for name in list(inner.rest)}

    def by_client(self, key: str, kind: Callable[[object, str], T]) -> dict[int, T]:
        """Take values by client."""
        inner = self.inner(key)
        return {_client(name, inner._path(name)): kind(value, inner._path(name)) for name, value in inner.rest.items()}

    def texts(self, key: str) -> tuple[str, ...]:
        """Take a list of texts; empty where the key is not there."""
        path = self._path(key)
        return tuple(
            as_text(one, f"{path}[{place}]") for place, one in enumerate(_listed(self.rest.pop(key, []), path))
        )

    def objects(self, key: str) -> list[Fields]:
        """Take a list of objects; empty where the key is not there."""
        path = self._path(key)
        return [Fields(one, f"{path}[{place}]") for place, one in enumerate(_listed(self.rest.pop(key, []), path))]

    def _path(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key

    def _take(self, key: str, kind: Any, words: str, default: Any) -> Any:
        if key not in self.rest:
            if default is None:
                raise ValueError(f"has no {self._path(key)!r}")
            return default
        value = self.rest.pop(key)
        if not isinstance(value, kind):
            raise ValueError(f"expects {words}{_for(self._path(key))}, got {short(value)}")
        return value


def as_number(value: object, name: str) -> float:
    """Read a number."""
    if not isinstance(value, int | float):
        raise ValueError(f"expects a number{_for(name)}, got {short(value)}")
    return value


def as_text(value: object, name: str) -> str:
    """Read text."""
    if not isinstance(value, str):
        raise ValueError(f"expects text{_for(name)}, got {short(value)}")
    return value


def as_vector(value: object, name: str) -> Vector:
    """Read a list of numbers."""
    value = _listed(value, name)
    if not {int, float}.issuperset(map(type, value)):  # a record has many, so they are looked at together
        place = next(place for place, one in enumerate(value) if not isinstance(one, int | float))
        raise ValueError(f"expects a number{_for(f'{name}[{place}]')}, got {short(value[place])}")
    return tuple(value)


def as_matrix(value: object, name: str) -> Matrix:
    """Read rows of numbers, each as long as the first."""
    rows = tuple(as_vector(row, f"{name}[{place}]") for place, row in enumerate(_listed(value, name)))
    for place, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ValueError(f"expects {len(rows[0])} numbers{_for(f'{name}[{place}]')}, got {len(row)}")
    return rows


def _listed(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expects a list{_for(name)}, got {short(value)}")
    return value


def short(value: object) -> str:
    """A value as written, cut after forty letters."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _client(name: str, path: str) -> int:
    if not name.isdecimal():
        raise ValueError(f"expects a client's number for {path!r}")
    return int(name)


def _for(name: str) -> str:
    return f" for {name!r}" if name else ""
