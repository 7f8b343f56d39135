"""The loop over rounds, for one run or several that share a program."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Local, Method, ServerState, parts_of
from fedssd.core.mixed import Mixed
from fedssd.core.randomness import sample_cohort
from fedssd.core.round import (
    ClientStore,
    Trained,
    close_round,
    first_memory,
    first_state,
    new_store,
    open_round,
    traffic,
)
from fedssd.core.tree import Tree
from fedssd.engines import build_engine, pick_device, pick_engine
from fedssd.engines.base import Engine, Evaluation, Job
from fedssd.errors import UserError
from fedssd.experiment.evaluation import evaluate_round
from fedssd.experiment.events import Event, Line, Listener, ignore
from fedssd.experiment.federation import Brought, Federation, assemble
from fedssd.experiment.recipe import Recipe
from fedssd.experiment.record import RunFolder, Summary, header, summarise

SMALL_STEP = 50_000  # numbers in the inputs of one step
CREDIBILITY_IN_FULL = 20  # classes up to which the whole matrix is recorded; beyond, its diagonal


@dataclass(frozen=True)
class Result:
    """What a run leaves: its recipe, a line per round, a summary, the global weights and where they are on disk."""

    recipe: Recipe
    rounds: list[Line]
    summary: Summary
    weights: Tree
    folder: Path | None = None


@dataclass
class Run:
    """One run under way."""

    federation: Federation
    state: ServerState
    store: ClientStore
    rows: list[Tensor]
    auxiliary: Auxiliary | None
    folder: RunFolder | None
    recorded: Tree  # the weights the last line speaks of: an interrupted round leaves no trace
    lines: list[Line] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.federation.recipe.method} seed {self.federation.recipe.seed}"

    def method_now(self) -> Method:
        """The method with this round's learning rate."""
        method, recipe = self.federation.method, self.federation.recipe
        lr = recipe.lr * recipe.lr_decay**self.state.round
        return replace(method, solver=replace(method.solver, lr=lr))

    def weights(self) -> Tree:
        """The global model; where no weights are shared, every client's own, stacked."""
        if self.federation.method.local.shares_weights:
            return self.state.weights
        everybody = list(range(len(self.rows)))
        if isinstance(self.federation.net, Mixed):
            first = {name: {"model": own} for name, own in self.state.weights.items()}
            return {name: own["model"] for name, own in self.store.get(everybody, first).items()}
        return self.store.get(everybody, {"model": self.state.weights})["model"]

    def result(self) -> Result:
        summary = summarise(self.federation, self.lines, self.seconds)
        folder = self.folder.path if self.folder else None
        return Result(self.federation.recipe, self.lines, summary, self.recorded, folder)


def run_recipe(
    recipe: Recipe, out: Path | None = None, listen: Listener = ignore, brought: Brought | None = None
) -> Result:
    """Run one recipe from nothing; with ``out``, everything is written there as it happens."""
    return run_together([recipe], [out], listen, brought)[0]


def run_together(
    recipes: Sequence[Recipe], outs: Sequence[Path | None], listen: Listener = ignore, brought: Brought | None = None
) -> list[Result]:
    """Run recipes that differ in seeds and numbers only, side by side in one program."""
    federations = [assemble(recipe, brought) for recipe in recipes]
    first = federations[0]
    device = pick_device(first.recipe.device)
    chosen, why = choose(first, device, len(recipes))
    total = sum(f.recipe.rounds for f in federations)
    notice = _noticing(listen, first.recipe.method, total)
    engine = build_engine(
        chosen, first.net, first.world(device), first.schedule, first.recipe.precision, first.recipe.width, notice
    )
    notice(f"{chosen} engine on {device} ({why})")
    notice(describe(first))
    for note in dict.fromkeys(note for federation in federations for note in federation.notes):
        notice(note)
    runs = [start(f, out, device) for f, out in zip(federations, outs, strict=True)]
    for run in runs:
        if run.folder:
            run.folder.begin(run.federation, header(run.federation, chosen, device))
    side_by_side = len(runs) * cohort_size(first) if chosen == "vectorised" else 1
    with _fitting_threads(first, side_by_side):
        _loop(runs, engine, listen)
    return [run.result() for run in runs]


@contextmanager
def _fitting_threads(federation: Federation, models: int) -> Iterator[None]:
    """One thread where a step is too small to share out: on a busy machine, waking the others costs far more."""
    before = torch.get_num_threads()
    if models * federation.recipe.batch * federation.dataset.x_train[0].numel() < SMALL_STEP:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose(federation: Federation, device: torch.device, runs: int) -> tuple[str, str]:
    """Which engine runs this many runs like this one, and why."""
    if not federation.batchable:
        if federation.recipe.engine == "vectorised":
            raise UserError(
                "the vectorised engine cannot batch this model (vmap refuses it, or it holds integers): use reference"
            )
        return "reference", "this model cannot be batched: vmap refuses it, or it holds integers"
    sample = federation.dataset.x_train[0].numel()
    largest = max(federation.models.values(), key=tree.size_in_bytes)
    return pick_engine(federation.recipe.engine, device, largest, sample, cohort_size(federation), runs)


def describe(federation: Federation) -> str:
    """Model and split in one line."""
    recipe, sizes = federation.recipe, [len(rows) for rows in federation.partition.clients]
    head = " with projection head" if recipe.head == "on" else ""
    models = ", ".join(f"{name}{head}, {count:,} parameters" for name, count in federation.parameters.items())
    return f"{models}; {len(sizes)} clients of {min(sizes)} to {max(sizes)} samples (split {federation.partition.hash})"


def cohort_size(federation: Federation) -> int:
    """How many clients take part in a round: C·N to the nearest, halves up, at least one."""
    return max(1, int(federation.recipe.participation * len(federation.partition.clients) + 0.5))


def _noticing(listen: Listener, run: str, total: int) -> Callable[[str], None]:
    return lambda text: listen(Event(run, 0, total, note=text))


def start(federation: Federation, out: Path | None, device: torch.device) -> Run:
    """A run before its first round, with everything on the device."""
    weights = tree.map_tree(lambda w: w.to(device), federation.weights)
    rows = [client.to(device) for client in federation.partition.clients]
    auxiliary = federation.auxiliary and Auxiliary(*(part.to(device) for part in federation.auxiliary))
    folder = RunFolder(out) if out is not None else None
    state = first_state(federation.method, weights, federation.net)
    store = new_store(len(rows), federation.net)
    return Run(federation, state, store, rows, auxiliary, folder, recorded=weights)


def _loop(runs: list[Run], engine: Engine, listen: Listener) -> None:
    rounds = runs[0].federation.recipe.rounds
    begun = time.perf_counter()
    try:
        for done in range(rounds):
            lines = _round(runs, engine)
            for run, line in zip(runs, lines, strict=True):
                run.seconds = time.perf_counter() - begun
                run.lines.append(line)
                run.recorded = run.weights()
                if run.folder:
                    run.folder.add(line)
            for place, (run, line) in enumerate(zip(runs, lines, strict=True)):
                if _diverged_now(run):
                    listen(Event(run.name, done * len(runs) + place, rounds * len(runs), note=_divergence(run, line)))
                listen(Event(run.name, done * len(runs) + place + 1, rounds * len(runs), line))
    finally:  # an interrupted run keeps the rounds it has
        for run in runs:
            if run.folder and run.lines:
                run.folder.finish(run.result().summary, run.recorded)


def _diverged_now(run: Run) -> bool:
    """Whether this round's loss, and not yet the one before, is no finite number."""
    lost = [line for line in run.lines if "global" in line and line["global"]["loss"] is None]
    return len(lost) == 1 and lost[0] is run.lines[-1]


def _divergence(run: Run, line: Line) -> str:
    return (
        f"{run.name} diverged in round {line['round']}: its loss is no longer a finite number (a smaller lr may help)"
    )


def _round(runs: list[Run], engine: Engine) -> list[Line]:
    """One round of every run: open, train, close, evaluate, record."""
    clock = Clock()
    with clock.measure("server"):
        jobs = [open_job(run) for run in runs]
    with clock.measure("train"):
        trained = engine.train(jobs)
    with clock.measure("server"):
        for run, job, one in zip(runs, jobs, trained, strict=True):
            close_job(run, job, one)
    with clock.measure("evaluate"):
        evaluations = _evaluate(runs, engine, jobs, trained)
    seconds = {name: round(value / len(runs), 4) for name, value in clock.seconds.items()}
    found = zip(runs, jobs, trained, evaluations, strict=True)
    return [_line(run, job, one, evaluation, seconds) for run, job, one, evaluation in found]


