"""The server's app: opens and closes rounds by the contract, and records them as a simulation would."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import torch

from fedssd.core.randomness import sample_cohort
from fedssd.core.round import close_round, open_round
from fedssd.core.tree import Tree
from fedssd.data.partition import Partition
from fedssd.deployment.rehearsal import rehearse
from fedssd.deployment.samples import ServerSamples, read_server
from fedssd.deployment.settings import Settings, recipe_of, settings_of
from fedssd.engines import ReferenceEngine, pick_device
from fedssd.engines.base import Job
from fedssd.engines.flower.grid import PromptGrid
from fedssd.engines.flower.library import ArrayRecord, Context, Grid, MetricRecord, ServerApp
from fedssd.engines.flower.messages import arrays_of, tree_of
from fedssd.engines.flower.strategy import Ends, FederatedStrategy, Opened, Outcome, Rules
from fedssd.errors import UserError
from fedssd.experiment.events import Line
from fedssd.experiment.federation import Brought, Federation, assemble
from fedssd.experiment.recipe import Recipe
from fedssd.experiment.record import header
from fedssd.experiment.run import Clock, Run, _evaluate, _line, cohort_size, fitting_threads, start


def build(recipe: Recipe, samples: ServerSamples) -> Federation:
    """Everything a recipe determines at the server; the clients' samples are elsewhere."""
    clients = tuple(torch.empty(0, dtype=torch.int64) for _ in range(recipe.clients))
    brought = Brought(
        dataset=samples.dataset(recipe.data),
        partition=Partition(recipe.partition, max(recipe.partition_seed, 0), clients),
        auxiliary=samples.auxiliary,
        elsewhere=True,
    )
    return assemble(recipe, brought)


class ServedRun:
    """One run at the server: what a strategy asks of it, and its record."""

    def __init__(self, run: Run) -> None:
        federation = run.federation
        device = pick_device(federation.recipe.device)
        self.run = run
        self.engine = ReferenceEngine(federation.net, federation.world(device), federation.schedule)
        self._job: Job | None = None
        self._outcome: Outcome | None = None
        self._clock = Clock()
        self._sent_at = self._begun = time.perf_counter()

    def open(self, weights: Tree) -> Opened:
        """Who takes part in the next round, and what they are sent."""
        run, federation = self.run, self.run.federation
        self._clock = Clock()
        with self._clock.measure("server"):
            run.state = run.state._replace(weights=weights)
            method = run.method_now()
            sent = open_round(federation.net, method, run.state, run.auxiliary)
            seed, population = federation.recipe.seed, len(run.rows)
            cohort = sample_cohort(seed, run.state.round, population, cohort_size(federation))
        self._job = Job(method, sent, seed, run.state.round, cohort, [], {})
        self._sent_at = time.perf_counter()
        return Opened(sent, cohort)

    def close(self, outcome: Outcome) -> Tree:
        """The server moves on with what was accepted; without any of it, it stays where it was."""
        run, job = self.run, self._job
        assert job is not None  # a round closes after it was opened
        self._clock.seconds["train"] = time.perf_counter() - self._sent_at
        self._outcome = outcome
        with self._clock.measure("server"):
            net, population = run.federation.net, len(run.rows)
            run.state = close_round(net, job.method, run.state, outcome.trained, population, run.auxiliary)
        return run.state.weights

    def record(self, weights: Tree) -> Line:
        """Evaluate the new global model and the clients' that went into it, and write the round down."""
        run, outcome = self.run, self._outcome
        assert outcome is not None
        assert self._job is not None
        run.state = run.state._replace(weights=weights)
        with self._clock.measure("evaluate"):
            (evaluation,) = _evaluate([run], self.engine, [outcome.trained])
        job = Job(self._job.method, self._job.sent, self._job.seed, self._job.round, outcome.clients, [], {})
        seconds = {name: round(value, 4) for name, value in self._clock.seconds.items()}
        line = _line(run, job, outcome.trained, evaluation, seconds)
        line["dropped"] = {str(client): why for client, why in outcome.dropped.items()}
        run.lines.append(line)
        run.recorded = weights
        run.seconds = time.perf_counter() - self._begun
        if run.folder:
            run.folder.add(line)
        return line


def say(text: str) -> None:
    """One line in the server's log."""
    print(f"fedssd: {text}", flush=True)


def _spoken(line: Line, rounds: int) -> str:
    accuracy = f"global accuracy {100 * line['global']['acc']:.2f} %, " if "global" in line else ""
    taken = f"{len(line['clients'])} clients, {len(line['dropped'])} left out"
    return f"round {line['round']} of {rounds}: {accuracy}{taken}"


def strategy_for(served: ServedRun, samples: ServerSamples, settings: Settings, name: str) -> FederatedStrategy:
    """The Flower strategy of a run."""
    federation = served.run.federation
    rules = Rules(
        settings.min_nodes or cohort_size(federation),
        settings.wait,
        settings.round_timeout,
        settings.weighting,
        settings.most_samples,
    )
    return FederatedStrategy(
        kind=samples.kind,
        run=name,
        population=federation.recipe.clients,
        server=Ends(served.open, served.close),
        like=rehearse(federation).reply,
        weights=federation.weights,
        local=federation.method.local,
        rules=rules,
        tell=say,
    )


def serve(grid: Grid, recipe: Recipe, samples: ServerSamples, settings: Settings, out: Path | None) -> Run:
    """A whole run over the grid's nodes."""
    federation = build(recipe, samples)
    run = start(federation, out, pick_device(recipe.device))
    served = ServedRun(run)
    strategy = strategy_for(served, samples, settings, uuid.uuid4().hex)
    if run.folder:
        run.folder.begin(federation, header(federation, "flower", pick_device(recipe.device)))

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round == 0:  # Flower asks before the first round too
            return None
        line = served.record(tree_of(arrays, federation.weights))
        say(_spoken(line, federation.recipe.rounds))
        return MetricRecord({"accuracy": line["global"]["acc"]}) if "global" in line else None

    remaining = federation.recipe.rounds - run.state.round
    sample = federation.dataset.x_train[0].numel()
    try:
        with fitting_threads(recipe.batch * sample):
            strategy.start(
                PromptGrid(grid),
                arrays_of(run.state.weights),
                num_rounds=remaining,
                timeout=settings.round_timeout,
                evaluate_fn=evaluate,
            )
    finally:
        if run.folder and run.lines:
            run.folder.finish(run.result().summary, run.recorded)
    return run


def server_app(recipe: Path) -> ServerApp:
    """The Flower ServerApp that runs a recipe."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = settings_of(context.run_config)
        chosen = recipe_of(recipe, settings.set)
        if not settings.server_data:
            raise UserError("run-config server-data names the server's samples (test and auxiliary); it is empty")
        samples = read_server(Path(settings.server_data), chosen)
        serve(grid, chosen, samples, settings, Path(settings.out) if settings.out else _free_folder())

    return app


def _free_folder() -> Path:
    """A folder below runs/ that nobody uses yet."""
    base, number = Path("runs") / "federation", 2
    folder = base
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder
