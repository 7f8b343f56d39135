"""What the row of a trial is compared with: said here alone, for the page's tables and for ``--only``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from studies.paper.study.design import ON_COLUMNS, OURS, THEIRS, label
from studies.paper.study.trial import Trial
from studies.paper.study.trials import BASE, Settled, Trials

DEPARTING, OF_DIGITS = ("screen", "confirm"), "digits-choices"


class Without(NamedTuple):
    """What a composition with FedSSD is reported beside; both may be one."""

    control: Trial  # the same without FedSSD
    rival: Trial  # the best without it, whatever else it is


@dataclass(frozen=True)
class Rows(Trials):
    """A design's trials, each with those that its row is compared with.

    Grids that tune a strength are compared as a whole, value with value and best with best: no row is beside another,
    but on columns FedAvg's.
    """

    def base_of(self, trial: Trial) -> Trial:
        """What a departure departs from."""
        if trial.part == OF_DIGITS:
            return self.digits_departure(BASE, trial.arm, {})
        return self._departure(trial.part, BASE, trial.arm, {})

    def fedavg_beside(self, trial: Trial) -> Trial:
        """FedAvg where a trial is: with its departure, on its column, or beside a composition as it is reported."""
        if trial.part in (*DEPARTING, OF_DIGITS):
            return self._departed_fedavg(trial)
        column = self._column(self.design.base if trial.part == "best" else trial.group)
        if trial.part == "digits":
            return self.on_digits(column, THEIRS)
        if trial.part == "digits-columns":
            return self.on_column(column, None, {}, trial.part)
        paper = next(one for one in self.candidates() if label(one) == trial.pipeline)
        if trial.part == "columns":
            return self.on_column(column, None, paper)
        return self.reported(column, THEIRS, Settled(paper, {}, {}))

    def first_pipeline_beside(self, trial: Trial) -> Trial:
        """The pipeline that the others are compared with, on the same column."""
        return self.candidate(self.candidates()[0], self._column(trial.group))

    def without_fedssd(self, ours: Trial, reported: Sequence[Trial]) -> Without:
        """What a composition with FedSSD is beside, of those that are reported, the better first."""
        same = self.design.without_fedssd(ours.group).name
        control = next(trial for trial in reported if trial.group == same)
        return Without(control, next(trial for trial in reported if self._is_control(trial)))

    def compared_with(self, trial: Trial, trials: Sequence[Trial]) -> list[Trial]:
        """All that rows compare it with; compositions are looked for among these trials of its part."""
        found: list[Trial] = []
        if trial.part in (*DEPARTING, OF_DIGITS):
            with_fedavg = trial.recipe.method == OURS or trial.group == BASE
            found = [self.base_of(trial), *([self.fedavg_beside(trial)] if with_fedavg else [])]
        elif trial.part == "profile":
            found = [self.first_pipeline_beside(trial)]
        elif trial.part in (*ON_COLUMNS, "report", "digits"):
            found = [self.fedavg_beside(trial), *self._fedssd_beside(trial, trials)]
        elif trial.part == "compose" and not self._is_control(trial):
            found = self._composed_without(trial, trials)
        elif trial.part == "best":
            without = () if self._is_control(trial) else self.without_fedssd(trial, trials)
            found = [*without, self.fedavg_beside(trial)]
        return [other for other in found if other != trial]

    def with_compared(self, wanted: Sequence[Trial], trials: Sequence[Trial]) -> list[Trial]:
        """Some of a part's trials, behind what their rows are compared with: of the part in its order, then others."""
        beside = [other for trial in wanted for other in self.compared_with(trial, trials) if other not in wanted]
        elsewhere = [other for place, other in enumerate(beside) if other not in (*trials, *beside[:place])]
        return [*(trial for trial in trials if trial in beside), *elsewhere, *wanted]

    def _fedssd_beside(self, trial: Trial, trials: Sequence[Trial]) -> list[Trial]:
        """FedSSD as tuned, on the column of another method that is reported; FedAvg's row is in FedSSD's own."""
        if trial.part != "report" or trial.arm == THEIRS:
            return []
        return [other for other in trials if (other.group, other.arm) == (trial.group, OURS)]

    def _departed_fedavg(self, trial: Trial) -> Trial:
        """With the same departure, or at the base where FedAvg does not have it."""
        digits = trial.part == OF_DIGITS
        depart = self.digits_departure if digits else partial(self._departure, trial.part)
        for choice in self.design.digits.choices if digits else self.design.choices:
            for changes in choice.changes if THEIRS in choice.arms else ():
                if (choice.name, label(changes)) == (trial.group, trial.label):
                    return depart(choice.name, THEIRS, changes)
        return depart(BASE, THEIRS, {})

    def _is_control(self, trial: Trial) -> bool:
        return self.design.composition(trial.group).is_control

    def _composed_without(self, ours: Trial, trials: Sequence[Trial]) -> list[Trial]:
        """The same without FedSSD at the same value, or at each of its own where it does not have that."""
        name = self.design.without_fedssd(ours.group).name
        grid = [trial for trial in trials if trial.group == name]
        return [trial for trial in grid if trial.label == ours.label] or grid
