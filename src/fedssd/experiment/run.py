"""The loop over rounds, for one run or several that share a program."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Local, Method, ServerState, parts_of
from fedssd.core.mixed import Mixed
from fedssd.core.randomness import sample_cohort
from fedssd.core.round import ClientStore, Trained, close_round, first_memory, first_state, new_store, open_round
from fedssd.core.tree import Tree
from fedssd.engines import build_engine
from fedssd.engines.base import Engine, Evaluation, Job
from fedssd.errors import UserError
from fedssd.experiment.checkpoint import Cadence, Checkpoint, forget, last_common, rounds_in, save_checkpoint
from fedssd.experiment.closeup import close_up
from fedssd.experiment.evaluation import evaluate_round
from fedssd.experiment.events import Event, Line, Listener, ignore
from fedssd.experiment.federation import Brought, Federation, assemble_all
from fedssd.experiment.interrupt import unbroken
from fedssd.experiment.machine import Machine, cohort_size, repeatable, settle, using_threads
from fedssd.experiment.receive import Received, newly_missing, receive
from fedssd.experiment.recipe import Recipe, load_recipe
from fedssd.experiment.record import DiskError, RunFolder, Summary, diverged, header, refuse_taken, summarise

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
    lines: list[Line] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.federation.recipe.method} seed {self.federation.recipe.seed}"

    def method_now(self) -> Method:
        """The method with this round's learning rate."""
        return method_at(self.federation.method, self.federation.recipe, self.state.round)

    def move_on(self, closed: Closed) -> None:
        """Take over what a round came to: the clients remember, and the server has its next state."""
        self.store.put(closed.received.clients, closed.received.trained.memories)
        self.state = closed.state

    def go_on(self, point: Checkpoint, header: Line, device: torch.device) -> None:
        """Stand where a checkpoint of this run stood."""
        assert self.folder is not None
        assert point.state is not None
        forget(self.folder, [number for number in rounds_in(self.folder) if number > point.round])
        self.lines = self.folder.go_on(self.federation, header, point.position)
        trees = (*point.state[1:], point.memories)
        weights, local, server, memories = (tree.map_tree(lambda leaf: leaf.to(device), one) for one in trees)
        self.state = ServerState(point.round, weights, local, server)
        self.store.restore(memories)
        self.seconds = point.seconds

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
        return Result(self.federation.recipe, self.lines, summary, self.weights(), folder)


class Closed(NamedTuple):
    """What a round came to, before anything is changed by it."""

    state: ServerState
    received: Received  # whose clients remember the round


def method_at(method: Method, recipe: Recipe, round_: int) -> Method:
    """The method with the learning rate it has after so many rounds."""
    return replace(method, solver=replace(method.solver, lr=recipe.lr * recipe.lr_decay**round_))


def run_recipe(
    recipe: Recipe,
    out: Path | None = None,
    listen: Listener = ignore,
    brought: Brought | None = None,
    resume: bool = False,
) -> Result:
    """Run one recipe; with ``out``, everything is written there as it happens, and can be resumed from there."""
    return run_together([recipe], [out], listen, brought, resume)[0]


def run_together(
    recipes: Sequence[Recipe],
    outs: Sequence[Path | None],
    listen: Listener = ignore,
    brought: Brought | None = None,
    resume: bool = False,
) -> list[Result]:
    """Run recipes that differ in seeds, splits and numbers only, side by side in one program.

    With ``resume`` they go on from the last checkpoints they have in common, or begin where there are none.
    """
    federations = assemble_all(recipes, brought)
    first = federations[0]
    total = sum(f.recipe.rounds for f in federations)
    notice = _noticing(listen, first.recipe.method, total)
    folders = [RunFolder(out) if out is not None else None for out in outs]
    with ExitStack() as held, repeatable(first.recipe.deterministic):
        written = [folder for folder in folders if folder is not None]
        for folder in written:
            refuse_taken(folder.path, resume)
            held.callback(folder.release)
            if folder.path.is_dir():
                folder.hold()
        points = last_common(written, federations, notice) if resume and written else None
        machine, why = settle(first, len(recipes), points[0].machine if points else None, notice)
        device = torch.device(machine.device)
        engine = build_engine(
            machine.engine,
            first.net,
            first.world(device),
            first.schedule,
            first.recipe.precision,
            machine.width,
            notice,
            kernels=first.recipe.kernels == "on",
        )
        notice(f"{machine.engine} engine on {device} ({why})")
        notice(describe(first))
        for note in dict.fromkeys(note for federation in federations for note in federation.notes):
            notice(note)
        runs = [start(f, folder, device) for f, folder in zip(federations, folders, strict=True)]
        keeper = Keeper(runs, engine, machine)
        keeper.begin(points, notice)
        with using_threads(machine.threads):
            _loop(runs, engine, keeper, listen)
        return [run.result() for run in runs]


