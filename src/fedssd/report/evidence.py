"""What a study's results say, trial against trial: the figures that its page and its answer are made from."""

from __future__ import annotations

from statistics import fmean

from fedssd.experiment.paper import Column
from fedssd.experiment.recipe import MACHINE
from fedssd.experiment.study.design import Tuned
from fedssd.experiment.study.parts import COLUMNS, Settled, Study
from fedssd.experiment.study.results import Results
from fedssd.experiment.study.trial import Trial
from fedssd.report.paired import Rival, pair

OURS, THEIRS = "fedssd", "fedavg"


class Evidence:
    """A study and its results."""

    def __init__(self, study: Study, results: Results) -> None:
        self.study, self.results = study, results

    def found(self, trial: Trial, which: str = "") -> dict[int, float]:
        """Percent by seed, as far as it has been run."""
        return self.results.accuracies(trial, self.study.seeds_for(trial), which)

    def against(self, ours: Trial, theirs: Trial) -> Rival:
        """One less another, paired by seed."""
        return pair(theirs.arm, self.found(theirs), self.found(ours))

    @property
    def leaders(self) -> list[str]:
        """The arms of which it is asked whether FedSSD leads."""
        design = self.study.design
        return [arm for arm in design.more_arms if design.arms[arm].method == OURS]

    @property
    def home(self) -> Column:
        """The column that is the base's."""
        return next(column for column in COLUMNS if column.recipe == self.study.design.base)

    def published(self, column: Column) -> float | None:
        """The lead that the paper prints; None where our recipes are changed, on digits to begin with."""
        if self.study.small or set(self.study.changes) - set(MACHINE):
            return None
        return column.published[OURS].accuracy - column.published[THEIRS].accuracy

    def reported_lead(self, column: Column, name: str, settled: Settled) -> Rival:
        """A method or variant less FedAvg on a column, on seeds nothing was chosen on."""
        return self.against(*(self.study.reported(column, one, settled) for one in (name, THEIRS)))

    def ahead(self, one: Tuned, settled: Settled) -> Rival:
        """A variant less FedSSD, each at its best on the tuning seeds."""
        ours = next(grid for grid in self.study.design.grids if grid.name == OURS)
        variant = self.study.tried(one, settled.paper)[settled.variants[one.name]]
        return self.against(variant, self.study.tried(ours, settled.paper)[settled.strengths[ours.key]])

    def better(self, settled: Settled) -> list[Tuned]:
        """The variants of FedSSD that end above it on the tuning seeds."""
        variants = [one for one in self.study.design.variants if one.method == OURS]
        return [one for one in variants if (gains := self.ahead(one, settled).gains) and fmean(gains) > 0]

    def best_trials(self) -> list[Trial]:
        """The compositions that were chosen, as they are reported; none while nothing is chosen."""
        settled, found = self.study.settled(self.results), self.study.compositions(self.results)
        if settled is None:
            return []
        by_name = {one.name: one for one in self.study.design.compositions}
        return [self.study.composed("best", by_name[name], value, settled) for name, value in found.items()]

    @property
    def controls(self) -> set[str]:
        """The compositions that do without FedSSD."""
        return {one.name for one in self.study.design.compositions if one.is_control}

    def with_and_without(self) -> tuple[Trial, Trial] | None:
        """The best composition with FedSSD and the best without: what of a gain is FedSSD's."""
        trials = {trial.arm in self.controls: trial for trial in self.best_trials()}
        return (trials[False], trials[True]) if len(trials) == 2 else None
