"""The loop over rounds, for one run or several that share a program."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import torch

from fedssd.core.engine import Engine
from fedssd.engines import build_engine
from fedssd.experiment.recipe import Recipe
from fedssd.methods.custom import blaming
from fedssd.runs.checkpoint import last_common
from fedssd.runs.folder import DiskError, RunFolder, diverged, refuse_taken
from fedssd.runs.keeping import Keeper
from fedssd.runs.signals import unbroken
from fedssd.simulation.events import Event, Line, Listener, ignore
from fedssd.simulation.machine import repeatable, settle, using_threads
from fedssd.simulation.receive import newly_missing
from fedssd.simulation.result import Result
from fedssd.simulation.setup import Brought, Federation, assemble_all
from fedssd.simulation.simulation import Run, one_round, start


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
        with blaming("before the first round"):
            runs = [start(f, folder, device) for f, folder in zip(federations, folders, strict=True)]
        keeper = Keeper(runs, engine, machine)
        keeper.begin(points, notice)
        with using_threads(machine.threads):
            _loop(runs, engine, keeper, listen)
        return [run.result() for run in runs]


def describe(federation: Federation) -> str:
    """Model and split in one line."""
    recipe, sizes = federation.recipe, [len(rows) for rows in federation.partition.clients]
    head = " with projection head" if recipe.head == "on" else ""
    models = ", ".join(f"{name}{head}, {count:,} parameters" for name, count in federation.parameters.items())
    return f"{models}; {len(sizes)} clients of {min(sizes)} to {max(sizes)} samples (split {federation.partition.hash})"


def _noticing(listen: Listener, run: str, total: int) -> Callable[[str], None]:
    return lambda text: listen(Event(run, 0, total, note=text))


def _loop(runs: list[Run], engine: Engine, keeper: Keeper, listen: Listener) -> None:
    rounds = runs[0].federation.recipe.rounds
    begun = time.perf_counter() - runs[0].seconds
    try:
        for done in range(runs[0].state.round, rounds):
            with blaming(f"in round {done + 1}"):
                closed, lines = one_round(runs, engine)
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
                where = run.folder.path if run.folder else None
                listen(Event(run.name, done * len(runs) + place + 1, rounds * len(runs), line, folder=where))
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
