"""The server's app: opens and closes rounds by the contract, and records and keeps them as a simulation would."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from fedssd.core import tree
from fedssd.core.contract import Work
from fedssd.core.engine import Evaluation, Job
from fedssd.core.tree import Tree
from fedssd.data.partition import Partition
from fedssd.engines import ReferenceEngine, pick_device
from fedssd.errors import UserError
from fedssd.flower.enrolment import VARIABLE, Enrolment
from fedssd.flower.grid import PromptGrid
from fedssd.flower.journal import Journal
from fedssd.flower.library import ArrayRecord, Context, Grid, MetricRecord, ServerApp, Strategy
from fedssd.flower.messages import NEVER, Reply, arrays_of, tree_of
from fedssd.flower.rehearsal import rehearse
from fedssd.flower.samples import ServerSamples, read_server, shares
from fedssd.flower.settings import Settings, recipe_of, refuse_for_simulations, settings_of
from fedssd.flower.strategy import Ends, FederatedStrategy, Opened, Outcome, Rules
from fedssd.recipe import Recipe
from fedssd.reports.html import write_report
from fedssd.runs.checkpoint import Checkpoint, forget, go_on, last_common, rounds_in, save_checkpoint
from fedssd.runs.folder import RunFolder, refuse_taken
from fedssd.runs.provenance import header
from fedssd.simulation.machine import Machine, card_name, fitting_threads, using_threads
from fedssd.simulation.measure import measure_round
from fedssd.simulation.receive import Received
from fedssd.simulation.result import Round
from fedssd.simulation.setup import Brought, Federation, assemble
from fedssd.simulation.simulation import Clock, Closed, Run, close_received, evaluate_closed, open_job, start

REPORT = "report.html"
Tell = Callable[[str], None]
Wrap = Callable[[FederatedStrategy], Strategy]  # a strategy around ours, such as Flower's for differential privacy


def build(recipe: Recipe, samples: ServerSamples) -> Federation:
    """Everything a recipe determines at the server; the clients' samples are elsewhere."""
    refuse_for_simulations(recipe)
    clients = tuple(torch.empty(0, dtype=torch.int64) for _ in range(recipe.clients))
    brought = Brought(
        dataset=samples.dataset(recipe.data),
        partition=Partition(recipe.partition, max(recipe.partition_seed, 0), clients),
        auxiliary=samples.auxiliary,
        elsewhere=True,
    )
    federation = assemble(recipe, brought)
    if len(federation.rounds.nets) > 1 and federation.method.local.shares_weights:
        raise UserError(f"a federation that shares weights has one model, got model = {recipe.model}")
    return federation


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
        del line["counts"]  # which classes a client holds is known to its node alone
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

    def work(self, samples: int) -> Work:
        """What a client of so many samples does in the round: it follows from the recipe, so nobody is asked."""
        assert self._job is not None
        return self.engine.work(self._job, samples)

    def close(self, outcome: Outcome) -> Tree:
        """What the round comes to; with nobody accepted, the server stays as it was."""
        job = self._job
        assert job is not None  # a round closes after it was opened
        took = self._clock.seconds["train"] = time.perf_counter() - self._sent_at
        self._slowest = min(outcome.slowest, took)  # nobody trained for longer than the round took
        down, up = outcome.asked * tree.size_in_bytes(job.sent), outcome.arrived * self._reply_size
        with self._clock.measure("server"):
            received = Received(outcome.clients, outcome.trained, outcome.dropped, up, down)
            self._closed = close_received(self.run, job, received)
        return self._closed.state.weights

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
        seconds = {name: round(value, 4) for name, value in {**self._clock.seconds, "local": self._slowest}.items()}
        new = measure_round(run.federation, job, received, evaluation, seconds)
        new = replace(new, clients=tuple(opened.clients))
        if self.folder:
            self.folder.add(new)
        run.rounds.append(new)
        run.move_on(closed)
        run.seconds = time.perf_counter() - self._begun
        self._keep()
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
            if summary.accuracy is None:  # the clients keep their models, so nothing was measured here
                return
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
        save_checkpoint(self.folder, run.federation, self.machine, [name], run.seconds, run.state, memories)


def _on(device: torch.device, reply: Reply) -> Reply:
    """The reply with its tensors where the server computes."""
    update, report, figures = (
        tree.map_tree(lambda leaf: leaf.to(device), part) for part in (reply.update, reply.report, reply.figures)
    )
    return replace(reply, update=update, report=report, figures=figures)


def strategy_for(
    served: ServedRun, samples: ServerSamples, settings: Settings, enrolment: Enrolment | None, tell: Tell
) -> FederatedStrategy:
    """The Flower strategy of a run."""
    federation = served.run.federation
    rules = Rules(
        settings.min_nodes or federation.cohort,
        settings.wait,
        settings.round_timeout,
        settings.weighting,
        settings.most_samples,
        federation.recipe.norm_limit,
        federation.recipe.on_bad_update == "stop",
    )
    return FederatedStrategy(
        kind=replace(samples.kind, dtype=str(federation.dataset.x_train.dtype).removeprefix("torch.")),
        run=served.name,
        population=federation.recipe.clients,
        server=Ends(served.open, served.work, served.close),
        like=served.like,
        weights=served.run.state.weights,
        rules=rules,
        tell=tell,
        accepted=served.accepted,
        round=served.run.state.round,
        enrolment=enrolment,
    )


