"""What a study's results say, trial against trial: the figures that its page and its answer are made from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean, variance
from typing import NamedTuple

from fedssd.recipe import MACHINE
from fedssd.reports.comparison import Reached, reached
from fedssd.reports.statistics import Rival, pair
from fedssd.runs.read import read_run
from fedssd.simulation.result import Result
from studies.paper.paper import Column
from studies.paper.report import mechanism
from studies.paper.report.lines import until
from studies.paper.report.row_names import titles
from studies.paper.study.design import OURS, THEIRS, Changes, Tuned, label
from studies.paper.study.parts import Study
from studies.paper.study.results import Results
from studies.paper.study.trial import Trial
from studies.paper.study.trials import COLUMNS, Settled


class Best(NamedTuple):
    """The compositions that are reported; two of them may be one."""

    ours: Trial  # the best with FedSSD
    control: Trial  # the same without it
    rival: Trial  # the best without it, whatever else it is

    @property
    def roles(self) -> list[tuple[Trial, str]]:
        """Each once, with what it is."""
        first = (self.ours, "the best with FedSSD")
        if self.control == self.rival:
            return [first, (self.control, "the same without FedSSD, which is the best without")]
        return [first, (self.control, "the same without FedSSD"), (self.rival, "the best without FedSSD")]

    @property
    def differences(self) -> list[tuple[Trial, Trial]]:
        """FedSSD's composition less the others: less its control is FedSSD's own part of a gain."""
        return [(self.ours, theirs) for theirs, _ in self.roles[1:]]


class Evidence:
    """A study and its results."""

    def __init__(self, study: Study, results: Results) -> None:
        self.study, self.results = study, results

    @cached_property
    def paper(self) -> Changes | None:
        """The pipeline that is named or chosen."""
        return self.study.paper(self.results)

    @cached_property
    def settled(self) -> Settled | None:
        """What the parts that choose leave to the others, as far as they have been run."""
        return self.study.settled(self.results)

    @cached_property
    def by_longest(self) -> Evidence:
        """The same study on the first rounds of longer runs, where the same recipe was also run for more rounds."""
        return Evidence(self.study, self.results.by_longest())

    def found(self, trial: Trial, which: str = "") -> dict[int, float]:
        """Percent by seed, as far as it has been run."""
        return self.results.accuracies(trial, self.study.seeds_read(trial), which)

    def against(self, ours: Trial, theirs: Trial, which: str = "", seeds: Sequence[int] | None = None) -> Rival:
        """One less another, paired by seed, on all seeds or on some."""
        both = [self.found(trial, which) for trial in (theirs, ours)]
        kept = [{seed: found[seed] for seed in found if seeds is None or seed in seeds} for found in both]
        return pair(theirs.arm, *kept)

    def over_fedavg(self, trial: Trial, which: str = "", seeds: Sequence[int] | None = None) -> Rival:
        """A trial less the FedAvg beside it."""
        return self.against(trial, self.study.fedavg_beside(trial), which, seeds)

    def records(self, trial: Trial) -> list[Result]:
        """What its runs wrote down, as far as it has been run."""
        paths = [self.results.run(trial, seed) for seed in self.study.seeds_read(trial)]
        return [until(_record(path), trial.recipe.rounds) for path in paths if path is not None]

    def distilled(self, settled: Settled) -> list[tuple[Column, float]]:
        """FedSSD's mean weight in percent of M_max in the last round, by those columns it was reported on."""
        weight = next(iter(mechanism.DISTILLED.values()))
        found = [
            (column, mechanism.at_the_end(self.records(self.study.reported(column, OURS, settled)), weight))
            for column in COLUMNS
        ]
        return [(column, end) for column, end in found if end is not None]

    def rounds_to_fedavg(self, ours: Trial) -> Reached | None:
        """T: the rounds after which one first has its FedAvg's final accuracy of the same seed, as a median."""
        first = self._reaching_fedavg(ours)
        return reached(list(first.values()), [ours.recipe.rounds] * len(first))

    def sooner(self, ours: Trial) -> Rival:
        """The same less FedAvg's own rounds, paired by seed; on none unless it gets there on every one."""
        theirs, own = (self._reaching_fedavg(one) for one in (self.study.fedavg_beside(ours), ours))
        there = {seed: rounds for seed, rounds in own.items() if rounds is not None}
        null = {seed: rounds for seed, rounds in theirs.items() if rounds is not None}  # whose own last round has it
        return pair(THEIRS, null, there if len(there) == len(own) else {})

    def _reaching_fedavg(self, ours: Trial) -> dict[int, int | None]:
        """By seed the first round with FedAvg's final accuracy, None for never."""
        theirs = self.records(self.study.fedavg_beside(ours))
        ends = {record.summary.seed: record.rounds[-1].accuracy or 0.0 for record in theirs}
        known = {record.summary.seed: record for record in self.records(ours)}
        return {seed: record.rounds_to(ends[seed]) for seed, record in known.items() if seed in ends}

    @property
    def leaders(self) -> list[str]:
        """The arms of which it is asked whether FedSSD leads."""
        design = self.study.design
        return [arm for arm in design.more_arms if design.arms[arm].method == OURS]

    @cached_property
    def besides(self) -> list[Evidence]:
        """What there is with pipelines that are reported beside the chosen one, the strengths tuned under each."""
        if self.study.pipeline is not None:
            return []
        chosen = self.paper
        return [Evidence(replace(self.study, pipeline=one), self.results) for one in self.study.also() if one != chosen]

    @property
    def pipeline(self) -> str:
        """Its name; empty while there is none."""
        return label(self.paper or {})

    @property
    def has_report(self) -> bool:
        """Whether any method is reported with this pipeline, at a strength tuned under it."""
        settled = self.settled
        return settled is not None and any(self.reported_leads(name, settled) for name in self.titles)

    @cached_property
    def reported(self) -> Evidence:
        """This, or while nothing is reported with the chosen pipeline, the first beside it with which something is."""
        return next((one for one in (self, *self.besides) if one.has_report), self)

    @property
    def home(self) -> Column:
        """The column that is the base's."""
        return next(column for column in COLUMNS if column.recipe == self.study.design.base)

    @property
    def beside_the_paper(self) -> bool:
        """Whether the paper has figures for these runs: not where recipes are changed, on digits to begin with."""
        return not self.study.small and not set(self.study.changes) - set(MACHINE)

    def published(self, column: Column) -> float | None:
        """The lead that the paper prints; None where it has no figures for these runs."""
        if not self.beside_the_paper:
            return None
        return column.published[OURS].accuracy - column.published[THEIRS].accuracy

    def reported_leads(self, name: str, settled: Settled, seeds: Sequence[int] | None = None) -> dict[str, Rival]:
        """A method or variant less FedAvg on seeds nothing was chosen on, by column's title, where both were run.

        On all of these seeds, or of them on some.
        """
        trials = {column.title: self.study.reported(column, name, settled) for column in COLUMNS}
        found = {title: self.over_fedavg(trial, seeds=seeds) for title, trial in trials.items()}
        return {title: lead for title, lead in found.items() if lead.gains}

    def on_added_seeds(self, settled: Settled) -> dict[str, Rival]:
        """FedSSD's lead on those seeds alone that were added after the others had been looked at, by column's title."""
        added = () if self.study.reporting else self.study.design.more_seeds
        return self.reported_leads(OURS, settled, added)

    @property
    def best_on_digits(self) -> float | None:
        """FedSSD's strength that is best over all columns of digits, as far as these runs say it."""
        part = "digits-columns"
        best = self.study.everywhere(self.results, part)
        known = best is not None and self.study.over_columns(best, {}, self.results, part) is not None
        return best if known else None

    def mean_of_columns(self, value: float | None, paper: Changes, part: str) -> dict[int, float]:
        """Percent by seed, as a mean over all columns, with a value of FedSSD's strength or of FedAvg."""
        return self._mean([self.study.on_column(column, value, paper, part) for column in COLUMNS])

    def mean_reported(self, name: str, settled: Settled) -> dict[int, float]:
        """The same of a method or variant that is reported."""
        return self._mean([self.study.reported(column, name, settled) for column in COLUMNS])

    def _mean(self, trials: Sequence[Trial]) -> dict[int, float]:
        """Percent by those seeds that all have, as a mean over the trials."""
        found = [self.found(trial) for trial in trials]
        shared = set.intersection(*(set(one) for one in found))
        return {seed: fmean(one[seed] for one in found) for seed in sorted(shared)}

    def over_fedssd(self, name: str, column: Column, settled: Settled) -> Rival:
        """Another method or variant less FedSSD on a column, each as reported."""
        one, ours = (self.study.reported(column, which, settled) for which in (name, OURS))
        return self.against(one, ours)

    @property
    def titles(self) -> dict[str, str]:
        """What a page calls the methods and variants that are reported, the paper's first."""
        known = titles(self.study.design)
        return {name: known[name] for name in self.study.names_reported(self.settled)}

    def ahead(self, one: Tuned, settled: Settled) -> Rival:
        """A variant less FedSSD, each at its best on the tuning seeds."""
        ours = next(grid for grid in self.study.design.grids if grid.name == OURS)
        variant = self.study.tried(one, settled.paper)[settled.variants[one.name]]
        return self.against(variant, self.study.tried(ours, settled.paper)[settled.strengths[ours.key]])

    def best(self) -> Best | None:
        """The compositions that were chosen, as they are reported; none while nothing is chosen."""
        settled, found = self.settled, self.study.compositions(self.results)
        if settled is None or not found:
            return None
        trials = [self.study.best(name, value, settled) for name, value in found.items()]  # the better first
        ours = next(trial for trial in trials if not self.study.design.composition(trial.group).is_control)
        return Best(ours, *self.study.without_fedssd(ours, trials))

    def fedssd_adds(self, composed: Trial) -> Rival:
        """A composition with FedSSD less the same without it, with the same value and on the tuning seeds."""
        trials = self.study.trials("compose", self.results)
        ours = next(trial for trial in trials if (trial.group, trial.label) == (composed.group, composed.label))
        without = self.study.compared_with(ours, trials)
        return next((self.against(ours, theirs) for theirs in without if theirs.label == ours.label), pair("", {}, {}))

    def distance_error(self, changes: Changes, columns: Sequence[Column]) -> float | None:
        """The standard error of a pipeline's distance to the published FedAvg, from our seeds alone.

        With a few seeds a pipeline's own spread says little, so a column's is pooled over the pipelines that have run
        on it. Over columns it is of first order in the errors of their means.
        """
        shares, errors = [], []
        for column in columns:
            found = self.found(self.study.candidate(changes, column))
            spreads = [
                variance(values)
                for other in self.study.candidates()
                if len(values := list(self.found(self.study.candidate(other, column)).values())) > 1
            ]
            if not found or not spreads:
                return None
            shares.append((fmean(found.values()) - column.published[THEIRS].accuracy) ** 2)
            errors.append(fmean(spreads) / len(found))
        if not sum(shares):  # no column is off, so that each may be
            shares = [1.0] * len(columns)
        weighted = sum(share * error for share, error in zip(shares, errors, strict=True)) / sum(shares)
        return math.sqrt(weighted / len(columns))


@cache
def _record(path: Path) -> Result:
    return read_run(path)
