"""The loop over rounds, for one run or several that share a program: every round recorded, checkpoints when due."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import torch

from fedssd.core.engine import Engine
from fedssd.errors import UserError
from fedssd.methods.custom import blaming
from fedssd.recipe import Recipe, interval
from fedssd.runs.checkpoint import GOOD, Checkpoint, forget, go_on, last_common, rounds_in, save_checkpoint
from fedssd.runs.folder import DiskError, RunFolder, refuse_taken
from fedssd.runs.provenance import header
from fedssd.runs.signals import unbroken
from fedssd.runs.spending import keep_ledger
from fedssd.simulation.events import Event, Listener, ignore
from fedssd.simulation.machine import Machine, repeatable, settle, using_threads
from fedssd.simulation.receive import newly_missing
from fedssd.simulation.result import Result, Round
from fedssd.simulation.setup import Brought, Federation, assemble_all
from fedssd.simulation.simulation import Closed, Run, engine_for, one_round, start

SHARE = 100  # auto: a checkpoint may cost a hundredth of the time since the last one
SOONEST = 5.0  # auto: seconds between checkpoints that cost next to nothing


def run_recipe(
    recipe: Recipe,
    out: Path | None = None,
    listen: Listener = ignore,
    brought: Brought | None = None,
    resume: bool | str = False,
) -> Result:
    """Run one recipe; with ``out``, everything is written there as it happens, and can be resumed from there."""
    return run_together([recipe], [out], listen, brought, resume)[0]


def run_together(
    recipes: Sequence[Recipe],
    outs: Sequence[Path | None],
    listen: Listener = ignore,
    brought: Brought | None = None,
    resume: bool | str = False,
) -> list[Result]:
    """Run recipes that differ in seeds, splits and numbers only, side by side in one program.

    With ``resume`` they go on from the last checkpoints they have in common, or begin where there are none; with
    ``"last-good"`` from the checkpoint of that name.
    """
    federations = assemble_all(recipes, brought)
    first = federations[0]
    total = sum(f.recipe.rounds for f in federations)
    notice = _noticing(listen, first.recipe.method, total)
    folders = [RunFolder(out) if out is not None else None for out in outs]
    with ExitStack() as held, repeatable(first.recipe.deterministic):
        written = [folder for folder in folders if folder is not None]
        for folder in written:
            refuse_taken(folder.path, bool(resume))
            held.callback(folder.release)
            if folder.path.is_dir():
                folder.hold()
        points = last_common(written, federations, notice, resume == GOOD) if resume and written else None
        machine, why = settle(first, len(recipes), points[0].machine if points else None, notice)
        device = torch.device(machine.device)
        engine = engine_for(first, machine, notice)
        notice(f"{machine.engine} engine on {device} ({why})")
        notice(describe(first))
        for note in dict.fromkeys(note for federation in federations for note in federation.notes):
            notice(note)
        with blaming("before the first round"):
            runs = [start(federation, device) for federation in federations]
        keeper = OnDisk(runs, folders, engine, machine)
        keeper.begin(points, notice)
        with using_threads(machine.threads):
            _loop(runs, engine, keeper, listen)
        return [run.result(out) for run, out in zip(runs, outs, strict=True)]


def describe(federation: Federation) -> str:
    """Model and split in one line."""
    recipe, sizes = federation.recipe, [len(rows) for rows in federation.partition.clients]
    head = " with projection head" if recipe.head == "on" else ""
    models = ", ".join(f"{name}{head}, {count:,} parameters" for name, count in federation.parameters.items())
    return f"{models}; {len(sizes)} clients of {min(sizes)} to {max(sizes)} samples (split {federation.partition.hash})"


def _noticing(listen: Listener, run: str, total: int) -> Callable[[str], None]:
    return lambda text: listen(Event(run, 0, total, note=text))


def _loop(runs: list[Run], engine: Engine, keeper: OnDisk, listen: Listener) -> None:
    rounds = runs[0].federation.recipe.rounds
    begun = time.perf_counter() - runs[0].seconds
    try:
        for done in range(runs[0].state.round, rounds):
            over = [bool(run.failed or run.ended) for run in runs]  # trained only for the others' rounding
            if all(over):
                break
            with blaming(f"in round {done + 1}"):
                closed, ended = one_round(runs, engine)
            with unbroken():
                if any(_begins_to_fail(run, one) for run, one in zip(runs, closed, strict=True)):
                    keeper.keep()  # from here it may be lost
                for run, folder, one, new, past in zip(runs, keeper.folders, closed, ended, over, strict=True):
                    if past:
                        run.state = run.state._replace(round=run.state.round + 1)
                        continue
                    if folder:
                        folder.add(new)
                    run.rounds.append(new)
                    run.seconds = time.perf_counter() - begun
                    run.move_on(one)
                keeper.keep_if_due()
            for place, (run, new, past) in enumerate(zip(runs, ended, over, strict=True)):
                if past:
                    continue
                notes = [_divergence(run, new)] if _diverged_now(run) else []
                notes += [f"{run.name} failed in round {new.number}: {run.failed}"] if run.failed else []
                notes += [f"{run.name} stops after round {new.number}: {run.ended}"] if run.ended else []
                for note in [*notes, *newly_missing(run.name, run.rounds)]:
                    listen(Event(run.name, done * len(runs) + place, rounds * len(runs), note=note))
                folder = keeper.folders[place]
                where = folder.path if folder else None
                listen(Event(run.name, done * len(runs) + place + 1, rounds * len(runs), new, folder=where))
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


def _begins_to_fail(run: Run, closed: Closed) -> bool:
    return run.safety.health.failures == 0 < closed.health.failures


def _how_to_go_on(runs: list[Run], keeper: OnDisk) -> str:
    folder = keeper.folders[0]
    path = folder and (folder.path.parent if len(runs) > 1 else folder.path)
    kept = f"the checkpoint of round {keeper.last} is whole" if keeper.last else "no checkpoint had been written"
    return f"{kept}: when it can be written to again, fedssd resume {path}"


def _diverged_now(run: Run) -> bool:
    """Whether training broke down in this round, and not before."""
    *earlier, last = run.rounds
    return last.diverged and not any(one.diverged for one in earlier)


def _divergence(run: Run, last: Round) -> str:
    how = {
        "": "its loss is no finite number",
        "lost": "its loss is no finite number",
        "refused": "every update was refused, so its model stays",
        "rolled back": "what came back spoiled the model, so it stays as it was",
    }[last.unchanged]
    return f"{run.name} diverged in round {last.number}: {how} (a smaller lr may help)"


class OnDisk:
    """Keeps runs that go side by side on disk: their beginnings, their checkpoints and what they come to."""

    def __init__(self, runs: list[Run], folders: list[RunFolder | None], engine: Engine, machine: Machine) -> None:
        self.runs, self.folders, self.engine, self.machine = runs, folders, engine, machine
        self.cadence = Cadence(runs[0].federation.recipe.checkpoint_every)
        self.together = [folder.path.name for folder in folders if folder]
        self.last = 0  # the round of the last checkpoint

    def begin(self, points: list[Checkpoint] | None, notice: Callable[[str], None]) -> None:
        """Create the runs' folders, or put the runs where their checkpoints stood."""
        device = torch.device(self.machine.device)
        for place, (run, folder) in enumerate(zip(self.runs, self.folders, strict=True)):
            run.header = line = header(run.federation, self.machine.engine, device, self.machine.threads)
            if folder is None:
                continue
            if run.ledger is not None:
                keep_ledger(run.ledger, folder, needed=bool(points and points[place].state is not None))
            if points and points[place].state is not None:
                _refuse_fewer(run, folder, points[place].round)
                go_on(run, folder, points[place], line, device)
            else:
                folder.begin(run.federation, line)
                forget(folder, rounds_in(folder))  # they speak of rounds that are gone now
                self._save(run, folder)
        self.last = self.runs[0].state.round
        if self.last:
            notice(f"going on after round {self.last}")

    def keep(self) -> None:
        """Checkpoints of all runs, unless these rounds are kept already."""
        if self.cadence.never or self.last == self.runs[0].state.round:
            return
        begun = time.perf_counter()
        for run, folder in zip(self.runs, self.folders, strict=True):
            self._save(run, folder)
        self.last = self.runs[0].state.round
        self.cadence.wrote(time.perf_counter() - begun)

    def keep_if_due(self) -> None:
        """Checkpoints, if it is time for them."""
        if self.cadence.due(self.runs[0].state.round):
            self.keep()

    def conclude(self) -> None:
        """Summary and weights of every run that has ended a round."""
        for run, folder in zip(self.runs, self.folders, strict=True):
            if folder and run.rounds:
                folder.finish(run.result().summary, run.weights())

    def _save(self, run: Run, folder: RunFolder | None) -> None:
        if folder is None:
            return
        machine = self.machine._replace(width=getattr(self.engine, "width", None) or 0)
        memories = run.store.everything()
        save_checkpoint(folder, run.federation, machine, self.together, run.seconds, run.state, memories, run.safety)


def _refuse_fewer(run: Run, folder: RunFolder, done: int) -> None:
    rounds = run.federation.recipe.rounds
    if rounds < done:
        raise UserError(
            f"{folder.path} has {done} rounds already, and rounds = {rounds} is fewer: ask for {done} or more"
        )


class Cadence:
    """When the next checkpoint is due."""

    def __init__(self, every: str) -> None:
        self.kind, self.amount = interval(every)
        self._last = time.monotonic()
        self._cost = 0.0

    @property
    def never(self) -> bool:
        return self.kind == "never"

    def due(self, number: int) -> bool:
        """Whether the checkpoint of this round is to be written now."""
        if self.kind == "rounds":
            return number % int(self.amount) == 0
        wanted = self.amount if self.kind == "seconds" else max(SOONEST, SHARE * self._cost)
        return not self.never and time.monotonic() - self._last >= wanted

    def wrote(self, seconds: float) -> None:
        """A checkpoint has been written and took this long."""
        self._last, self._cost = time.monotonic(), seconds
