"""Work beside the main line of a step: with few models a kernel fills a part of the device, and two fill more.

Inside :func:`beside` what :func:`aside` is given runs on a second stream; :func:`join` waits for it. Captured in a
graph the two streams become two branches. Elsewhere everything runs in its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
_second: Any = None  # a stream; autograd's own threads must see it, so it is no context variable
_read: list[Any] = []  # what work aside reads: its memory may not be given away before it is done


@contextmanager
def beside(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Let work go aside to this stream; all of it has been waited for at the end."""
    global _second
    _second = stream
    try:
        if stream is not None:  # from here on it belongs to the capture under way
            stream.wait_stream(torch.cuda.current_stream())
        yield
        join()
    finally:
        _second = None
        _read.clear()


def aside(work: Callable[[], Result], *reads: Any) -> Result:
    """Start some work that reads these tensors; whoever uses its result must :func:`join` first."""
    if _second is None:
        return work()
    _read.extend(reads)
    _second.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(_second):
        return work()


def join() -> None:
    """Wait for what went aside."""
    if _second is not None:
        torch.cuda.current_stream().wait_stream(_second)