def read_result(folder: Path, recipe: Recipe) -> Result | None:
    """What a run left that has done all its rounds; None if it has not, or cannot be read."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
        if not (summary["rounds"] == summary["of_rounds"] == recipe.rounds == len(lines)):
            return None
        weights = tree.unflatten(load_file(folder / "weights.safetensors"))
        if "," not in recipe.model:  # an empty branch is not written
            weights = {"params": {}, "buffers": {}, **weights}
        ran = load_recipe(folder / "recipe.toml", {})
        if ran.hash != summary["recipe_hash"]:
            return None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None
    return Result(ran, lines, summary, weights, folder)


def describe(federation: Federation) -> str:
    """Model and split in one line."""
    recipe, sizes = federation.recipe, [len(rows) for rows in federation.partition.clients]
    head = " with projection head" if recipe.head == "on" else ""
    models = ", ".join(f"{name}{head}, {count:,} parameters" for name, count in federation.parameters.items())
    return f"{models}; {len(sizes)} clients of {min(sizes)} to {max(sizes)} samples (split {federation.partition.hash})"


def _noticing(listen: Listener, run: str, total: int) -> Callable[[str], None]:
    return lambda text: listen(Event(run, 0, total, note=text))


def start(federation: Federation, folder: RunFolder | None, device: torch.device) -> Run:
    """A run before its first round, with everything on the device."""
    weights = tree.map_tree(lambda w: w.to(device), federation.weights)
    rows = [client.to(device) for client in federation.partition.clients]
    auxiliary = federation.auxiliary and Auxiliary(*(part.to(device) for part in federation.auxiliary))
    state = first_state(federation.method, weights, federation.net)
    return Run(federation, state, new_store(len(rows), federation.net), rows, auxiliary, folder)


class Keeper:
    """Keeps runs that go side by side on disk: their beginnings, their checkpoints and what they come to."""

    def __init__(self, runs: list[Run], engine: Engine, machine: Machine) -> None:
        self.runs, self.engine, self.machine = runs, engine, machine
        self.cadence = Cadence(runs[0].federation.recipe.checkpoint_every)
        self.together = [run.folder.path.name for run in runs if run.folder]
        self.last = 0  # the round of the last checkpoint

    def begin(self, points: list[Checkpoint] | None, notice: Callable[[str], None]) -> None:
        """Create the runs' folders, or put the runs where their checkpoints stood."""
        device = torch.device(self.machine.device)
        for place, run in enumerate(self.runs):
            if run.folder is None:
                continue
            line = header(run.federation, self.machine.engine, device, self.machine.threads)
            if points and points[place].state is not None:
                _refuse_fewer(run, points[place].round)
                run.go_on(points[place], line, device)
            else:
                run.folder.begin(run.federation, line)
                forget(run.folder, rounds_in(run.folder))  # they speak of rounds that are gone now
                self._save(run)
        self.last = self.runs[0].state.round
        if self.last:
            notice(f"going on after round {self.last}")

    def keep(self) -> None:
        """Checkpoints of all runs, unless these rounds are kept already."""
        if self.cadence.never or self.last == self.runs[0].state.round:
            return
        begun = time.perf_counter()
        for run in self.runs:
            self._save(run)
        self.last = self.runs[0].state.round
        self.cadence.wrote(time.perf_counter() - begun)

    def keep_if_due(self) -> None:
        """Checkpoints, if it is time for them."""
        if self.cadence.due(self.runs[0].state.round):
            self.keep()

    def conclude(self) -> None:
        """Summary and weights of every run that has ended a round."""
        for run in self.runs:
            if run.folder and run.lines:
                run.folder.finish(run.result().summary, run.weights())

    def _save(self, run: Run) -> None:
        if run.folder is None:
            return
        machine = self.machine._replace(width=getattr(self.engine, "width", None) or 0)
        memories = run.store.everything()
        save_checkpoint(run.folder, run.federation, machine, self.together, run.seconds, run.state, memories)


