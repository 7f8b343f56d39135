"""One round seen from the server: open it, and close it with what came back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Method, Reports, ServerState, Work
from fedssd.core.mixed import Mixed
from fedssd.core.net import Net
from fedssd.core.tree import Tree


class Trained(NamedTuple):
    """What an engine hands back for one run's cohort, stacked along the clients in the cohort's order.

    Where models differ, ``got``, ``local``, ``memories`` and, if weights are shared, ``reports`` are stacked by model.
    """

    got: Tree  # what the clients uploaded, each leaf [C, …]
    local: Tree  # the clients' models after training, for evaluation
    memories: Tree
    reports: Tree
    work: Work  # each [C]
    figures: Tree  # sums over the samples seen, each [C]

    def only(self, places: list[int]) -> Trained:
        """The same of some clients only; of all of them, itself."""
        if places == list(range(len(self.work.samples))):
            return self
        index = torch.tensor(places, dtype=torch.int64, device=self.work.samples.device)
        got, local, memories, reports, figures = (
            tree.map_tree(lambda leaf: leaf[index], part)
            for part in (self.got, self.local, self.memories, self.reports, self.figures)
        )
        return Trained(got, local, memories, reports, Work(*(column[index] for column in self.work)), figures)


def first_state(method: Method, weights: Tree, net: Net | Mixed | None = None) -> ServerState:
    """The server before the first round; weights, and with them their memory, go by model where models differ."""
    if isinstance(net, Mixed) and method.local.shares_weights:
        local = {name: method.local.server_memory(own) for name, own in weights.items()}
    else:
        local = method.local.server_memory(weights)
    return ServerState(0, weights, local, method.server.memory(weights))


def open_round(net: Net | Mixed, method: Method, state: ServerState, auxiliary: Auxiliary | None) -> Tree:
    """What goes down to every client of the round; a message for each model where models differ and are shared."""
    if isinstance(net, Mixed) and method.local.shares_weights:
        return {"models": {name: open_round(net.nets[name], method, _of(state, name), auxiliary) for name in net.nets}}
    if isinstance(net, Mixed):  # what is not about weights needs no particular model
        name = net.slots[0]
        net, state = net.nets[name], state._replace(weights=state.weights[name])
    with torch.no_grad():
        said = method.local.broadcast(net, state.weights, state.local, auxiliary)
        if method.local.shares_weights:
            said = {**said, **method.server.broadcast(state.server)}
    return {"weights": state.weights, **said} if method.local.shares_weights else said


def _of(state: ServerState, model: str) -> ServerState:
    return state._replace(weights=state.weights[model], local=state.local[model])


def sent_to(sent: Tree, model: str) -> Tree:
    """What the clients with a model hear."""
    return sent["models"][model] if "models" in sent else sent


def first_memory(method: Method, state: ServerState, sent: Tree, net: Net | Mixed | None = None) -> Tree:
    """What a client has that takes part for the first time; by model where models differ."""
    if isinstance(net, Mixed):
        return {name: method.local.memory({"weights": state.weights[name], **sent_to(sent, name)}) for name in net.nets}
    return method.local.memory({"weights": state.weights, **sent})


def shares(work: Work) -> Tensor:
    """p_i = n_i / Σ n over the cohort."""
    return work.samples / work.samples.sum()


def close_round(
    net: Net | Mixed,
    method: Method,
    state: ServerState,
    trained: Trained,
    population: int,
    auxiliary: Auxiliary | None,
    clients: Sequence[int] = (),
) -> ServerState:
    """The server's next state. Clients come in ascending order, so sums do not depend on who replied first.

    ``trained`` holds the accepted clients only; with none of them the server stays as it was. ``clients`` says who they
    are, which matters where models differ.
    """
    if not len(trained.work.samples):
        return state._replace(round=state.round + 1)
    if isinstance(net, Mixed) and method.local.shares_weights:
        return _close_mixed(net, method, state, trained, population, auxiliary, clients)
    share = shares(trained.work)
    weights, server = state.weights, state.server
    with torch.no_grad():
        if method.local.shares_weights:
            assert isinstance(net, Net)
            weights, server = method.server.combine(net, weights, server, trained.got, share, trained.work, auxiliary)
        reports = Reports(trained.reports, share, len(share) / population)
        local = method.local.absorb(state.local, weights, reports)
    return ServerState(state.round + 1, weights, local, server)


def _close_mixed(
    net: Mixed,
    method: Method,
    state: ServerState,
    trained: Trained,
    population: int,
    auxiliary: Auxiliary | None,
    clients: Sequence[int],
) -> ServerState:
    """Every model has its own shares and its own memory of the local half; the server half sees them all."""
    places = net.places(clients)
    work = {name: Work(*(column[held] for column in trained.work)) for name, held in places.items()}
    share = {name: shares(own) for name, own in work.items()}
    holders = net.places(range(population))
    local = dict(state.local)
    with torch.no_grad():
        weights, server = method.server.combine_models(
            net.nets, state.weights, state.server, trained.got, share, work, auxiliary
        )
        for name, own in share.items():
            reports = Reports(trained.reports[name], own, len(own) / len(holders[name]))
            local[name] = method.local.absorb(state.local[name], weights[name], reports)
    return ServerState(state.round + 1, weights, local, server)


def traffic(sent: Tree, trained: Trained) -> tuple[int, int]:
    """Bytes up and down, over all clients of the round: what really travels."""
    up = tree.size_in_bytes(trained.got) + tree.size_in_bytes(trained.reports)
    if "models" not in sent:
        return up, len(trained.work.samples) * tree.size_in_bytes(sent)
    down = [
        len(tree.leaves(local)[0]) * tree.size_in_bytes(sent_to(sent, name)) for name, local in trained.local.items()
    ]
    return up, sum(down)


class ClientStore:
    """The clients' memories of one run, as stacked rows [N, …]; a client without one yet gets the method's first."""

    def __init__(self, population: int) -> None:
        self._known = torch.zeros(population, dtype=torch.bool)
        self._rows: Tree = {}

    def get(self, clients: list[int], first: Tree) -> Tree:
        """The memories of these clients, stacked; ``first`` stands in for a client that has none."""
        index = torch.tensor(clients)
        if not tree.leaves(first):
            return first
        if not bool(self._known.any()):
            return tree.map_tree(lambda leaf: leaf.expand(len(clients), *leaf.shape).clone(), first)

        def rows(fresh: Tensor, kept: Tensor) -> Tensor:
            known = self._known[index].to(kept.device).view(-1, *[1] * fresh.dim())
            return torch.where(known, kept[index.to(kept.device)], fresh)

        return tree.map_tree(rows, first, self._rows)

    def put(self, clients: list[int], memories: Tree) -> None:
        """Remember these clients' memories; called for accepted clients only."""
        if not clients or not tree.leaves(memories):
            return
        index = torch.tensor(clients)
        if not tree.leaves(self._rows):
            population = len(self._known)
            self._rows = tree.map_tree(lambda leaf: leaf.new_zeros(population, *leaf.shape[1:]), memories)
        tree.map_tree(lambda kept, new: kept.index_copy_(0, index.to(kept.device), new), self._rows, memories)
        self._known[index] = True

    def everything(self) -> Tree:
        """Who has a memory and all rows, as one tree: what a checkpoint keeps."""
        return {"known": self._known, "rows": self._rows}

    def restore(self, everything: Tree) -> None:
        """Hold what :meth:`everything` described."""
        self._known, self._rows = everything["known"].cpu(), everything["rows"]


class MixedStore(ClientStore):
    """A store for each model, as memories of different models do not stack."""

    def __init__(self, population: int, net: Mixed) -> None:
        self._net = net
        self._stores = {name: ClientStore(population) for name in net.nets}

    def get(self, clients: list[int], first: Tree) -> Tree:
        """The memories of these clients, stacked by model."""
        places = self._net.places(clients)
        return {name: self._stores[name].get([clients[p] for p in held], first[name]) for name, held in places.items()}

    def put(self, clients: list[int], memories: Tree) -> None:
        """Remember these clients' memories, which are stacked by model."""
        for name, held in self._net.places(clients).items():
            self._stores[name].put([clients[place] for place in held], memories[name])

    def everything(self) -> Tree:
        """Every model's store as one tree."""
        return {name: store.everything() for name, store in self._stores.items()}

    def restore(self, everything: Tree) -> None:
        """Hold what :meth:`everything` described."""
        for name, own in everything.items():
            self._stores[name].restore(own)


def new_store(population: int, net: Net | Mixed) -> ClientStore:
    """An empty store."""
    return MixedStore(population, net) if isinstance(net, Mixed) else ClientStore(population)
