"""One run under way: what it is made of, and a round of it: open, train, close, evaluate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Method, ServerState
from fedssd.core.engine import Engine, Evaluation, Job, Trained
from fedssd.core.heldout import IN_A_ROW, Checked, Health, Safety, checked, cross_entropy, measured, unmeasured
from fedssd.core.randomness import sample_cohort
from fedssd.core.round import ClientStore
from fedssd.core.tree import Tree
from fedssd.data.arrays import Samples, Whole
from fedssd.engines import build_engine
from fedssd.privacy.ledger import Ledger
from fedssd.recipe import Recipe, check
from fedssd.simulation import private
from fedssd.simulation.events import Event, Listener, ignore
from fedssd.simulation.fields import Json
from fedssd.simulation.machine import Machine, repeatable, settle, using_threads
from fedssd.simulation.measure import Clock, measure_round, summarise
from fedssd.simulation.own import bring, with_auxiliary
from fedssd.simulation.receive import Received, receive, stopped
from fedssd.simulation.result import Result, Round
from fedssd.simulation.setup import Federation, assemble


@dataclass
class Run:
    """One run under way."""

    federation: Federation
    state: ServerState
    store: ClientStore
    rows: list[Tensor]
    cohort: int  # how many take part in a round
    auxiliary: Auxiliary | None
    rounds: list[Round] = field(default_factory=list)
    header: Json = field(default_factory=dict)  # what it is made with
    seconds: float = 0.0
    safety: Safety = field(default_factory=Safety)
    ledger: Ledger | None = None  # of what has been spent, where the run is private

    @property
    def name(self) -> str:
        return f"{self.federation.recipe.method} seed {self.federation.recipe.seed}"

    @property
    def failed(self) -> str:
        """Why the run is to end here, if it is."""
        if not self.safety.health.failed:
            return ""
        if self.auxiliary is None:
            return f"in {IN_A_ROW} evaluated rounds in a row its loss on the test set was far above guessing"
        return f"{IN_A_ROW} rounds in a row were rolled back, each left the model far worse than guessing"

    @property
    def ended(self) -> str:
        """Why the run stops before its last round, if its recipe says so."""
        return private.ended(self) if self.ledger is not None else ""

    def method_now(self) -> Method:
        """The method with this round's learning rate."""
        return method_at(self.federation.method, self.federation.recipe, self.state.round)

    def move_on(self, closed: Closed) -> None:
        """Take over what a round came to: the clients remember, and the server has its next state."""
        self.store.put(closed.received.clients, closed.received.trained.memories)
        self.state, self.safety = closed.state, Safety(closed.received.seen, closed.health)

    def weights(self) -> Tree:
        """The global model; where no weights are shared, every client's own, stacked."""
        if self.federation.method.local.shares_weights:
            return self.state.weights
        return self.federation.rounds.own_models(self.store, self.state, len(self.rows))

    def result(self, folder: Path | None = None) -> Result:
        """What the run has come to, and where it is written, if it is."""
        recipe, weights = self.federation.recipe, self.weights()
        summary = summarise(recipe, self.federation.partition.hash, self.rounds, self.seconds, self.failed, self.ended)
        return Result(
            recipe, tuple(self.rounds), summary, self.header, folder, partial(_given, weights), self.federation.module
        )


def _given(weights: Tree) -> Tree:
    return weights


class Closed(NamedTuple):
    """What a round came to, before anything is changed by it."""

    state: ServerState
    received: Received  # whose clients remember the round
    health: Health
    sent: Tree | None = None
    trained: Trained | None = None  # what came back, before anybody was left out


def method_at(method: Method, recipe: Recipe, round_: int) -> Method:
    """The method with the learning rate it has after so many rounds."""
    return replace(method, solver=replace(method.solver, lr=recipe.lr * recipe.lr_decay**round_))


def start(federation: Federation, device: torch.device) -> Run:
    """A run before its first round, with everything on the device."""
    weights = tree.map_tree(lambda w: w.to(device), federation.weights)
    rows = [client.to(device) for client in federation.partition.clients]
    auxiliary = federation.auxiliary and Auxiliary(*(part.to(device) for part in federation.auxiliary))
    state = federation.rounds.first_state(federation.method, weights)
    run = Run(federation, state, federation.rounds.new_store(len(rows)), rows, federation.cohort, auxiliary)
    if federation.terms is not None:
        run.ledger = Ledger.of(federation.terms, len(rows))
    return run


def open_job(run: Run) -> Job:
    """Who takes part in the next round, and what they are sent."""
    federation, method = run.federation, run.method_now()
    sent = federation.rounds.open(method, run.state, run.auxiliary)
    recipe = federation.recipe
    clients = sample_cohort(recipe.seed, run.state.round, len(run.rows), run.cohort)
    memories = run.store.get(clients, federation.rounds.first_memory(method, run.state, sent))
    public = run.auxiliary.x if method.local.needs_public and run.auxiliary else None
    rows = [run.rows[client] for client in clients]
    steady = len(clients) == len(run.rows)
    return Job(method, sent, recipe.seed, run.state.round, clients, rows, memories, public, steady)


