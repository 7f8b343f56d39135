"""What a federated method is: a local half, a server half and a solver, each a frozen value of pure functions.

A method never sees a loop, a device, a file or a socket. Every hook has a default, so a method overrides two or three.
Fields annotated ``float`` are numbers: an engine may run several values of them side by side, so a hook receives a
Python float or a 0-d tensor and must treat both alike. All other fields are static.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.net import Net, Outputs
from fedssd.core.plan import Phase
from fedssd.core.solver import SGD
from fedssd.core.tree import Tree


class Batch(NamedTuple):
    """What a client trains on in one step."""

    x: Tensor  # [B, …] ready for the model
    y: Tensor  # [B], the class; −1 − j for sample j of the public set, which has no label
    mask: Tensor  # [B], 1 for a sample and 0 for padding
    samples: Tensor  # n_i, how many samples the client holds

    @property
    def labelled(self) -> Tensor:
        """1 for the client's own samples, 0 for those of the public set, [B]."""
        return (self.y >= 0).to(self.mask.dtype)

    @property
    def public(self) -> Tensor:
        """The place of each sample in the public set, [B]; 0 for the client's own."""
        return (-1 - self.y).clamp(min=0)


class Work(NamedTuple):
    """What a client did in the round; made by the engine, so that no method counts steps itself."""

    samples: Tensor  # n_i
    steps: Tensor  # τ_i
    length: Tensor  # η‖a_i‖₁, how far the solver walked: η·τ_i without momentum


class ClientData(NamedTuple):
    """A client's samples after local training, for methods that measure something on them."""

    x: Tensor  # [n, …] as stored
    y: Tensor  # [n]
    mask: Tensor  # [n], 0 for padding
    prepare: Callable[[Tensor], Tensor]  # stored samples to model inputs, without augmentation
    public: Tensor | None = None  # [P, …] the public set, ready for the model, where the method needs one
    at_once: int = 32  # samples that a mean over all of them takes at a time, by default


class Auxiliary(NamedTuple):
    """The server's small labelled set D_V, ready for the model; without its labels, the public set."""

    x: Tensor
    y: Tensor


class Reports(NamedTuple):
    """What the server learns when a round closes: stacked client reports and who they came from."""

    content: Tree  # each leaf [C, …]
    share: Tensor  # [C], sums to one
    cohort: float  # participants over population


@dataclass(frozen=True)
class Local:
    """The client's half: what it minimises beside cross-entropy, what it remembers and what it reports."""

    name: ClassVar[str] = "fedavg"
    formula: ClassVar[str] = "CE"
    paper: ClassVar[str] = (
        "McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data"
    )
    strength: ClassVar[str | None] = None  # the number that turns the method into FedAvg at 0
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {}  # dataset -> the FedSSD paper's values
    needs_auxiliary: ClassVar[bool] = False
    needs_head: ClassVar[bool] = False  # the FedSSD paper gives this method a projection head
    reads_data: ClassVar[bool] = False  # finish() looks at the client's data
    needs_public: ClassVar[bool] = False  # clients hold the public set too, and may train on it
    shares_weights: ClassVar[bool] = True  # weights travel; else each client keeps a model of its own in its memory
    tied_to_places: ClassVar[str] = ""  # what it keeps over rounds that belongs to hidden units by their place

    def server_memory(self, weights: Tree) -> Tree:
        """What the server keeps between rounds for this method."""
        return {}

    def broadcast(self, net: Net, weights: Tree, memory: Tree, auxiliary: Auxiliary | None) -> Tree:
        """What is sent to the clients beside the weights, or in their place where no weights are shared.

        Its keys may be missing while nobody has said anything yet: a hook then finds them missing in ``sent``.
        """
        return {}

    def memory(self, sent: Tree) -> Tree:
        """What a client keeps between rounds, as it is before its first participation.

        Only here ``sent["weights"]`` is there for a method that shares no weights, too: the model a client starts
        with, which follows from the seed and does not travel.
        """
        return {}

    def start(self, sent: Tree, memory: Tree) -> Tree:
        """Where local training begins."""
        return sent["weights"]

    def phases(self, sent: Tree) -> tuple[Phase, ...]:
        """What a client goes through in this round, one after another; only which keys ``sent`` has may matter."""
        return (Phase(),)

    def targets(self, net: Net, sent: Tree, memory: Tree, batch: Batch) -> Tree:
        """What the frozen teachers say about a batch; constant in the local weights."""
        return {}

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        """Added to cross-entropy: one value per sample [B], or a scalar."""
        return out.logits.new_zeros(())

    def distilled(self, batch: Batch, target: Tree) -> dict[str, Tensor]:
        """Per-sample figures [B] that say how much is distilled; recorded each round, never differentiated."""
        return {}

    def finish(
        self, net: Net, weights: Tree, sent: Tree, memory: Tree, data: ClientData | None, work: Work
    ) -> tuple[Tree, Tree]:
        """After local training: the client's new memory, and its report to the server."""
        return memory, {}

    def upload(self, net: Net, weights: Tree, sent: Tree, memory: Tree) -> Tree:
        """What goes up to be combined; the weights unless a method says otherwise."""
        return weights

    def absorb(self, memory: Tree, weights: Tree, reports: Reports) -> Tree:
        """The server takes the accepted reports in and has its next memory; called every round."""
        return memory

    def __add__(self, other: Local) -> Local:
        return Sum((*parts_of(self), *parts_of(other)))


