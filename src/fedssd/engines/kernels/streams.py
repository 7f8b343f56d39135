"""Work beside the main line of a step: with few models a kernel fills a part of the device, and two fill more.

Inside :func:`beside` there is a branch, and what it is given runs on a second stream; joining it waits for that.
Captured in a graph the two streams become two branches. Elsewhere everything runs in its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

from fedssd.engines.kernels.launching import rehearsing

Result = TypeVar("Result")


class Branch:
    """The second stream of one step; without one, the main line."""

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        self._stream = stream
        self._read: list[Any] = []  # what work aside reads: its memory may not be given away before it is done

    def run(self, work: Callable[[], Result], *reads: Any) -> Result:
        """Start some work that reads these tensors; whoever uses its result must :meth:`join` first."""
        if self._stream is None:
            return work()
        self._read.extend(reads)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            return work()

    def join(self) -> None:
        """Wait for what went aside."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def end(self) -> None:
        """All has been waited for, or given up: from here on everything runs in its turn."""
        self._stream = None
        self._read.clear()


# Each thread sees its own step's. Autograd's threads see none: the way back takes the branch that the way there met.
_branch: ContextVar[Branch | None] = ContextVar("branch", default=None)


def branch() -> Branch:
    """Where the work of the step under way may go."""
    return _branch.get() or Branch()


@contextmanager
def beside(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Let work go aside to this stream; all of it has been waited for at the end. A rehearsal has one stream."""
    if stream is None or rehearsing():
        yield
        return
    now = Branch(stream)
    before = _branch.set(now)
    try:
        stream.wait_stream(torch.cuda.current_stream())  # from here on it belongs to the capture under way
        yield
    except BaseException:
        with suppress(RuntimeError):  # why the step failed says more
            now.join()  # a capture cannot end while a stream of it is out
        raise
    else:
        now.join()
    finally:
        _branch.reset(before)
        now.end()
