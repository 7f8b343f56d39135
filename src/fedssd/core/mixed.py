"""Different models in one federation: who holds which, and what that makes of a round.

Where models differ, whatever has a model's shape is a dictionary by the model's name: weights, memories, uploads. What
has not (the outputs that FD, FedMD and Cronus share, figures, work) is stacked in the cohort's order as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Closing, Method, Reports, ServerState, Work
from fedssd.core.engine import Engine, Evaluation, Job, Trained
from fedssd.core.net import Net
from fedssd.core.round import ClientStore, Rounds, mean_first, opened, shares
from fedssd.core.tree import Tree


class MixedRounds(Rounds):
    """The rounds of a federation of several models; client c holds the one named by slot c mod the number of slots."""

    def __init__(self, nets: Mapping[str, Net], slots: Sequence[str]) -> None:
        self.nets, self.slots = nets, tuple(slots)

    def model_of(self, client: int) -> str:
        return self.slots[client % len(self.slots)]

    def places(self, clients: Sequence[int]) -> dict[str, list[int]]:
        """Where the clients with each model stand in a list of clients; models that nobody there holds are left out."""
        found: dict[str, list[int]] = {name: [] for name in self.nets}
        for place, client in enumerate(clients):
            found[self.model_of(client)].append(place)
        return {name: held for name, held in found.items() if held}

    def together(self, models: Mapping[str, Tree]) -> Tree:
        return dict(models)

    def engine(self, make: Callable[[Net], Engine]) -> Engine:
        return MixedEngine(self, {name: make(net) for name, net in self.nets.items()})

    def first_state(self, method: Method, weights: Tree) -> ServerState:
        """Weights go by model, and where they are shared their memory too."""
        if not method.local.shares_weights:
            return super().first_state(method, weights)
        local = {name: method.local.server_memory(own) for name, own in weights.items()}
        return ServerState(0, weights, local, method.server.memory(weights))

    def open(self, method: Method, state: ServerState, auxiliary: Auxiliary | None) -> Tree:
        """A message for each model where weights are shared; what is not about weights needs no particular model."""
        if not method.local.shares_weights:
            return super().open(method, state._replace(weights=state.weights[self.form]), auxiliary)
        return {
            "models": {
                name: opened(
                    net, method, state._replace(weights=state.weights[name], local=state.local[name]), auxiliary
                )
                for name, net in self.nets.items()
            }
        }

    def first_memory(self, method: Method, state: ServerState, sent: Tree) -> Tree:
        return {
            name: method.local.memory({"weights": state.weights[name], **sent_to(name, method, sent)})
            for name in self.nets
        }

    def new_store(self, population: int) -> ClientStore:
        return MixedStore(population, self)

    def own_models(self, store: ClientStore, state: ServerState, population: int) -> Tree:
        first = {name: {"model": own} for name, own in state.weights.items()}
        return {name: own["model"] for name, own in store.get(list(range(population)), first).items()}

    def part(self, job: Job, name: str) -> Job:
        """The part of a job that is about the clients with one model."""
        places = self.places(job.clients)[name]
        return replace(
            job,
            sent=sent_to(name, job.method, job.sent),
            clients=[job.clients[place] for place in places],
            rows=[job.rows[place] for place in places],
            memories=job.memories[name],
        )

    def parts(self, job: Job, trained: Trained) -> list[tuple[Job, Trained]]:
        found = []
        for name, places in self.places(job.clients).items():
            cut = lambda leaf, held=places: leaf[held]  # noqa: E731
            reports = trained.reports[name] if job.method.local.shares_weights else tree.map_tree(cut, trained.reports)
            work, figures = Work(*map(cut, trained.work)), tree.map_tree(cut, trained.figures)
            own = Trained(trained.got[name], trained.local[name], trained.memories[name], reports, work, figures)
            found.append((self.part(job, name), own))
        return found

    def joined(self, method: Method, clients: Sequence[int], parts: Sequence[Trained]) -> Trained:
        """What has a model's shape stays with its model, the rest goes into the order of the clients."""
        places = self.places(clients)
        back = self.order(clients)

        def in_order(*columns: Tensor) -> Tensor:
            return torch.cat(columns)[back.to(columns[0].device)]

        got, local, memories, reports = (
            {name: getattr(part, field) for name, part in zip(places, parts, strict=True)}
            for field in ("got", "local", "memories", "reports")
        )
        work = Work(*(in_order(*columns) for columns in zip(*(part.work for part in parts), strict=True)))
        figures = tree.map_tree(in_order, *(part.figures for part in parts))
        if not method.local.shares_weights:
            reports = tree.map_tree(in_order, *reports.values())
        return Trained(got, local, memories, reports, work, figures)

    def order(self, clients: Sequence[int]) -> Tensor:
        """What puts the clients' rows back into their order from model after model."""
        return torch.argsort(torch.tensor([place for held in self.places(clients).values() for place in held]))

    def close(
        self,
        method: Method,
        state: ServerState,
        trained: Trained,
        population: int,
        auxiliary: Auxiliary | None,
        clients: Sequence[int] = (),
    ) -> ServerState:
        """Every model has its own shares and its own memory of the local half; the server half sees them all."""
        if not method.local.shares_weights or not len(trained.work.samples):
            return super().close(method, state, trained, population, auxiliary, clients)
        places = self.places(clients)
        holders = self.places(range(population))
        local, closing = dict(state.local), {}
        for name, held in places.items():
            work, cohort = Work(*(column[held] for column in trained.work)), len(held) / len(holders[name])
            closing[name] = Closing(shares(work), work, cohort, state.round, trained.reports[name], auxiliary)
        with torch.no_grad():
            weights, server = method.server.combine_models(self.nets, state.weights, state.server, trained.got, closing)
            for name, own in closing.items():
                reports = Reports(own.reports, own.share, own.cohort)
                local[name] = method.local.absorb(state.local[name], weights[name], reports)
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
        found = zip(weights, jobs, trained, strict=True)
        return [self._evaluate(engine, own, job, one, population, local) for own, job, one in found]

    def _evaluate(
        self, engine: Engine, weights: Tree, job: Job, trained: Trained, population: int, local: bool
    ) -> Evaluation:
        """One run. The clients' models come back by model, and are put into the cohort's order."""
        clients = None
        if local or not job.method.local.shares_weights:
            back = self.order(job.clients)
            clients = Evaluation(*(part[back.to(part.device)] for part in engine.evaluate(trained.local)))
        if not job.method.local.shares_weights:
            assert clients is not None
            return mean_first(clients, [1.0] * len(clients.loss), clients)
        holders = self.places(range(population))
        kinds = engine.evaluate({name: tree.map_tree(lambda leaf: leaf[None], weights[name]) for name in holders})
        return mean_first(kinds, [float(len(held)) for held in holders.values()], clients)


