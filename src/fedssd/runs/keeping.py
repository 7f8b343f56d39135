"""What runs leave on disk as they go: their beginnings, their checkpoints and what they come to."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from fedssd.core.engine import Engine
from fedssd.errors import UserError
from fedssd.runs.cadence import Cadence
from fedssd.runs.checkpoint import Checkpoint, forget, rounds_in, save_checkpoint
from fedssd.runs.folder import header
from fedssd.simulation.machine import Machine
from fedssd.simulation.simulation import Run


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
