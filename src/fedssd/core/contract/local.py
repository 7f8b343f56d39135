"""The client's half of a method, and the sum of several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedssd.core.contract.exchanged import Auxiliary, Batch, ClientData, Reports, Work
from fedssd.core.net import Net, Outputs
from fedssd.core.plan import Phase
from fedssd.core.tree import Tree


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
    tells_up: ClassVar[str] = "weights"  # what goes up that tells of the client's data
    tells_down: ClassVar[str] = "mean weights"  # what comes down that tells of others' data, or of the server's own
    tied_to_places: ClassVar[str] = ""  # what it keeps over rounds that belongs to hidden units by their place
    needs_length: ClassVar[bool] = False  # reads how far the solver walked, so nothing else may move the weights

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

    def point(self, params: Tree, gradient: Tree, sent: Tree, memory: Tree) -> Tree:
        """Where the gradient of a step is taken, given the one at the parameters; another one costs another pass."""
        return params

    def settle(self, params: Tree, before: Tree, lr: Tensor | float, sent: Tree, memory: Tree) -> Tree:
        """The parameters that a step leaves, given those of the solver and those before it: a proximal step, a ball."""
        return params

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
        for hook in ("point", "settle"):
            both = [part.name for part in self.parts if overrides(part, hook)]
            if len(both) > 1:  # their order would matter
                raise ValueError(f"{' and '.join(both)} each have a {hook} of their own: a sum takes one")

    def _parts(self, *trees: Tree) -> Iterator[tuple[Any, ...]]:
        for part in self.parts:
            yield part.name, part, *(branch[part.name] for branch in trees)

    def _sent(self, sent: Tree) -> Tree:
        return {part.name: {"weights": sent["weights"], **sent[part.name]} for part in self.parts}

    def _heard(self, target: Tree) -> Tree:
        """Where no part has teachers, an engine asks nobody."""
        return {part.name: target.get(part.name, {}) for part in self.parts}

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
        for _, part, t, s, m in self._parts(self._heard(target), self._sent(sent), memory):
            total = total + part.penalty(out, batch, t, params, s, m)
        return total

    def point(self, params: Tree, gradient: Tree, sent: Tree, memory: Tree) -> Tree:
        for _, part, s, m in self._parts(self._sent(sent), memory):
            params = part.point(params, gradient, s, m)
        return params

    def settle(self, params: Tree, before: Tree, lr: Tensor | float, sent: Tree, memory: Tree) -> Tree:
        for _, part, s, m in self._parts(self._sent(sent), memory):
            params = part.settle(params, before, lr, s, m)
        return params

    def distilled(self, batch: Batch, target: Tree) -> dict[str, Tensor]:
        figures: dict[str, Tensor] = {}
        for name, part, own in self._parts(self._heard(target)):
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


def overrides(local: Local, hook: str) -> bool:
    """Whether a half, or a part of a sum, has this hook of its own."""
    return any(getattr(type(part), hook) is not getattr(Local, hook) for part in parts_of(local))


def uploads_weights(local: Local) -> bool:
    """Whether what goes up are the trained weights, and nothing a method made of them."""
    return type(local).upload is Local.upload
