"""One round seen from the server: open it, and close it with what came back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Method, Reports, ServerState, Work
from fedssd.core.net import Net
from fedssd.core.tree import Tree


class Trained(NamedTuple):
    """What an engine hands back for one run's cohort, stacked along the clients in the cohort's order."""

    got: Tree  # what the clients uploaded, each leaf [C, …]
    local: Tree  # the clients' models after training, for evaluation
    memories: Tree
    reports: Tree
    work: Work  # each [C]
    figures: Tree  # sums over the samples seen, each [C]


def first_state(method: Method, weights: Tree) -> ServerState:
    """The server before the first round."""
    return ServerState(0, weights, method.local.server_memory(weights), method.server.memory(weights))


def open_round(net: Net, method: Method, state: ServerState, auxiliary: Auxiliary | None) -> Tree:
    """What goes down to every client of the round."""
    with torch.no_grad():
        beside = method.local.broadcast(net, state.weights, state.local, auxiliary)
        return {"weights": state.weights, **beside, **method.server.broadcast(state.server)}


def shares(work: Work) -> Tensor:
    """p_i = n_i / Σ n over the cohort."""
    return work.samples / work.samples.sum()


def close_round(
    net: Net, method: Method, state: ServerState, trained: Trained, population: int, auxiliary: Auxiliary | None
) -> ServerState:
    """The server's next state. Clients come in ascending order, so sums do not depend on who replied first."""
    share = shares(trained.work)
    with torch.no_grad():
        weights, server = method.server.combine(
            net, state.weights, state.server, trained.got, share, trained.work, auxiliary
        )
        reports = Reports(trained.reports, share, len(share) / population)
        local = method.local.absorb(state.local, weights, reports)
    return ServerState(state.round + 1, weights, local, server)


def traffic(sent: Tree, trained: Trained) -> tuple[int, int]:
    """Bytes up and down, over all clients of the round: what really travels."""
    clients = len(trained.work.samples)
    up = tree.size_in_bytes(trained.got) + tree.size_in_bytes(trained.reports)
    return up, clients * tree.size_in_bytes(sent)


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

        def rows(kept: Tensor, fresh: Tensor) -> Tensor:
            known = self._known[index].to(kept.device).view(-1, *[1] * fresh.dim())
            return torch.where(known, kept[index.to(kept.device)], fresh)

        return tree.map_tree(rows, self._rows, first)

    def put(self, clients: list[int], memories: Tree) -> None:
        """Remember these clients' memories; called for accepted clients only."""
        if not tree.leaves(memories):
            return
        index = torch.tensor(clients)
        if not tree.leaves(self._rows):
            population = len(self._known)
            self._rows = tree.map_tree(lambda leaf: leaf.new_zeros(population, *leaf.shape[1:]), memories)
        tree.map_tree(lambda kept, new: kept.index_copy_(0, index.to(kept.device), new), self._rows, memories)
        self._known[index] = True