@dataclass(frozen=True)
class Server:
    """The server's half: how stacked client uploads [C, …] become the next global model."""

    name: ClassVar[str] = "fedavg"
    formula: ClassVar[str] = "w ← Σ p_i w_i"
    paper: ClassVar[str] = Local.paper
    needs_auxiliary: ClassVar[bool] = False
    mixes_models: ClassVar[bool] = False  # combine_models() takes clients with different models
    moves_units: ClassVar[bool] = False  # a hidden unit may have another place in the next global model

    def check(self, net: Net, weights: Tree, x: Tensor) -> None:
        """Raise ValueError, before anything trains, for a model that this half cannot combine; x is a few samples."""

    def memory(self, weights: Tree) -> Tree:
        """What the server half keeps between rounds."""
        return {}

    def broadcast(self, memory: Tree) -> Tree:
        """What this half sends to the clients beside the weights."""
        return {}

    def hold(self, sent: Tree, before: Tree, after: Tree) -> Tree:
        """The parameters that a local step leaves; a half that freezes some layers puts them back here."""
        return after

    def combine(
        self, net: Net, weights: Tree, memory: Tree, got: Tree, share: Tensor, work: Work, auxiliary: Auxiliary | None
    ) -> tuple[Tree, Tree]:
        """The next global weights and the next memory; here FedAvg's mean, weighted by samples."""
        return tree.weighted_mean(share, got), memory

    def combine_models(
        self,
        nets: Mapping[str, Net],
        weights: Mapping[str, Tree],
        memory: Tree,
        got: Mapping[str, Tree],
        share: Mapping[str, Tensor],
        work: Mapping[str, Work],
        auxiliary: Auxiliary | None,
    ) -> tuple[dict[str, Tree], Tree]:
        """:meth:`combine` for clients with different models, everything by the model's name; shares sum to one in each.

        A model that no client of the round holds is missing in ``got``, ``share`` and ``work``.
        """
        raise ValueError(unmixable(Local(), self))


@dataclass(frozen=True)
class Sum(Local):
    """Several local halves at once: penalties add, and each part has its own memory and messages under its name."""

    parts: tuple[Local, ...] = ()

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if len(set(names)) != len(names):
            raise ValueError(f"each local half may appear once in a sum, got {' + '.join(names)}")
        for part in self.parts:  # two answers to where training begins, what it goes through or what goes up
            if any(getattr(type(part), hook) is not getattr(Local, hook) for hook in ("start", "phases", "upload")):
                raise ValueError(f"{part.name!r} does not train and upload the global model's weights: it stands alone")

    def _parts(self, *trees: Tree) -> Iterator[tuple[Any, ...]]:
        for part in self.parts:
            yield part.name, part, *(branch[part.name] for branch in trees)

    def _sent(self, sent: Tree) -> Tree:
        return {part.name: {"weights": sent["weights"], **sent[part.name]} for part in self.parts}

    def server_memory(self, weights: Tree) -> Tree:
        return {name: part.server_memory(weights) for name, part in self._parts()}

    def broadcast(self, net: Net, weights: Tree, memory: Tree, auxiliary: Auxiliary | None) -> Tree:
        return {name: part.broadcast(net, weights, own, auxiliary) for name, part, own in self._parts(memory)}

    def memory(self, sent: Tree) -> Tree:
        return {name: part.memory(own) for name, part, own in self._parts(self._sent(sent))}

    def targets(self, net: Net, sent: Tree, memory: Tree, batch: Batch) -> Tree:
        return {name: part.targets(net, s, m, batch) for name, part, s, m in self._parts(self._sent(sent), memory)}

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        total = out.logits.new_zeros(())
        for _, part, t, s, m in self._parts(target, self._sent(sent), memory):
            total = total + part.penalty(out, batch, t, params, s, m)
        return total

    def distilled(self, batch: Batch, target: Tree) -> dict[str, Tensor]:
        figures: dict[str, Tensor] = {}
        for name, part, own in self._parts(target):
            for key, value in part.distilled(batch, own).items():
                figures[f"{name} {key}" if key in figures else key] = value
        return figures

    def finish(
        self, net: Net, weights: Tree, sent: Tree, memory: Tree, data: ClientData | None, work: Work
    ) -> tuple[Tree, Tree]:
        done = {
            name: part.finish(net, weights, s, m, data, work)
            for name, part, s, m in self._parts(self._sent(sent), memory)
        }
        return {name: pair[0] for name, pair in done.items()}, {name: pair[1] for name, pair in done.items()}

    def absorb(self, memory: Tree, weights: Tree, reports: Reports) -> Tree:
        return {
            name: part.absorb(own, weights, reports._replace(content=said))
            for name, part, own, said in self._parts(memory, reports.content)
        }


