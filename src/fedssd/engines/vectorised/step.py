"""One local step of many models at once, as a pure function of tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Batch, Local, Method, numbers_of, overrides, with_numbers
from fedssd.core.net import Net, Outputs
from fedssd.core.solver import SGD
from fedssd.core.step import gradient, objective
from fedssd.core.tree import Tree
from fedssd.engines.kernels.layers import pieces
from fedssd.engines.kernels.net import Losses
from fedssd.engines.kernels.streams import beside, branch
from fedssd.engines.vectorised.flat import Flat, FlatByType
from fedssd.engines.vectorised.layout import holds_back
from fedssd.engines.vectorised.lift import over_models


class State(NamedTuple):
    """What the models carry from step to step."""

    params: Tensor  # [M, P]
    velocity: Tensor  # [M, P]
    buffers: Tree  # by type, each [M, Q]
    figures: Tensor  # [M, F] running sums over samples


class Context(NamedTuple):
    """What stays the same for a whole round."""

    numbers: Tree  # the method's numbers, each [M]
    sent: Tree  # one run's message, or each model's own copy [M, …]
    memory: Tree  # [M, …]
    samples: Tensor  # [M]
    counts: Tensor  # [M, K]


def method_numbers(method: Method) -> Tree:
    """The numbers of a method that the step reads; the server half's only where it has a say in a step."""
    server = numbers_of(method.server) if holds_back(method.server) else {}
    return {"local": numbers_of(method.local), "solver": numbers_of(method.solver), "server": server}


def numbered(method: Method, numbers: Tree) -> Method:
    """The method with other numbers."""
    local: Local = with_numbers(method.local, numbers["local"])
    solver: SGD = with_numbers(method.solver, numbers["solver"])
    return Method(local=local, solver=solver)


class _Beside(Net):
    """A net in training, with parameters of its own that a penalty does not see, which then waits for the teachers.

    The gradient of a parameter may be made aside only where nothing but the layer contributes to it.
    """

    def __init__(self, net: Net, params: Tree) -> None:
        self.net, self.params, self.has_batch_norm = net, params, net.has_batch_norm

    def train(self, weights: Tree, x: Tensor) -> tuple[Outputs, Tree]:
        found = self.net.train({**weights, "params": self.params}, x)
        branch().join()
        return found