def serve(
    grid: Grid,
    recipe: Recipe,
    samples: ServerSamples,
    settings: Settings,
    out: Path | None,
    wrap: Wrap | None = None,
    enrolment: Enrolment | None = None,
    tell: Tell | None = None,
) -> Run:
    """A whole run over the grid's nodes, or the rest of one."""
    federation = build(recipe, samples)
    machine = _machine(federation)
    with _folder(out, resume=bool(settings.resume)) as folder:
        points = last_common([folder], [federation], say) if folder and settings.resume else None
        served = ServedRun(start(federation, torch.device(machine.device)), folder, machine)
        served.begin(points[0] if points else None)
        if served.run.state.round >= recipe.rounds:
            say(f"all {recipe.rounds} rounds are done already")
        elif served.run.state.round:
            say(f"going on after round {served.run.state.round}")
        ours = strategy_for(served, samples, settings, enrolment, tell or say)
        try:
            with using_threads(machine.threads):
                timeout = settings.round_timeout
                prompt = PromptGrid(grid, lambda node: ours.letter(node, timeout), say)
                _rounds(prompt, served, ours if wrap is None else wrap(ours), timeout)
        finally:  # a run that ends early keeps the rounds it has
            served.conclude()
    return served.run


def _rounds(grid: Grid, served: ServedRun, strategy: Strategy, timeout: float) -> None:
    """Flower's own loop over what is left of the run."""
    run = served.run
    weights, rounds = run.state.weights, run.federation.recipe.rounds

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round == 0:  # Flower asks before the first round too
            return None
        new = served.record(tree_of(arrays, weights))
        say(_spoken(new, rounds))
        return None if new.accuracy is None else MetricRecord({"accuracy": new.accuracy})

    strategy.start(
        grid,
        arrays_of(run.state.weights),
        num_rounds=rounds - run.state.round,
        timeout=timeout,
        evaluate_fn=evaluate,
    )


def _machine(federation: Federation) -> Machine:
    recipe, device = federation.recipe, pick_device(federation.recipe.device)
    threads = fitting_threads(recipe.batch * federation.dataset.x_train[0].numel())
    processor = torch.backends.cpu.get_cpu_capability()
    version, card = str(torch.__version__), card_name(device)
    return Machine("flower", str(device), card, processor, 0, threads, recipe.deterministic, version)


@contextmanager
def _folder(out: Path | None, resume: bool) -> Iterator[RunFolder | None]:
    """The run's folder, held against other writers; None where nothing is to be written."""
    if out is None:
        yield None
        return
    refuse_taken(out, resume)
    folder = RunFolder(out)
    try:
        if out.is_dir():
            folder.hold()
        yield folder
    finally:
        folder.release()


def say(text: str) -> None:
    """One line in the server's log."""
    print(f"fedssd: {text}", flush=True)


def _spoken(one: Round, rounds: int) -> str:
    accuracy = "" if one.accuracy is None else f"global accuracy {100 * one.accuracy:.2f} %, "
    missing = len(one.dropped)
    taken = f"{len(one.clients) - missing} clients, {missing} left out"
    return f"round {one.number} of {rounds}: {accuracy}{taken}"


def server_app(recipe: Path, wrap: Wrap | None = None) -> ServerApp:
    """The Flower ServerApp that runs a recipe; ``wrap`` puts a strategy of Flower's around ours."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = settings_of(context.run_config)
        chosen = recipe_of(recipe, settings.set)
        if not settings.server_data:
            say(f"run-config server-data is empty: the server has its share of the recipe's {chosen.data}")
        own = os.environ.get(VARIABLE)  # set by `federation serve` and `up`, not by whoever starts a run
        samples, place = server_samples(settings, chosen), _place(settings)
        if own is None:
            serve(grid, chosen, samples, settings, place, wrap)
            return
        journal = Journal(Path(own).parent, "server", say)
        tell = journal.also(say)
        with journal.noting_a_run(place, recipe=chosen.hash):
            serve(grid, chosen, samples, settings, place, wrap, Enrolment(Path(own), tell), tell)

    return app


def server_samples(settings: Settings, recipe: Recipe) -> ServerSamples:
    """What the run names, or else the server's share of the recipe's data."""
    return read_server(Path(settings.server_data), recipe) if settings.server_data else shares(recipe).of_server()


def _place(settings: Settings) -> Path:
    """Where the run is recorded: in the folder it is resumed from, the one named, or a free one below runs/."""
    if settings.resume:
        if not (Path(settings.resume) / "checkpoint").is_dir():
            raise UserError(f"run-config resume expects the folder of a run with checkpoints, got {settings.resume}")
        return Path(settings.resume)
    if settings.out:
        return Path(settings.out)
    base, number = Path("runs") / "federation", 2
    folder = base
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder
