"""Unpickling that cannot run code: arrays of numbers, containers, bytes, text, and nothing else.

A pickle is a program, and the official CIFAR archives are pickles. They are read by an unpickler that hands out a few
stand-ins written here in place of numpy's functions; a pickle that asks for any other name is refused before anything
is called. numpy itself only ever sees the raw bytes of an array. What a small pickle can unfold to is bounded.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from fedssd.errors import UserError

DEEPEST = 100  # containers within containers
MOST_VALUES = 1_000_000  # in all containers, one that is in several counted in each; CIFAR-100 has 150,000 in a file
NUMBERS = frozenset(("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1", "f4", "f8"))


class _RefusedError(Exception):
    """Raised for a name the pickle must not have; its text is the name."""


class _Type:
    """Stands in for a numpy dtype: a kind of number and a byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: object, *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else str(code)
        self.order = "="
        if self.code not in NUMBERS:
            raise _RefusedError(f"numpy.dtype({self.code!r})")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        self.order = order.decode("latin1") if isinstance(order, bytes) else str(order)

    def resolve(self) -> np.dtype[Any]:
        """The dtype itself."""
        return np.dtype((self.order if self.order in "<>" else "=") + self.code)


class _Array:
    """Stands in for a numpy array until its shape, type and bytes have been read."""

    __slots__ = ("value",)

    def __init__(self, *_: object) -> None:
        self.value: np.ndarray[Any, Any] = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_columns, raw = state
        if not (isinstance(kind, _Type) and isinstance(raw, bytes)):
            raise ValueError("an array of something other than numbers")
        self.value = np.frombuffer(raw, kind.resolve()).reshape(shape, order="F" if by_columns else "C")


class _LatinBytes:
    """How Python 3 writes bytes into old pickles; other encodings would import modules by name.

    A text can be encoded again and again, so no more comes out than the pickle has bytes.
    """

    __slots__ = ("left",)

    def __init__(self, most: int) -> None:
        self.left = most

    def __call__(self, text: str = "", encoding: str = "latin1") -> bytes:
        if encoding not in ("latin1", "latin-1"):
            raise _RefusedError(f"_codecs.encode to {encoding!r}")
        self.left -= len(text)
        if self.left < 0:
            raise ValueError("more bytes than the pickle has")
        return text.encode("latin1")


def _stand_ins(size: int) -> dict[tuple[str, str], Any]:
    """The whole vocabulary; made anew for each pickle, which may set attributes on what it is handed."""
    latin = _LatinBytes(size)
    array: Callable[..., Any] = lambda *given: _Array(*given)  # noqa: E731
    kind: Callable[..., Any] = lambda *given: _Type(*given)  # noqa: E731
    encode: Callable[..., Any] = lambda *given: latin(*given)  # noqa: E731
    empty: Callable[..., Any] = lambda: b""  # noqa: E731
    return {
        ("numpy.core.multiarray", "_reconstruct"): array,
        ("numpy._core.multiarray", "_reconstruct"): array,
        ("numpy", "ndarray"): "numpy.ndarray",  # only ever an argument of _reconstruct, so a word will do
        ("numpy", "dtype"): kind,
        ("_codecs", "encode"): encode,
        ("__builtin__", "bytes"): empty,
        ("builtins", "bytes"): empty,
    }


class _Unpickler(pickle._Unpickler):
    """The standard unpickler with its dictionary of names cut down to the stand-ins.

    It is the one in Python: the memo of the one in C is a list as long as the largest number that a pickle names.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        self._names = _stand_ins(len(data))

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._names[module, name]
        except KeyError:
            raise _RefusedError(f"{module}.{name}") from None

    def persistent_load(self, pid: object) -> NoReturn:
        raise _RefusedError("a persistent object")


class _Finish:
    """Replaces stand-ins by the arrays they stand for."""

    def __init__(self) -> None:
        self._left = MOST_VALUES

    def __call__(self, content: Any, deep: int = 0) -> Any:
        if isinstance(content, _Array):
            return content.value
        if not isinstance(content, dict | list | tuple):
            return content
        self._left -= len(content)
        if deep > DEEPEST or self._left < 0:
            raise ValueError("containers that are too deep or too many")
        if isinstance(content, dict):
            return {key: self(value, deep + 1) for key, value in content.items()}
        return type(content)(self(value, deep + 1) for value in content)


def loads(data: bytes, where: str) -> Any:
    """The content of a pickle; ``where`` names it in the error if it is damaged or asks to call something.

    Arrays come out read-only.
    """
    try:
        return _Finish()(_Unpickler(data).load())
    except _RefusedError as refused:
        raise UserError(f"refuses to call {refused} as the pickle {where} asks: it is not the official file") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise UserError(f"expected a complete pickle, got a damaged one in {where}: get the file again") from error