class Step:
    """``step(state, context, x, y, mask, target)`` is the next state; ``names`` says what its figures are."""

    def __init__(
        self,
        method: Method,
        net: Net,
        params: Flat,
        buffers: FlatByType,
        one_run: bool,
        masked: bool,
        *,
        asks: bool = False,
        kernels: bool = False,
    ) -> None:
        """``asks`` the teachers itself, instead of being handed what they said; ``kernels`` of ours where they fit."""
        self.method, self.net, self.params, self.buffers = method, net, params, buffers
        self.one_run, self.masked, self.asks = one_run, masked, asks
        self.kernels = kernels
        self.points, self.settles = (overrides(method.local, hook) for hook in ("point", "settle"))
        # In place by our kernel, unless what was there before is still wanted.
        self.in_place = kernels and type(method.solver) is SGD and not (self.settles or holds_back(method.server))
        self._stream: torch.cuda.Stream | None = None
        self.names: list[str] = []

    def __call__(self, state: State, context: Context, x: Tensor, y: Tensor, mask: Tensor, target: Tree) -> State:
        with beside(self._second(x)):
            return self._taken(state, context, x, y, mask, target)

    def _second(self, x: Tensor) -> torch.cuda.Stream | None:
        """A second stream for what the step need not wait for: teachers, and gradients of weights."""
        if not (self.kernels and x.is_cuda):
            return None
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        return self._stream

    def _taken(self, state: State, context: Context, x: Tensor, y: Tensor, mask: Tensor, target: Tree) -> State:
        if self.asks:
            target = branch().run(lambda: self._targets(context, x, y, mask), x, y, mask)

        def losses(params: Tree) -> tuple[Tensor, tuple[Tree, Tensor]]:
            return self._losses(params, state, context, x, y, mask, target)

        gradients, (buffers, sums) = gradient(losses, {"flat": state.params})
        if self.points:
            point = self._by_method(_point, context, state.params, gradients["flat"])
            gradients, _ = gradient(losses, {"flat": point})
        params, velocity = self._moved(state, context, gradients["flat"], mask)
        if self.settles:
            params = self._by_method(_settled, context, params, state.params)
        params = self._held(context, state.params, params)
        packed = self.buffers.pack(tree.map_tree(torch.detach, buffers))
        if self.in_place and not packed:  # a client that is done adds zeros to its figures
            return State(params, velocity, packed, state.figures.add_(sums.detach()))
        moved = State(params, velocity, packed, state.figures + sums.detach())
        if not self.masked:
            return moved
        live = mask[:, :1] > 0  # [M, 1]; a batch has its first sample, unless the client is done

        def kept(new: Tensor, old: Tensor) -> Tensor:
            return new if new is old else torch.where(live, new, old)

        return State(*(tree.map_tree(kept, *pair) for pair in zip(moved, state, strict=True)))

    def _moved(self, state: State, context: Context, gradients: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Parameters and velocity after the solver's step; in place, and only of live models, by our kernel."""
        if not self.in_place:
            found: tuple[Tensor, Tensor] = over_models(self._solve, len(mask))(
                context.numbers, state.params, state.velocity, gradients
            )
            return found
        from fedssd.engines.kernels.solver import sgd_

        solver: SGD = with_numbers(self.method.solver, context.numbers["solver"])
        lr, momentum, decay = (
            number if isinstance(number, Tensor) else state.params.new_full((len(mask),), number)  # a static one
            for number in (solver.lr, solver.momentum, solver.weight_decay)
        )
        sgd_(state.params, state.velocity, gradients, lr, momentum, decay, mask[:, 0] if self.masked else None)
        return state.params, state.velocity

    @torch.no_grad()
    def _targets(self, context: Context, x: Tensor, y: Tensor, mask: Tensor) -> Tree:
        """What every model's teachers say about its batch."""

        def about(numbers: Tree, sent: Tree, memory: Tree, batch: Batch) -> Tree:
            return numbered(self.method, numbers).local.targets(self.net, sent, memory, batch)

        lifted, batch = over_models(about, len(y), (False, self.one_run)), Batch(x, y, mask, *context[3:])
        with self._losses_of_ours():
            found: Tree = lifted(context.numbers, context.sent, context.memory, batch)
        return found

    def _losses_of_ours(self) -> AbstractContextManager[object]:
        return Losses() if self.kernels else nullcontext()

    @torch.no_grad()
    def name_figures(self, state: State, context: Context, x: Tensor, y: Tensor, mask: Tensor, target: Tree) -> None:
        """Find out what the method's figures are called."""
        target = self._targets(context, x, y, mask) if self.asks else target
        self._losses({"flat": state.params}, state, context, x, y, mask, target)

    def _losses(
        self, params: Tree, state: State, context: Context, x: Tensor, y: Tensor, mask: Tensor, target: Tree
    ) -> tuple[Tensor, tuple[Tree, Tensor]]:
        width = len(y)
        shared = (False, False, False, self.one_run)
        batch = Batch(x, y, mask, *context[3:])
        leaves = self.params.views(params["flat"])
        own = self.params.views(params["flat"], pieces) if self.kernels else {}
        with self._losses_of_ours():
            found: tuple[Tensor, tuple[Tree, Tensor]] = over_models(self._loss, width, shared)(
                context.numbers, leaves, self.buffers.views(state.buffers), context.sent, context.memory, batch, target,
                own,
            )  # fmt: skip
        return found

    def _loss(
        self,
        numbers: Tree,
        params: Tree,
        buffers: Tree,
        sent: Tree,
        memory: Tree,
        batch: Batch,
        target: Tree,
        own: Tree,
    ) -> tuple[Tensor, tuple[Tree, Tensor]]:
        now, net = numbered(self.method, numbers), _Beside(self.net, own) if own else self.net
        loss, (new, figures) = objective(now, net, params, buffers, sent, memory, batch, target)
        self.names = list(figures.names)
        return loss, (new, figures.sums)

    def _solve(self, numbers: Tree, params: Tensor, velocity: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = numbered(self.method, numbers).solver.step(params, velocity, gradients)
        return found

    def _by_method(self, hook: Callable[..., Tree], context: Context, params: Tensor, other: Tensor) -> Tensor:
        """What a hook of the local half makes of two sets of parameters, packed as they are."""

        def one(numbers: Tree, sent: Tree, memory: Tree, params: Tree, other: Tree) -> Tree:
            return hook(numbered(self.method, numbers), params, other, sent, memory)

        lifted = over_models(one, len(params), (False, self.one_run))
        views = self.params.views(params), self.params.views(other)
        return self.params.pack(lifted(context.numbers, context.sent, context.memory, *views), params)

    def _held(self, context: Context, before: Tensor, after: Tensor) -> Tensor:
        """Layers that the server half freezes, as they were."""
        if not holds_back(self.method.server):
            return after

        def hold(numbers: Tree, sent: Tree, old: Tree, new: Tree) -> Tree:
            return with_numbers(self.method.server, numbers["server"]).hold(sent, old, new)

        lifted = over_models(hold, len(after), (False, self.one_run))
        held = lifted(context.numbers, context.sent, self.params.views(before), self.params.views(after))
        return self.params.pack(held, after)


def _point(method: Method, params: Tree, gradients: Tree, sent: Tree, memory: Tree) -> Tree:
    return method.local.point(params, gradients, sent, memory)


def _settled(method: Method, params: Tree, before: Tree, sent: Tree, memory: Tree) -> Tree:
    return method.local.settle(params, before, method.solver.lr, sent, memory)
