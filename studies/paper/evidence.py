"""What the study's runs say, trial against trial: the figures that its tables are made from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from statistics import fmean

from fedssd import Difference, Result
from studies.paper import choose
from studies.paper.formats import By, paired, reached, rounds_to, spread
from studies.paper.paper import THEIRS, Column, split
from studies.paper.results import LATE, Runs
from studies.paper.tables import FAR_OFF
from studies.paper.trials import Settled, Study, Trial


class Evidence:
    """A study and its runs: what a trial reached, and what it gains over another."""

    def __init__(self, study: Study, runs: Runs) -> None:
        self.study, self.runs, self.titles = study, runs, study.titles()
        self.settled, self.home = study.chosen.settled, split(study.design.base)

    def found(self, trial: Trial, which: str = "") -> By:
        """Percent by seed."""
        return trial.percent(self.runs, which)

    def cell(self, trial: Trial, which: str = "") -> str:
        """Mean ± standard deviation (seeds)."""
        return spread(list(self.found(trial, which).values()))

    def less(self, ours: Trial, theirs: Trial, which: str = "") -> Difference:
        """One less another, paired by seed."""
        return paired(self.found(theirs, which), self.found(ours, which))

    def gain(self, trial: Trial, which: str = "", settled: Settled | None = None) -> Difference:
        """A trial less the FedAvg beside it."""
        return self.less(trial, self.study.fedavg_beside(trial, settled), which)

    def records(self, trial: Trial) -> dict[int, Result]:
        """Its runs by seed."""
        return self.runs.by_seed(trial.recipe, trial.read)

    def mean(self, trial: Trial) -> float | None:
        """Over all of its tuning seeds; None while one is missing."""
        found = self.found(trial)
        return fmean(found.values()) if len(found) == len(trial.seeds) else None

    @cached_property
    def besides(self) -> list[Settled]:
        """Pipelines that are reported beside the chosen one, each with the strengths tuned with it."""
        found = [choose.settled(self.study, one, self.mean) for one in self.study.design.also]
        return [one for one in found if one is not None and one.pipeline != self.settled.pipeline]

    def flag(self, column: Column, fedavg: Trial) -> str:
        """Behind a FedAvg of ours that is far from the published one."""
        found = self.found(fedavg).values()
        return " ⚑" if found and abs(fmean(found) - column.published[THEIRS].accuracy) > FAR_OFF else ""

    def reached(self, trial: Trial, settled: Settled | None = None) -> str:
        """T: after how many rounds a method first has its FedAvg's final accuracy of the same seed, as a median."""
        first = rounds_to(self.records(trial), self.records(self.study.fedavg_beside(trial, settled)))
        return reached(first, trial.recipe.rounds)

    def mean_of(self, trials: Sequence[Trial]) -> By:
        """Percent by those seeds that all have, as a mean over the trials."""
        found = [self.found(trial) for trial in trials]
        shared = set.intersection(*(set(one) for one in found))
        return {seed: fmean(one[seed] for one in found) for seed in sorted(shared)}


def over_late_rounds(shown: str) -> str:
    """Say below a table of a part that chooses what its figures are means of."""
    return f"{shown}\nAccuracies are means of a run's last {LATE} rounds.\n"


def flagged(shown: str) -> str:
    """With what the flag means below, where there is one."""
    note = f"⚑: our FedAvg is more than {FAR_OFF:g} from the published figure; read its column with that in mind."
    return f"{shown}\n{note}\n" if "⚑" in shown else shown
