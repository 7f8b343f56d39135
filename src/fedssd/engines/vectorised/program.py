"""The captured program of a batch of models: static buffers, one step, replayed."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.tree import Tree
from fedssd.engines.kernels.launching import rehearse, unlaunched
from fedssd.engines.vectorised.recorder import Replayed, record
from fedssd.engines.vectorised.step import Context, State, Step

RECORD_AFTER = 1  # steps of one width before it is recorded: that costs as much as a few steps
WARM_UP = 2  # steps run before a capture: libraries choose and load their kernels


class Chunk(NamedTuple):
    """Several steps of batches, step first so that one step of the first w models is one block of memory."""

    x: Any  # [S, M, B, …]; or which stored samples they are made of
    y: Tensor  # [S, M, B]
    mask: Tensor  # [S, M, B]
    target: Tree  # [S, M, …]


LookUp = Callable[[Any, Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]
"""From visits, labels and mask of many steps, and the number of one: the batches of that step for so many models."""


class Program:
    """Buffers for M models, and a step over the first w of them for each width of the ladder.

    A CUDA graph wants its tensors where they were at capture, so everything a step reads is copied into buffers that
    outlive the round, and the number of the step within its chunk is a tensor that the step itself counts up.
    """

    def __init__(
        self,
        step: Step,
        capacity: int,
        graphs: bool,
        device: torch.device,
        compiled: bool = False,
        look_up: LookUp | None = None,
        prepared: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """``capacity`` is the most steps a chunk may have; ``look_up`` makes batches where chunks hold none.

        ``prepared`` is told the seconds that go into compiling and capturing a step before it is first taken.
        """
        self.step, self.capacity, self.graphs, self.compiled = step, capacity, graphs, compiled
        self.look_up, self._prepared = look_up, prepared
        self._state: State | None = None
        self._context: Context | None = None
        self._chunk: Chunk | None = None
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self._replays: dict[int, Callable[[], None]] = {}
        self._pool: Any = None
        self._uses: dict[int, int] = {}
        self._functions: dict[int, Callable[..., Any]] = {}

    def load(self, weights: Tree, context: Context) -> None:
        """Begin a round: weights [M, …], velocity and figures at zero."""
        for function in self._functions.values():
            if isinstance(function, Replayed):
                function.new_round()
        params = self.step.params.pack(weights["params"], context.samples)
        buffers = self.step.buffers.pack(weights["buffers"])
        figures = params.new_zeros(len(params), len(self.step.names))
        self._context = _put(self._context, context)
        self._state = _put(self._state, State(params, torch.zeros_like(params), buffers, figures))

    def run(self, chunk: Chunk, width: int) -> None:
        """Take every step of a chunk with the first ``width`` models."""
        steps = len(chunk.y)
        if not self.step.names:
            self._name_figures(chunk)
        if self.graphs:
            self._fill(chunk)
            self._place.zero_()
            replay = self._replay(width)
            for _ in range(steps):
                replay()
            return
        state, context = self._head(width), self._rows(width)
        for number in range(steps):
            now = self._at(chunk, number, width)
            self._function(width, state, context, *now)(state, context, *now)

    @property
    def weights(self) -> Tree:
        """The models as they are now, in tensors of their own."""
        assert self._state is not None
        params, _, buffers, _ = _map(torch.clone, self._state)
        return {"params": self.step.params.views(params), "buffers": self.step.buffers.views(buffers)}

    @property
    def figures(self) -> Tree:
        """What the steps summed up, each [M]."""
        assert self._state is not None
        return {name: self._state.figures[:, place].clone() for place, name in enumerate(self.step.names)}

    def _name_figures(self, chunk: Chunk) -> None:
        """Let one model say what it sums up, so that the sums have a place."""
        x, y, mask, target = _map(lambda leaf: leaf[:1], self._at(chunk, 0, 1))

        def ask() -> None:
            self.step.name_figures(self._head(1), self._rows(1), x, y, mask, target)

        unlaunched(ask) if self.graphs and self.step.kernels else ask()
        assert self._state is not None
        figures = self._state.params.new_zeros(len(self._state.params), len(self.step.names))
        self._state = self._state._replace(figures=figures)

    def _fill(self, chunk: Chunk) -> None:
        """The chunk at the front of buffers that have room for ``capacity`` steps of all models."""
        if self._chunk is None:
            self._chunk = _map(lambda leaf: leaf.new_zeros(self.capacity, *leaf.shape[1:]), chunk)
        _map(lambda old, found: old[: found.shape[0], : found.shape[1]].copy_(found), self._chunk, chunk)

    def _head(self, width: int) -> State:
        assert self._state is not None
        found: State = _map(lambda part: part[:width], self._state)
        return found

    def _rows(self, width: int) -> Context:
        assert self._context is not None
        cut = lambda leaf: leaf[:width]  # noqa: E731
        numbers, sent, memory, *held = self._context
        sent = sent if self.step.one_run else tree.map_tree(cut, sent)
        return Context(tree.map_tree(cut, numbers), sent, tree.map_tree(cut, memory), *map(cut, held))

    def _function(self, width: int, *args: Any) -> Callable[..., Any]:
        """The step for this width; recorded once it has been taken often enough to pay for that."""
        if width in self._functions:
            return self._functions[width]
        self._uses[width] = self._uses.get(width, 0) + 1
        if not self.compiled and (self.graphs or self._uses[width] <= RECORD_AFTER):
            return self._advance
        self._functions[width] = record(self._advance, args, self.compiled)
        return self._functions[width] if self.compiled else self._advance  # a recording is checked on another step

    def _advance(self, state: State, context: Context, x: Tensor, y: Tensor, mask: Tensor, target: Tree) -> None:
        """One step in place: the compiler then writes results where they belong instead of copying them there."""
        _store(state, self.step(state, context, x, y, mask, target))

    def _replay(self, width: int) -> Callable[[], None]:
        if width not in self._replays:
            torch.cuda.synchronize()
            begun = time.perf_counter()
            self._replays[width] = self._capture(width)
            torch.cuda.synchronize()
            self._prepared(time.perf_counter() - begun)
        return self._replays[width]

    def _capture(self, width: int) -> Callable[[], None]:
        state, context = self._head(width), self._rows(width)
        function = self._function(width, state, context, *self._now(width))

        def once() -> None:
            function(state, context, *self._now(width))
            self._place.add_(1)

        kept: State = _map(torch.clone, state)
        if self.step.kernels:
            self._place.zero_()
            rehearse(once)
            _store(state, kept)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._place.zero_()
                once()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # No result outlives a replay, so all widths share their memory.
        with _nothing_collected(), _capturing(graph, self._pool):
            once()
        _store(state, kept)  # warm-up moved the models
        self._place.zero_()
        return graph.replay

    def _at(self, chunk: Chunk, number: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tree]:
        """The batches of one step of a chunk."""
        if self.look_up is not None:
            return *self.look_up(*chunk[:3], torch.full_like(self._place, number), width), chunk.target
        found: tuple[Tensor, Tensor, Tensor, Tree] = _map(lambda leaf: leaf[number].contiguous(), tuple(chunk))
        return found

    def _now(self, width: int) -> tuple[Tensor, Tensor, Tensor, Tree]:
        """The batches of the step the device is at."""
        assert self._chunk is not None
        if self.look_up is not None:
            return *self.look_up(*self._chunk[:3], self._place, width), self._chunk.target
        now: tuple[Tensor, Tensor, Tensor, Tree] = _map(
            lambda leaf: leaf[:, :width].index_select(0, self._place)[0], tuple(self._chunk)
        )
        return now


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Without the garbage collector: were it to free the graphs of an earlier run, a capture under way would fail."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """A capture that says what failed in it: ending it may then fail too, and that failure would hide the first."""
    stream, failed = torch.cuda.current_stream(), None
    try:
        with torch.cuda.graph(graph, pool=pool):
            try:
                yield
            except BaseException as error:
                failed = error
                raise
    except BaseException:
        torch.cuda.set_stream(stream)
        if failed is not None:
            raise failed from None
        raise


def _store(state: State, new: State) -> None:
    _map(lambda kept, found: kept.copy_(found), state, new)


def _put(kept: Any, new: Any) -> Any:
    """``new`` in the tensors of ``kept``, whose addresses graphs remember."""
    if kept is None:
        return _map(lambda leaf: leaf.clone(), new)
    return _map(lambda old, found: old.copy_(found), kept, new)


def _map(function: Callable[..., Any], *values: Any) -> Any:
    """Leaf by leaf through dictionaries and tuples of one shape."""
    first = values[0]
    if isinstance(first, dict):
        return {name: _map(function, *(value[name] for value in values)) for name in first}
    if isinstance(first, tuple):
        parts = [_map(function, *same) for same in zip(*values, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return function(*values)