def open_job(run: Run) -> Job:
    """Who takes part in the next round, and what they are sent."""
    federation, method = run.federation, run.method_now()
    sent = open_round(federation.net, method, run.state, run.auxiliary)
    recipe = federation.recipe
    clients = sample_cohort(recipe.seed, run.state.round, len(run.rows), cohort_size(federation))
    memories = run.store.get(clients, first_memory(method, run.state, sent, federation.net))
    public = run.auxiliary.x if method.local.needs_public and run.auxiliary else None
    rows = [run.rows[client] for client in clients]
    return Job(method, sent, recipe.seed, run.state.round, clients, rows, memories, public)


def close_job(run: Run, job: Job, trained: Trained) -> None:
    """The clients remember, and the server moves on."""
    run.store.put(job.clients, trained.memories)
    net, population = run.federation.net, len(run.rows)
    run.state = close_round(net, job.method, run.state, trained, population, run.auxiliary, job.clients)


def _evaluate(runs: list[Run], engine: Engine, jobs: list[Job], trained: list[Trained]) -> Sequence[Evaluation | None]:
    first, recipe = runs[0].federation, runs[0].federation.recipe
    if runs[0].state.round % recipe.evaluate_every and runs[0].state.round < recipe.rounds:
        return [None] * len(runs)
    weights = [run.state.weights for run in runs]
    return evaluate_round(engine, first.net, weights, jobs, trained, len(runs[0].rows), recipe.evaluate_local)


def _line(run: Run, job: Job, trained: Trained, evaluation: Evaluation | None, seconds: dict[str, float]) -> Line:
    """A round's record. ``forgetting`` is the new global model's accuracy less the mean of the local models'."""
    up, down = traffic(job.sent, trained)
    line: Line = {"round": run.state.round}
    if evaluation is not None:
        line |= _accuracies(job, evaluation)
    line |= _credibility(job.sent) | _distillation(run.federation.method.local, trained)
    return line | {"clients": job.clients, "dropped": {}, "bytes_up": up, "bytes_down": down, "seconds": seconds}


def _accuracies(job: Job, evaluation: Evaluation) -> Line:
    accuracy, by_class = evaluation.accuracy.tolist(), evaluation.class_accuracy
    loss = float(evaluation.loss[0])
    measured = {"acc": accuracy[0], "loss": loss if math.isfinite(loss) else None, "class_acc": _rounded(by_class[0])}
    line: Line = {"global": measured}
    if len(accuracy) > 1:
        mean = sum(accuracy[1:]) / len(accuracy[1:])
        per_client = {str(client): acc for client, acc in zip(job.clients, accuracy[1:], strict=True)}
        line["local"] = {"acc_mean": mean, "acc": per_client, "class_acc": _rounded(by_class[1:].mean(0))}
        line["forgetting"] = accuracy[0] - mean
    return line


def _credibility(sent: Tree) -> Line:
    """The credibility matrix that was sent, wherever in a sum of methods it is."""
    for path, leaf in tree.flatten({k: v for k, v in sent.items() if k != "weights"}).items():
        if path.split("/")[-1] == "credibility":
            return {"credibility": _rounded(leaf if len(leaf) <= CREDIBILITY_IN_FULL else leaf.diagonal())}
    return {}


def _distillation(local: Local, trained: Trained) -> Line:
    """How much was distilled, as means over every sample that was trained on this round; for methods with a teacher."""
    if all(type(part).targets is Local.targets for part in parts_of(local)):
        return {}
    sums = {name: float(value.sum()) for name, value in trained.figures.items()}
    count, entropy, penalty = (sums.pop(name) for name in ("count", "entropy", "penalty"))
    found = {**{name: value / count for name, value in sums.items()}, "ratio": penalty / entropy if entropy else 0.0}
    return {"distillation": {name: value if math.isfinite(value) else None for name, value in found.items()}}


def _rounded(values: Tensor) -> list[Any]:
    """Four decimals are plenty for a figure in a record, and keep its lines short."""
    return [[round(v, 4) for v in row] if isinstance(row, list) else round(row, 4) for row in values.tolist()]


class Clock:
    """Seconds by purpose, with the device idle at every reading."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, purpose: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds[purpose] = self.seconds.get(purpose, 0.0) + time.perf_counter() - begun
