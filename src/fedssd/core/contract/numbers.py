"""The numbers of a method, which may differ between runs of one batch: read off, and put back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from fedssd.core.tree import Tree

Value = TypeVar("Value")


def numbers_of(value: object) -> Tree:
    """The numeric fields of a method, solver or half, as a tree of floats that may differ between runs of one batch."""
    found: dict[str, Tree] = {}
    for entry_field in fields(value) if is_dataclass(value) else ():
        name, entry = entry_field.name, getattr(value, entry_field.name)
        if isinstance(entry, (float, Tensor)):
            found[name] = entry
        elif isinstance(entry, tuple):
            found[name] = {str(i): numbers_of(part) for i, part in enumerate(entry)}
        elif is_dataclass(entry):
            found[name] = numbers_of(entry)
    return found


def with_numbers(value: Value, numbers: Tree) -> Value:
    """The same method with these numbers in place of its own (the inverse of :func:`numbers_of`)."""
    changed: dict[str, Any] = {}
    for name, number in numbers.items():
        entry = getattr(value, name)
        if isinstance(entry, tuple):
            changed[name] = tuple(with_numbers(part, number[str(i)]) for i, part in enumerate(entry))
        elif is_dataclass(entry):
            changed[name] = with_numbers(entry, number)
        else:
            changed[name] = number
    return replace(value, **changed)  # type: ignore[type-var]
