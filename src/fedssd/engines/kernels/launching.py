"""Kernels as they are launched, or only rehearsed: compiled many at a time before the first of them runs.

Triton compiles a kernel when it is first launched, so a step's kernels would be compiled one after another. In a
rehearsal a launch only notes what it was asked for, and the work goes on with whatever lies in the memory; then all
that was noted is compiled, by as many threads as there are cores. Work of which nobody reads the numbers, such as
asking a step for the names of its figures, need not launch anything at all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class Kernel:
    """A function for the device, compiled by Triton: ``kernel[grid](arguments)`` launches it."""

    def __init__(self, function: Any, rehearsed: bool) -> None:
        self.function, self._rehearsed = function, rehearsed

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            stage = _stage
            if stage is None or not self._rehearsed or not stage.is_here():
                self.function[grid](*args, **options)
            else:
                stage.note(self.function, grid, args, options)

        return launch


def launched(*, rehearsed: bool = True, **options: Any) -> Callable[[Callable[..., None]], Kernel]:
    """``triton.jit`` for what is launched.

    What a rehearsed kernel would write is left as it lies, and wrong numbers do no harm there; one that writes labels
    or places, by which others read memory, is not ``rehearsed`` and runs.
    """
    import triton

    return lambda function: Kernel(triton.jit(**options)(function), rehearsed)


@dataclass(frozen=True)
class _Kind:
    """What of a tensor a kernel is compiled for; the tensor itself may go."""

    dtype: torch.dtype
    beyond: int  # a multiple of sixteen bytes

    def data_ptr(self) -> int:
        return self.beyond


class _Stage:
    """A rehearsal, known by its stream: autograd's own threads launch on it, too, and nobody else does."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream, self._lock = stream, threading.Lock()
        self._asked: dict[Any, Callable[[], object]] = {}

    def is_here(self) -> bool:
        """Whether the thread that asks is part of it."""
        return torch.cuda.current_stream() == self._stream

    def note(self, function: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        kinds = tuple(_Kind(a.dtype, a.data_ptr() % 16) if isinstance(a, Tensor) else a for a in args)
        with self._lock:
            key = (function, kinds, *options.items())
            self._asked.setdefault(key, lambda: function.warmup(*kinds, grid=grid, **options))

    def compile(self) -> None:
        """All that was asked for. What cannot be compiled says so when it is launched."""

        def one(work: Callable[[], object]) -> None:
            with torch.cuda.device(self._stream.device), suppress(Exception):
                work()

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(one, self._asked.values()))


_stage: _Stage | None = None  # the rehearsal under way
_one_at_a_time = threading.Lock()
_streams: dict[int, torch.cuda.Stream] = {}  # of each device, for nothing else


def rehearse(work: Callable[[], object]) -> None:
    """Compile the kernels that some work on the current device launches, without launching them.

    The work may compute anything meanwhile; whatever it overwrites must be put back.
    """
    with _on_stage() as stage:
        work()
    stage.compile()


def unlaunched(work: Callable[[], Result]) -> Result:
    """The result of some work, none of whose kernels was launched: its numbers are anything."""
    with _on_stage():
        return work()


def rehearsing() -> bool:
    """Whether a launch would be noted only."""
    return _stage is not None and _stage.is_here()


@contextmanager
def _on_stage() -> Iterator[_Stage]:
    global _stage
    with _one_at_a_time:
        before = torch.cuda.current_stream()
        stream = _streams.setdefault(before.device.index, torch.cuda.Stream(before.device))  # type: ignore[no-untyped-call]
        stream.wait_stream(before)
        _stage = _Stage(stream)
        try:
            with torch.cuda.stream(stream):
                yield _stage
        finally:
            _stage = None
            before.wait_stream(stream)