def _refuse_fewer(run: Run, done: int) -> None:
    rounds = run.federation.recipe.rounds
    if rounds < done:
        where = run.folder.path if run.folder else run.name
        raise UserError(f"{where} has {done} rounds already, and rounds = {rounds} is fewer: ask for {done} or more")


def _loop(runs: list[Run], engine: Engine, keeper: Keeper, listen: Listener) -> None:
    rounds = runs[0].federation.recipe.rounds
    begun = time.perf_counter() - runs[0].seconds
    try:
        for done in range(runs[0].state.round, rounds):
            closed, lines = _round(runs, engine)
            with unbroken():
                for run, one, line in zip(runs, closed, lines, strict=True):
                    if run.folder:
                        run.folder.add(line)
                    run.lines.append(line)
                    run.seconds = time.perf_counter() - begun
                    run.move_on(one)
                keeper.keep_if_due()
            for place, (run, line) in enumerate(zip(runs, lines, strict=True)):
                notes = [_divergence(run, line)] if _diverged_now(run) else []
                for note in [*notes, *newly_missing(run.name, run.lines)]:
                    listen(Event(run.name, done * len(runs) + place, rounds * len(runs), note=note))
                listen(Event(run.name, done * len(runs) + place + 1, rounds * len(runs), line))
        with unbroken():
            keeper.keep()
            keeper.conclude()
    except BaseException as error:  # an interrupted run keeps the rounds it has
        with suppress(DiskError), unbroken():
            if isinstance(error, KeyboardInterrupt):
                keeper.keep()
            keeper.conclude()
        if isinstance(error, DiskError):
            raise DiskError(f"{error}; {_how_to_go_on(runs, keeper)}") from None
        raise


def _how_to_go_on(runs: list[Run], keeper: Keeper) -> str:
    path = runs[0].folder.path if runs[0].folder else None
    path = path.parent if path and len(runs) > 1 else path
    kept = f"the checkpoint of round {keeper.last} is whole" if keeper.last else "no checkpoint had been written"
    return f"{kept}: when it can be written to again, fedssd resume {path}"


def _diverged_now(run: Run) -> bool:
    """Whether training broke down in this round, and not before."""
    lost = [line for line in run.lines if diverged(line)]
    return len(lost) == 1 and lost[0] is run.lines[-1]


def _divergence(run: Run, line: Line) -> str:
    how = "every update was refused, so its model stays" if "unchanged" in line else "its loss is no finite number"
    return f"{run.name} diverged in round {line['round']}: {how} (a smaller lr may help)"


def _round(runs: list[Run], engine: Engine) -> tuple[list[Closed], list[Line]]:
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
    seconds = {name: round(value / len(runs), 4) for name, value in clock.seconds.items()}
    found = zip(runs, jobs, closed, evaluations, strict=True)
    return closed, [round_line(run, job, one.received, evaluation, seconds) for run, job, one, evaluation in found]


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


def close_job(run: Run, job: Job, trained: Trained) -> Closed:
    """What the round comes to at the server, and what the accepted clients will remember of it."""
    net, population = run.federation.net, len(run.rows)
    received = receive(run.federation.recipe, net, job, trained, population)
    state = close_round(net, job.method, run.state, received.trained, population, run.auxiliary, received.clients)
    return Closed(state, received)