def parts_of(local: Local) -> tuple[Local, ...]:
    """The parts of a sum, or the half itself."""
    return local.parts if isinstance(local, Sum) else (local,)


def uploads_weights(local: Local) -> bool:
    """Whether what goes up are the trained weights, and nothing a method made of them."""
    return type(local).upload is Local.upload


@dataclass(frozen=True)
class Method:
    """A whole method: local half × server half × solver."""

    local: Local = field(default_factory=Local)
    server: Server = field(default_factory=Server)
    solver: SGD = field(default_factory=SGD)

    def __post_init__(self) -> None:
        reason = meaningless(self.local, self.server)
        if reason:
            raise ValueError(reason)

    @property
    def needs_auxiliary(self) -> bool:
        return self.server.needs_auxiliary or any(part.needs_auxiliary for part in parts_of(self.local))

    @property
    def needs_head(self) -> bool:
        return any(part.needs_head for part in parts_of(self.local))

    @property
    def reads_data(self) -> bool:
        return any(part.reads_data for part in parts_of(self.local))


def meaningless(local: Local, server: Server) -> str:
    """Why these two halves cannot go together, or nothing."""
    if not local.shares_weights and type(server) is not Server:
        return (
            f"method {local.name!r} shares no weights, and server half {server.name!r} combines weights: "
            f"leave the server half out"
        )
    for part in parts_of(local):
        if server.moves_units and part.tied_to_places:
            return (
                f"method {part.name!r} does not go with server half {server.name!r}: {part.tied_to_places} belong to "
                f"hidden units by their place, and {server.name!r} moves units to other places between rounds"
            )
    return ""


def unmixable(local: Local, server: Server) -> str:
    """Why these two halves cannot serve clients with different models, or nothing."""
    if not local.shares_weights or server.mixes_models:
        return ""
    return (
        f"server half {server.name!r} combines the weights of one model, and the clients have different ones: "
        "take server half 'feddf', or a method without shared weights (fd, fedmd, cronus)"
    )


class ServerState(NamedTuple):
    """Everything the server has between two rounds."""

    round: int
    weights: Tree  # the global model; where no weights are shared, the one every client started from
    local: Tree  # memory of the local half
    server: Tree  # memory of the server half


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


def mean_over(data: ClientData, function: Callable[[Tensor, Tensor], Tree], chunk: int | None = None) -> Tree:
    """The mean of ``function(x, y)`` over a client's samples, a chunk at a time, as large as the data allows.

    ``function`` sees one prepared sample and its label. Chunks bound the memory: per-sample gradients of a ResNet-50
    client would need hundreds of gigabytes at once.
    """
    total: Tree = None
    chunk = chunk or data.at_once
    for first in range(0, data.y.shape[0], chunk):
        part = slice(first, first + chunk)
        x, y, mask = data.prepare(data.x[part]), data.y[part], data.mask[part]
        values = torch.func.vmap(function)(x, y)
        sums = tree.map_tree(lambda v, m=mask: torch.tensordot(m.to(v.dtype), v, dims=1), values)
        total = sums if total is None else tree.map_tree(torch.add, total, sums)
    count = data.mask.sum()
    return tree.map_tree(lambda v: v / count.to(v.dtype), total)