def close_job(run: Run, job: Job, trained: Trained) -> Closed:
    """What the round comes to at the server, and what the accepted clients will remember of it."""
    recipe, rounds = run.federation.recipe, run.federation.rounds
    if run.federation.terms is not None:
        private.charge(run, job)
        trained = private.sent_by_clients(run.federation.terms, job, trained)
    received = receive(recipe, rounds, job, trained, len(run.rows), run.safety.seen)
    return close_received(run, job, received)._replace(trained=trained)


def close_received(run: Run, job: Job, received: Received) -> Closed:
    """The same, of replies that the guard has seen; whoever spoils the model is left out here."""
    if run.federation.terms is not None and run.federation.terms.mode == "central":
        return _close_privately(run, job, received)
    rounds, everybody = run.federation.rounds, range(len(received.clients))

    def close(places: Sequence[int]) -> ServerState:
        clients, trained = [received.clients[place] for place in places], received.trained.only(list(places))
        return rounds.close(job.method, run.state, trained, len(run.rows), run.auxiliary, clients)

    if not watched(run) or run.auxiliary is None:
        return Closed(close(everybody), received, run.safety.health, job.sent)
    # The work of clients with different models is no one stack to take a client from: all of it counts as one reply.
    alone = len(rounds.nets) == 1
    found = checked(
        run.state,
        len(everybody) if alone else min(1, len(everybody)),
        close if alone else lambda places: close(everybody),
        lambda weights: _held_out(run, weights),
        run.safety.health,
        run.federation.dataset.num_classes,
    )
    return Closed(found.state, _left_out(run, received, found, alone), found.health, job.sent)


def _close_privately(run: Run, job: Job, received: Received) -> Closed:
    """The same where all replies are one, with noise on it: nobody is left out for what it does to the model."""
    assert run.ledger is not None
    assert run.federation.terms is not None
    one = private.pooled(run.federation.terms, job, received.trained, run.cohort)
    state = run.federation.rounds.close(job.method, run.state, one, len(run.rows), run.auxiliary)
    if not watched(run) or run.auxiliary is None:
        return Closed(state, received, run.safety.health, job.sent)
    health, classes = run.safety.health, run.federation.dataset.num_classes
    found = checked(run.state, 1, lambda places: state, lambda weights: _held_out(run, weights), health, classes)
    return Closed(found.state, _left_out(run, received, found, False), found.health, job.sent)


def watched(run: Run) -> bool:
    """Whether the loss of the global model, where there is one, is read to see that nobody has spoiled it."""
    federation = run.federation
    return federation.method.local.shares_weights and federation.recipe.on_bad_update != "keep"


def _held_out(run: Run, weights: Tree) -> float:
    """The loss on the server's own samples; where models differ, the worst of them."""
    assert run.auxiliary is not None
    nets = run.federation.rounds.nets
    each = weights if len(nets) > 1 else {run.federation.rounds.form: weights}
    return max(cross_entropy(net, each[name], run.auxiliary) for name, net in nets.items())


def _left_out(run: Run, received: Received, found: Checked, alone: bool) -> Received:
    """What was received after the check; of a round in which somebody was left out, the guard learns nothing."""
    kept = found.places if alone or not found.places else list(range(len(received.clients)))
    if len(kept) == len(received.clients):
        return received
    how = f"loss {found.whole:.3g} on the server's own samples"
    why = f"it spoils the model, {how}" if kept else f"rolled back, {how}"
    out = {client: why for place, client in enumerate(received.clients) if place not in kept}
    if run.federation.recipe.on_bad_update == "stop":
        raise stopped(run.state.round, *next(iter(out.items())))
    return received.without(out, run.safety.seen)


def evaluate_closed(
    federation: Federation, engine: Engine, closed: list[Closed], jobs: list[Job], trained: list[Trained]
) -> Sequence[Evaluation | None]:
    """For each run what is measured after the round, or nothing where this round is not evaluated."""
    recipe, now = federation.recipe, closed[0].state.round
    if now % recipe.evaluate_every and now < recipe.rounds:
        return [None] * len(closed)
    weights, population = [one.state.weights for one in closed], len(federation.partition.clients)
    return federation.rounds.evaluate(engine, weights, jobs, trained, population, recipe.evaluate_local)


def read(run: Run, closed: Closed, evaluation: Evaluation | None) -> Closed:
    """The same, with what the test set says of the model: heard only where the server has no samples of its own."""
    if not watched(run) or run.auxiliary is not None:
        return closed
    if evaluation is None:
        return closed._replace(health=unmeasured(closed.health))
    loss, classes = float(evaluation.loss[0]), run.federation.dataset.num_classes
    return closed._replace(health=measured(loss, closed.health, classes))