def evaluate_closed(
    federation: Federation, engine: Engine, closed: list[Closed], jobs: list[Job], trained: list[Trained]
) -> Sequence[Evaluation | None]:
    """For each run what is measured after the round, or nothing where this round is not evaluated."""
    recipe, now = federation.recipe, closed[0].state.round
    if now % recipe.evaluate_every and now < recipe.rounds:
        return [None] * len(closed)
    weights, population = [one.state.weights for one in closed], len(federation.partition.clients)
    return evaluate_round(engine, federation.net, weights, jobs, trained, population, recipe.evaluate_local)


def round_line(
    run: Run, job: Job, received: Received, evaluation: Evaluation | None, seconds: dict[str, float]
) -> Line:
    """A round's record. ``forgetting`` is the new global model's accuracy less the mean of the local models'."""
    line: Line = {"round": job.round + 1}
    if evaluation is not None:
        left = run.federation.recipe.rounds - line["round"]
        line |= _accuracies(job, received, evaluation) | close_up(evaluation, job.clients, left)
    line |= _credibility(job.sent) | _distillation(run.federation.method.local, received.trained)
    line |= _drift(job.sent, received.trained)
    line |= {"clients": job.clients, "dropped": {str(client): why for client, why in received.dropped.items()}}
    line |= {} if received.clients else {"unchanged": "refused" if received.bytes_up else "lost"}
    return line | {"bytes_up": received.bytes_up, "bytes_down": received.bytes_down, "seconds": seconds}


def _accuracies(job: Job, received: Received, evaluation: Evaluation) -> Line:
    accuracy, by_class = evaluation.accuracy.tolist(), evaluation.class_accuracy
    loss = float(evaluation.loss[0])
    measured = {"acc": accuracy[0], "loss": loss if math.isfinite(loss) else None, "class_acc": _rounded(by_class[0])}
    line: Line = {"global": measured}
    if len(accuracy) > 1 and received.clients:
        places = [1 + job.clients.index(client) for client in received.clients]
        mean = sum(accuracy[place] for place in places) / len(places)
        per_client = {str(client): accuracy[place] for client, place in zip(received.clients, places, strict=True)}
        line["local"] = {"acc_mean": mean, "acc": per_client, "class_acc": _rounded(by_class[places].mean(0))}
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
    if all(type(part).targets is Local.targets for part in parts_of(local)) or not len(trained.work.samples):
        return {}
    sums = {name: float(value.sum()) for name, value in trained.figures.items()}
    count, entropy, penalty = (sums.pop(name) for name in ("count", "entropy", "penalty"))
    found = {**{name: value / count for name, value in sums.items()}, "ratio": penalty / entropy if entropy else 0.0}
    return {"distillation": {name: value if math.isfinite(value) else None for name, value in found.items()}}


def _drift(sent: Tree, trained: Trained) -> Line:
    """How far local training went, ‖w_i − w_g‖ over all parameters, as a mean over the accepted clients.

    Where no weights go down or up, or those of several models, there is no one distance.
    """
    if "weights" not in sent or "params" not in trained.local or not len(trained.work.samples):
        return {}
    pairs = zip(tree.leaves(trained.local["params"]), tree.leaves(sent["weights"]["params"]), strict=True)
    squares = [(local - start).flatten(1).square().sum(1) for local, start in pairs]  # each [C]
    distance = float(torch.stack(squares).sum(0).sqrt().mean())
    return {"drift": distance if math.isfinite(distance) else None}


def _rounded(values: Tensor) -> list[Any]:
    """Four decimals are plenty for a figure in a record, and keep its lines short."""
    return [[round(v, 4) for v in row] if isinstance(row, list) else round(row, 4) for row in values.tolist()]


class Clock:
    """Seconds by purpose, with the device idle at every reading."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def move(self, purpose: str, other: str, seconds: float) -> None:
        """Count seconds of one purpose as those of another."""
        self.seconds[purpose] -= seconds
        self.seconds[other] = self.seconds.get(other, 0.0) + seconds

    @contextmanager
    def measure(self, purpose: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds[purpose] = self.seconds.get(purpose, 0.0) + time.perf_counter() - begun
