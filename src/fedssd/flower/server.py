"""The server's app: a whole run over the nodes, or the rest of one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from fedssd.core.guard import Limits
from fedssd.data.partition import Partition
from fedssd.engines import pick_device
from fedssd.errors import UserError
from fedssd.flower.enrolment import VARIABLE, Enrolment
from fedssd.flower.grid import PromptGrid
from fedssd.flower.journal import Journal
from fedssd.flower.library import ArrayRecord, Context, Grid, MetricRecord, ServerApp, Strategy
from fedssd.flower.messages import arrays_of, tree_of
from fedssd.flower.samples import ServerSamples, read_server, shares
from fedssd.flower.served import ServedRun
from fedssd.flower.settings import Settings, recipe_of, refuse_for_simulations, settings_of
from fedssd.flower.strategy import Ends, FederatedStrategy, Rules
from fedssd.recipe import Recipe
from fedssd.runs.checkpoint import (
    GOOD,
    how_to_recover,
    last_common,
)
from fedssd.runs.folder import RunFolder, refuse_taken
from fedssd.simulation.machine import Machine, card_name, fitting_threads, using_threads
from fedssd.simulation.private import rounds_left
from fedssd.simulation.result import Round
from fedssd.simulation.setup import Brought, Federation, assemble
from fedssd.simulation.simulation import Run, start

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


def strategy_for(
    served: ServedRun, samples: ServerSamples, settings: Settings, enrolment: Enrolment | None, tell: Tell
) -> FederatedStrategy:
    """The Flower strategy of a run."""
    federation = served.run.federation
    recipe, terms = federation.recipe, federation.terms
    central = terms is not None and terms.mode == "central"
    rules = Rules(
        settings.min_nodes or federation.cohort,
        settings.wait,
        settings.round_timeout,
        "equal" if terms else settings.weighting,
        settings.most_samples,
        Limits() if central else Limits(recipe.reach, recipe.norm_limit),  # there the noise must not depend on who came
        recipe.on_bad_update == "stop",
        central,
    )
    return FederatedStrategy(
        kind=replace(samples.kind, dtype=str(federation.dataset.x_train.dtype).removeprefix("torch.")),
        run=served.name,
        population=federation.recipe.clients,
        server=Ends(served.open, served.ask, served.work, served.seen, served.close),
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
        good = settings.resume_from == GOOD
        points = last_common([folder], [federation], say, good) if folder and settings.resume else None
        served = ServedRun(start(federation, torch.device(machine.device)), folder, machine)
        served.begin(points[0] if points else None)
        done = served.run.state.round
        if served.run.failed:
            raise UserError(f"{out} has failed: {served.run.failed}; {how_to_recover(folder)}")
        if done:
            say(f"all {done} rounds are done already" if done >= recipe.rounds else f"going on after round {done}")
        ours = strategy_for(served, samples, settings, enrolment, tell or say)
        try:
            with using_threads(machine.threads):
                timeout = settings.round_timeout
                prompt = PromptGrid(grid, lambda node: ours.letter(node, timeout), say)
                _rounds(prompt, served, ours if wrap is None else wrap(ours), timeout)
        finally:  # a run that ends early keeps the rounds it has
            served.conclude()
        if served.run.ended:
            raise UserError(f"stopped after round {served.run.state.round} of {recipe.rounds}: {served.run.ended}")
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
        num_rounds=rounds_left(run),
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