def one_round(runs: list[Run], engine: Engine) -> tuple[list[Closed], list[Round]]:
    """One round of every run: open, train, close, evaluate. It changes nothing yet, so it can stop anywhere."""
    clock = Clock()
    with clock.measure("server"):
        jobs = [open_job(run) for run in runs]
    before = engine.prepared
    with clock.measure("train"):
        trained = engine.train(jobs)
    if engine.prepared > before:
        clock.move("train", "prepare", engine.prepared - before)
    with clock.measure("server"):
        closed = [close_job(run, job, one) for run, job, one in zip(runs, jobs, trained, strict=True)]
    with clock.measure("evaluate"):
        evaluations = evaluate_closed(runs[0].federation, engine, closed, jobs, trained)
    closed = [read(run, one, seen) for run, one, seen in zip(runs, closed, evaluations, strict=True)]
    seconds = {name: round(value / len(runs), 4) for name, value in clock.seconds.items()}
    found = zip(runs, jobs, closed, evaluations, strict=True)
    new = [measure_round(run.federation, job, one.received, seen, seconds) for run, job, one, seen in found]
    return closed, [
        one if run.ledger is None else private.recorded(one, run.ledger) for run, one in zip(runs, new, strict=True)
    ]


class Simulation:
    """A run in memory, a round at a time: look at it between rounds, and stop when you like.

    Args:
        recipe: what to run
        model: your own ``nn.Module``, or a name
        clients: your own samples, a pair (x, y) a client, in place of the recipe's data and split; or how many clients
        test: the test set to your own clients, a pair too
        auxiliary: your own auxiliary set, or how many samples per class are taken
        listen: told of remarks, such as which engine runs

    Example:
        >>> simulation = fedssd.Simulation(fedssd.Recipe(**small, method="fedavg"))
        >>> [one.number for one in simulation]
        [1]
        >>> sorted(simulation.weights)
        ['buffers', 'params']

        On samples of your own:

        >>> clients = [(torch.randn(20, 6), torch.arange(20) % 3) for _ in range(3)]
        >>> recipe = fedssd.Recipe(method="fedavg", model="mlp", rounds=2, epochs=1)
        >>> simulation = fedssd.Simulation(recipe, clients=clients, test=clients[0], auxiliary=0)
        >>> [one.accuracy is not None for one in simulation]
        [True, True]
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        model: nn.Module | str | None = None,
        clients: Sequence[Samples] | Whole | None = None,
        test: Samples | None = None,
        auxiliary: Samples | Whole | None = None,
        listen: Listener = ignore,
    ) -> None:
        keys, brought = bring("Simulation", model, clients, test, auxiliary)
        recipe = check(recipe.replace(**keys))
        federation = assemble(recipe, with_auxiliary(brought, recipe))
        self.recipe = federation.recipe

        def notice(text: str) -> None:
            listen(Event(self.recipe.method, 0, self.recipe.rounds, note=text))

        self._machine, why = settle(federation, 1, None, notice)
        device = torch.device(self._machine.device)
        notice(f"{self._machine.engine} engine on {device} ({why})")
        self._engine = engine_for(federation, self._machine, notice)
        self._run = start(federation, device)
        self._closed: Closed | None = None

    def __iter__(self) -> Iterator[Round]:
        """Run the rounds that are left; a run that fails or has spent its privacy budget has none."""
        while self.state.round < self.recipe.rounds and not self._run.failed and not self._run.ended:
            begun = time.perf_counter()
            with repeatable(self.recipe.deterministic), using_threads(self._machine.threads):
                (self._closed,), (new,) = one_round([self._run], self._engine)
            self._run.move_on(self._closed)
            self._run.rounds.append(new)
            self._run.seconds += time.perf_counter() - begun
            yield new

    @property
    def state(self) -> ServerState:
        """The server: its round, the global weights and what it keeps between rounds."""
        return self._run.state

    @property
    def weights(self) -> Tree:
        """The global model's weights; where none are shared, every client's own, stacked."""
        return self._run.weights()

    @property
    def sent(self) -> Tree | None:
        """What went down in the last round; None before the first."""
        return self._closed and self._closed.sent

    @property
    def trained(self) -> Trained | None:
        """What the clients of the last round sent back, stacked; None before the first."""
        return self._closed and self._closed.trained

    def result(self) -> Result:
        """What the run has come to so far."""
        return self._run.result()


def engine_for(federation: Federation, machine: Machine, notice: Callable[[str], None]) -> Engine:
    """The engine that a run's machine settled on."""
    recipe, world = federation.recipe, federation.world(torch.device(machine.device))
    parts = world, federation.schedule, recipe.precision, machine.width, notice, recipe.kernels == "on"
    return federation.rounds.engine(lambda net: build_engine(machine.engine, net, *parts))
