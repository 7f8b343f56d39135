"""One round seen from the server: open it, close it with what came back, and measure what it came to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Closing, Method, Reports, ServerState, Work
from fedssd.core.engine import Engine, Evaluation, Job, Trained
from fedssd.core.net import Net
from fedssd.core.tree import Tree


class Rounds:
    """The rounds of a federation in which all clients hold one model.

    Where they hold different ones, :class:`~fedssd.core.mixed.MixedRounds` gives the same answers.
    """

    def __init__(self, net: Net, name: str = "model") -> None:
        self.nets: Mapping[str, Net] = {name: net}

    @property
    def has_batch_norm(self) -> bool:
        """Whether any model has it."""
        return any(net.has_batch_norm for net in self.nets.values())

    @property
    def form(self) -> str:
        """The model whose shapes stand for all: of what is sent where no weights are shared, and all of it with one."""
        return next(iter(self.nets))

    def model_of(self, client: int) -> str:
        """The name of the model that a client holds."""
        return self.form

    def together(self, models: Mapping[str, Tree]) -> Tree:
        """What is known of each model, by its name, as these rounds pass it on: by name only where models differ."""
        return models[self.form]

    def engine(self, make: Callable[[Net], Engine]) -> Engine:
        """What trains the clients, made of an engine for a model."""
        return make(self.nets[self.form])

    def first_state(self, method: Method, weights: Tree) -> ServerState:
        """The server before the first round."""
        return ServerState(0, weights, method.local.server_memory(weights), method.server.memory(weights))

    def open(self, method: Method, state: ServerState, auxiliary: Auxiliary | None) -> Tree:
        """What goes down to every client of the round."""
        return opened(self.nets[self.form], method, state, auxiliary)

    def first_memory(self, method: Method, state: ServerState, sent: Tree) -> Tree:
        """What a client has that takes part for the first time."""
        return method.local.memory({"weights": state.weights, **sent})

    def new_store(self, population: int) -> ClientStore:
        """An empty store of the clients' memories."""
        return ClientStore(population)

    def own_models(self, store: ClientStore, state: ServerState, population: int) -> Tree:
        """Every client's own model, stacked, where no weights are shared; a client that never took part has the first.

        They stand in the clients' memories.
        """
        return store.get(list(range(population)), {"model": state.weights})["model"]

    def parts(self, job: Job, trained: Trained) -> list[tuple[Job, Trained]]:
        """A cohort's work in parts whose trees can be compared with each other: one for each model in it."""
        return [(job, trained)]

    def joined(self, method: Method, clients: Sequence[int], parts: Sequence[Trained]) -> Trained:
        """The parts of these clients as one, in the clients' order: the inverse of :meth:`parts`."""
        (trained,) = parts
        return trained

    def close(
        self,
        method: Method,
        state: ServerState,
        trained: Trained,
        population: int,
        auxiliary: Auxiliary | None,
        clients: Sequence[int] = (),
    ) -> ServerState:
        """The server's next state. Clients come in ascending order, so sums do not depend on who replied first.

        ``trained`` holds the accepted clients only; with none of them the server stays as it was. ``clients`` says who
        they are, which matters where models differ.
        """
        if not len(trained.work.samples):
            return state._replace(round=state.round + 1)
        share = shares(trained.work)
        weights, server = state.weights, state.server
        with torch.no_grad():
            cohort = len(share) / population
            if method.local.shares_weights:
                closing = Closing(share, trained.work, cohort, state.round, trained.reports, auxiliary)
                weights, server = method.server.combine(self.nets[self.form], weights, server, trained.got, closing)
            local = method.local.absorb(state.local, weights, Reports(trained.reports, share, cohort))
        return ServerState(state.round + 1, weights, local, server)

    def evaluate(
        self,
        engine: Engine,
        weights: Sequence[Tree],
        jobs: Sequence[Job],
        trained: Sequence[Trained],
        population: int,
        local: bool,
    ) -> list[Evaluation]:
        """For each run the global model first and, where wanted, its clients' models behind it, in the cohort's order.

        Where no weights are shared, the mean over the round's clients stands in for the global model. Where models
        differ and are shared, every client of the population counts with the global model of its own kind.
        """
        shared = jobs[0].method.local.shares_weights
        models = []
        for own, one in zip(weights, trained, strict=True):
            alone = tree.map_tree(lambda leaf: leaf[None], own)
            models.append(one.local if not shared else _join([alone, one.local]) if local else alone)
        each = _split(engine.evaluate(_join(models)), len(jobs))
        return list(each) if shared else [mean_first(one, [1.0] * len(one.loss), one) for one in each]


def opened(net: Net, method: Method, state: ServerState, auxiliary: Auxiliary | None) -> Tree:
    """What goes down to every client with this model."""
    with torch.no_grad():
        said = method.local.broadcast(net, state.weights, state.local, auxiliary)
        if method.local.shares_weights:
            said = {**said, **method.server.broadcast(state.server)}
    return {"weights": state.weights, **said} if method.local.shares_weights else said


def shares(work: Work) -> Tensor:
    """p_i = n_i / Σ n over the cohort."""
    return work.samples / work.samples.sum()


def traffic(sent: Tree, trained: Trained) -> tuple[int, int]:
    """Bytes up and down, over all clients of one part of the round: what really travels."""
    up = tree.size_in_bytes(trained.got) + tree.size_in_bytes(trained.reports)
    return up, len(trained.work.samples) * tree.size_in_bytes(sent)


def mean_first(found: Evaluation, counts: Sequence[float], behind: Evaluation | None) -> Evaluation:
    """A weighted mean before the rest: all saw the same test set, so added counts have the mean of the shares."""
    weight = torch.tensor(counts, device=found.loss.device)
    confusion = torch.einsum("m,mij->ij", weight.to(torch.float64), found.confusion.to(torch.float64)).to(torch.int64)
    loss = (weight.to(found.loss.dtype) * found.loss).sum() / weight.sum()
    if behind is None:
        return Evaluation(confusion[None], loss[None])
    return Evaluation(torch.cat([confusion[None], behind.confusion]), torch.cat([loss[None], behind.loss]))


def _join(models: Sequence[Tree]) -> Tree:
    return tree.map_tree(lambda *parts: torch.cat(parts), *models)


def _split(found: Evaluation, runs: int) -> Iterator[Evaluation]:
    size = len(found.loss) // runs
    return (Evaluation(c, v) for c, v in zip(*(torch.split(part, size) for part in found), strict=True))


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
