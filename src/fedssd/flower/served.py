"""One run at the server: opens and closes rounds by the contract, records and keeps them as a simulation would."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

import torch

from fedssd.core import tree
from fedssd.core.contract import Work
from fedssd.core.engine import Evaluation, Job
from fedssd.core.guard import Seen
from fedssd.core.tree import Tree
from fedssd.engines import ReferenceEngine
from fedssd.errors import UserError
from fedssd.flower.messages import NEVER, Reply
from fedssd.flower.rehearsal import rehearse
from fedssd.flower.strategy import Opened, Outcome
from fedssd.reports.page import write_report
from fedssd.runs.checkpoint import (
    Checkpoint,
    forget,
    go_on,
    how_to_recover,
    rounds_in,
    save_checkpoint,
)
from fedssd.runs.folder import RunFolder
from fedssd.runs.provenance import header
from fedssd.runs.spending import keep_ledger
from fedssd.simulation.machine import Machine
from fedssd.simulation.measure import Clock, measure_round
from fedssd.simulation.private import charge, recorded
from fedssd.simulation.receive import Received
from fedssd.simulation.result import Round
from fedssd.simulation.simulation import Closed, Run, close_received, evaluate_closed, open_job, read

REPORT = "report.html"


class ServedRun:
    """One run at the server: what the strategy asks of it, its record and its checkpoints."""

    def __init__(self, run: Run, folder: RunFolder | None, machine: Machine) -> None:
        federation = run.federation
        self.run, self.folder, self.machine = run, folder, machine
        self.name = uuid.uuid4().hex  # stays the same when the run is resumed
        world = federation.world(torch.device(machine.device))
        rounds = federation.rounds
        self.engine = ReferenceEngine(rounds.nets[rounds.form], world, federation.schedule)
        self.accepted: dict[int, int] = {}  # client -> the last round taken from it; the strategy writes it
        self.like = _on(torch.device(machine.device), rehearse(federation).reply)
        self._reply_size = tree.size_in_bytes(self.like.update) + tree.size_in_bytes(self.like.report)
        self._job: Job | None = None
        self._closed: Closed | None = None
        self._slowest = 0.0
        self._clock = Clock()
        self._begun = self._sent_at = time.perf_counter()

    def begin(self, point: Checkpoint | None) -> None:
        """Create the run's folder, or stand where its checkpoint stood."""
        run, folder, device = self.run, self.folder, torch.device(self.machine.device)
        if folder is None:
            return
        line = header(run.federation, self.machine.engine, device, self.machine.threads)
        run.header = line
        if run.ledger is not None:
            keep_ledger(run.ledger, folder, needed=point is not None and point.state is not None)
        line.pop("counts", None)  # which classes a client holds is known to its node alone
        if point is None or point.state is None:
            forget(folder, rounds_in(folder))
            folder.begin(run.federation, line)
            self._keep()
            return
        go_on(run, folder, point, line, device)
        rounds = point.memories["accepted"].tolist()
        self.accepted = {client: round_ for client, round_ in enumerate(rounds) if round_ != NEVER}
        self.name = bytes(point.memories["name"].tolist()).decode()
        self._begun -= run.seconds

    def open(self, weights: Tree) -> Opened:
        """Who takes part in the next round, and what they are sent."""
        self._clock = Clock()
        with self._clock.measure("server"):
            self.run.state = self.run.state._replace(weights=weights)
            self._job = open_job(self.run)
        self._sent_at = time.perf_counter()
        return Opened(self._job.sent, self._job.clients, self._job.public)

    def ask(self) -> None:
        """Count the round, where its noise is drawn by the clients that are about to be asked."""
        terms = self.run.federation.terms
        if terms is not None and terms.mode == "local":
            assert self._job is not None
            charge(self.run, self._job)

    def work(self, samples: int) -> Work:
        """What a client of so many samples does in the round: it follows from the recipe, so nobody is asked."""
        assert self._job is not None
        return self.engine.work(self._job, samples)

    def seen(self) -> Seen:
        """What the guard remembers of earlier rounds."""
        return self.run.safety.seen.get(self.run.federation.rounds.form, Seen())

    def close(self, outcome: Outcome) -> tuple[Tree, Outcome]:
        """What the round comes to, and who is in it after the check; with nobody, the server stays as it was."""
        job = self._job
        assert job is not None  # a round closes after it was opened
        took = self._clock.seconds["train"] = time.perf_counter() - self._sent_at
        self._slowest = min(outcome.slowest, took)  # nobody trained for longer than the round took
        down, up = outcome.asked * tree.size_in_bytes(job.sent), outcome.arrived * self._reply_size
        with self._clock.measure("server"):
            if self.run.federation.terms is not None and self.run.federation.terms.mode == "central":
                charge(self.run, job)
            received = Received(*outcome[:3], up, down, {self.run.federation.rounds.form: outcome.seen})
            self._closed = close_received(self.run, job, received)
        kept = self._closed.received
        fresh = [client for client in outcome.fresh if client in kept.clients]
        outcome = outcome._replace(clients=kept.clients, trained=kept.trained, dropped=kept.dropped, fresh=fresh)
        return self._closed.state.weights, outcome

    def record(self, weights: Tree) -> Round:
        """Evaluate the new global model and the clients' that went into it, write the round down and keep it."""
        run, opened = self.run, self._job
        assert opened is not None
        assert self._closed is not None
        received = self._closed.received
        state = self._closed.state._replace(weights=weights)  # a strategy around ours may have added noise
        closed = self._closed._replace(state=state)
        job = replace(opened, clients=received.clients)
        with self._clock.measure("evaluate"):
            evaluation = self._evaluate(job, closed)
        closed = read(run, closed, evaluation)
        seconds = {name: round(value, 4) for name, value in {**self._clock.seconds, "local": self._slowest}.items()}
        new = replace(measure_round(run.federation, job, received, evaluation, seconds), clients=tuple(opened.clients))
        if run.ledger is not None:
            new = recorded(new, run.ledger)
        if self.folder:
            self.folder.add(new)
        run.rounds.append(new)
        run.move_on(closed)
        run.seconds = time.perf_counter() - self._begun
        self._keep()
        if run.failed:
            raise UserError(f"failed in round {new.number}: {run.failed}; {how_to_recover(self.folder)}")
        return new

    def _evaluate(self, job: Job, closed: Closed) -> Evaluation | None:
        """What can be measured here: not the clients' models where they do not go up, and no global one without."""
        if "weights" not in job.sent:
            return None
        federation, trained = self.run.federation, closed.received.trained
        local = federation.recipe.evaluate_local and bool(trained.local)
        federation = replace(federation, recipe=replace(federation.recipe, evaluate_local=local))
        return evaluate_closed(federation, self.engine, [closed], [job], [trained])[0]

    def conclude(self) -> None:
        """Summary, weights and the report, as far as the run has come."""
        folder, recipe = self.folder, self.run.federation.recipe
        if folder and self.run.rounds:
            summary = self.run.result().summary
            folder.finish(summary, self.run.weights())
            if summary.accuracy is not None:  # None where the clients keep their models
                write_report([folder.path], folder.path / REPORT, f"{recipe.method}, a federation of {recipe.clients}")

    def _keep(self) -> None:
        """A checkpoint of every round: a round of a federation is costly, and a checkpoint is not."""
        run = self.run
        if self.folder is None:
            return
        rounds = [self.accepted.get(client, NEVER) for client in range(len(run.rows))]
        extra = {"accepted": torch.tensor(rounds), "name": torch.tensor(list(self.name.encode()), dtype=torch.uint8)}
        memories = {**run.store.everything(), **extra}
        name = self.folder.path.name
        save_checkpoint(self.folder, run.federation, self.machine, [name], run.seconds, run.state, memories, run.safety)


def _on(device: torch.device, reply: Reply) -> Reply:
    """The reply with its tensors where the server computes."""
    update, report, figures = (
        tree.map_tree(lambda leaf: leaf.to(device), part) for part in (reply.update, reply.report, reply.figures)
    )
    return replace(reply, update=update, report=report, figures=figures)