def sent_to(model: str, method: Method, sent: Tree) -> Tree:
    """What the clients with a model hear."""
    return sent["models"][model] if method.local.shares_weights else sent


class MixedEngine:
    """One engine a model, all of one kind."""

    def __init__(self, rounds: MixedRounds, engines: Mapping[str, Engine]) -> None:
        self.rounds, self.engines = rounds, engines
        self.name = next(iter(engines.values())).name

    @property
    def prepared(self) -> float:
        """Seconds that went into compiling and the like, of all."""
        return sum(engine.prepared for engine in self.engines.values())

    def train(self, jobs: Sequence[Job]) -> list[Trained]:
        """Model by model, the clients that hold it, of all jobs at once."""
        parts: list[list[Trained]] = [[] for _ in jobs]
        for name, engine in self.engines.items():
            runs = [run for run, job in enumerate(jobs) if name in self.rounds.places(job.clients)]
            found = engine.train([self.rounds.part(jobs[run], name) for run in runs]) if runs else []
            for run, trained in zip(runs, found, strict=True):
                parts[run].append(trained)
        return [self.rounds.joined(job.method, job.clients, own) for job, own in zip(jobs, parts, strict=True)]

    def evaluate(self, models: Tree) -> Evaluation:
        """Models stacked by name; what was found comes in the order of the names."""
        found = [self.engines[name].evaluate(stacked) for name, stacked in models.items()]
        return Evaluation(torch.cat([one.confusion for one in found]), torch.cat([one.loss for one in found]))


class MixedStore(ClientStore):
    """A store for each model, as memories of different models do not stack."""

    def __init__(self, population: int, rounds: MixedRounds) -> None:
        self._rounds = rounds
        self._stores = {name: ClientStore(population) for name in rounds.nets}

    def get(self, clients: list[int], first: Tree) -> Tree:
        """The memories of these clients, stacked by model."""
        places = self._rounds.places(clients)
        return {name: self._stores[name].get([clients[p] for p in held], first[name]) for name, held in places.items()}

    def put(self, clients: list[int], memories: Tree) -> None:
        """Remember these clients' memories, which are stacked by model."""
        for name, held in self._rounds.places(clients).items():
            self._stores[name].put([clients[place] for place in held], memories[name])

    def everything(self) -> Tree:
        """Every model's store as one tree."""
        return {name: store.everything() for name, store in self._stores.items()}

    def restore(self, everything: Tree) -> None:
        """Hold what :meth:`everything` described."""
        for name, own in everything.items():
            self._stores[name].restore(own)
