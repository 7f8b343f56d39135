"""What the study chooses: survivors, pipeline, strengths, compositions; by fixed rules, from results on tuning seeds.

Where a part has not been run to its end, what was chosen before stands, as far as the design still has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from studies.paper.paper import Column
from studies.paper.study.chosen import Chosen
from studies.paper.study.design import ON_COLUMNS, Changes, Tuned
from studies.paper.study.results import Results
from studies.paper.study.rows import Rows
from studies.paper.study.trials import COLUMNS, Settled


@dataclass(frozen=True)
class Choices(Rows):
    """The choices that follow from a study's results."""

    def survivors(self, results: Results) -> tuple[str, ...] | None:
        """The departures worth confirming: of every choice the one that changes most and the one that ends best.

        One that changes no arm by the design's number of points, either way, is not worth it.
        """
        found: list[str] = []
        for choice in self.design.choices:
            effects: dict[str, float] = {}
            ends: dict[str, float] = {}
            for trial in self.departures("screen", choice):
                ours, base = (results.mean(t, self.seeds_of("screen")) for t in (trial, self.base_of(trial)))
                if ours is None or base is None:
                    return self._given.survivors
                effects[trial.label] = max(effects.get(trial.label, 0.0), abs(ours - base))
                ends[trial.label] = max(ends.get(trial.label, 0.0), ours)
            worth = [name for name, effect in effects.items() if effect >= self.design.survives]
            if worth:
                found += dict.fromkeys((max(worth, key=effects.__getitem__), max(worth, key=ends.__getitem__)))
        return tuple(found)

    def distance(self, changes: Changes, columns: Sequence[Column], results: Results) -> float | None:
        """Points between FedAvg with a pipeline and the published FedAvg, as a root mean square over columns."""
        squares = []
        for column in columns:
            mean = results.mean(self.candidate(changes, column), self.seeds_of("profile"))
            if mean is None:
                return None
            squares.append((mean - column.published["fedavg"].accuracy) ** 2)
        return math.sqrt(fmean(squares))

    def paper(self, results: Results) -> Changes | None:
        """The pipeline that is named, or whose FedAvg is closest to the published one over all columns.

        Ties go to the first.
        """
        if self.pipeline is not None:
            return self.pipeline
        far = [(self.distance(one, COLUMNS, results), one) for one in self.candidates()]
        known = [(distance, one) for distance, one in far if distance is not None]
        if not known or len(known) < len(far):
            return self._given.paper
        return min(known, key=lambda pair: pair[0])[1]

    def strengths(self, results: Results) -> dict[str, float] | None:
        """The best value of every method of the paper that has a strength, by ``method.option``."""
        found = self._bests(self.design.grids, results)
        if found is not None:
            return {one.key: found[one.name] for one in self.design.grids}
        given = self._given_with_pipeline(results).strengths
        return dict(given[self._data]) if self._data in given else None

    def variants(self, results: Results) -> dict[str, float] | None:
        """The best value of every variant, by its name."""
        found = self._bests(self.design.variants, results)
        return found if found is not None else dict(self._given_with_pipeline(results).variants) or None

    def _bests(self, tuned: Sequence[Tuned], results: Results) -> dict[str, float] | None:
        """The best value of each by the mean over the tuning seeds; ties go to the first. None while one is missing."""
        paper, found = self.paper(results), {}
        for one in tuned:
            trials = {} if paper is None else self.tried(one, paper)
            means = {value: results.mean(trial, self.seeds_of("tune")) for value, trial in trials.items()}
            known = {value: mean for value, mean in means.items() if mean is not None}
            if not known or len(known) < len(means):
                return None
            found[one.name] = max(known, key=known.__getitem__)
        return found

    def everywhere(self, results: Results, part: str = "columns") -> float | None:
        """FedSSD's strength with the best mean over all columns, on the paper's data or on digits; ties: the first."""
        paper, values = self.pipeline_on(part, results), self.design.on_columns[part].values
        means = {} if paper is None else {value: self.over_columns(value, paper, results, part) for value in values}
        known = {value: mean for value, mean in means.items() if mean is not None}
        complete = bool(known) and len(known) == len(means)
        best: float | None = max(known, key=known.__getitem__) if complete else self._given_everywhere(results, part)
        return best

    def _given_everywhere(self, results: Results, part: str) -> float | None:
        tables, name = self._given.recipes, self.design.digits.recipe
        if part == "columns":
            tables, name = self._given_with_pipeline(results).defaults, self._data
        given: float | None = tables.get(name, {}).get(self.design.columns.key)
        return given

    def pipeline_on(self, part: str, results: Results) -> Changes | None:
        """What the columns of a part change in their recipes: on digits nothing, these have a recipe of their own."""
        return self.paper(results) if part == "columns" else {}

    def over_columns(
        self, value: float | None, paper: Changes, results: Results, part: str = "columns"
    ) -> float | None:
        """Percent with a value of FedSSD's strength, or of FedAvg, as a mean over all columns; None while one lacks."""
        trials = [self.on_column(column, value, paper, part) for column in COLUMNS]
        found = [results.mean(trial, self.seeds_of(part)) for trial in trials]
        known = [mean for mean in found if mean is not None]
        return fmean(known) if len(known) == len(COLUMNS) else None

    def compositions(self, results: Results) -> dict[str, object]:
        """The best with FedSSD, the same without it, and the best without: each at its best value, the better first."""
        settled = self.settled(results)
        if settled is None:
            return dict(self._given_with_pipeline(results).compositions)
        ends: dict[str, tuple[float, object]] = {}
        for one in self.design.compositions:
            for value in one.values:
                mean = results.mean(self.composed("compose", one, value, settled), self.seeds_of("compose"))
                if mean is None:
                    return dict(self._given_with_pipeline(results).compositions)
                if one.name not in ends or mean > ends[one.name][0]:
                    ends[one.name] = mean, value
        order = sorted(ends, key=lambda name: -ends[name][0])
        with_it, without = (
            next(name for name in order if self.design.composition(name).is_control == control)
            for control in (False, True)
        )
        wanted = {with_it, self.design.without_fedssd(with_it).name, without}
        return {name: ends[name][1] for name in order if name in wanted}

    def settled(self, results: Results) -> Settled | None:
        """What report, compose and best begin with; None while one of the three is not known."""
        paper, strengths, variants = self.paper(results), self.strengths(results), self.variants(results)
        if paper is None or strengths is None or variants is None:
            return None
        return Settled(paper, strengths, variants, self.everywhere(results))

    def choices(self, results: Results) -> Chosen:
        """Everything that follows from the results, as the file that comes with fedssd has it."""
        strengths = self.strengths(results)
        everywhere, on_digits = (self.everywhere(results, part) for part in ON_COLUMNS)
        return Chosen(
            self.paper(results),
            self.survivors(results),
            {} if strengths is None else {self._data: strengths},
            self.compositions(results),
            self.variants(results) or {},
            {} if everywhere is None else {self._data: {self.design.columns.key: everywhere}},
            {} if on_digits is None else {self.design.digits.recipe: {self.design.columns.key: on_digits}},
        )

    @property
    def _data(self) -> str:
        return self._setting(self._column(self.design.base), "tune").data

    @property
    def _given(self) -> Chosen:
        """What was chosen before, as far as the design still has it."""
        return self.chosen.within(self.design, self.candidates())

    def _given_with_pipeline(self, results: Results) -> Chosen:
        """The same if the pipeline is what it was then: what is best with one may not be with another."""
        return self._given if self._given.paper == self.paper(results) else Chosen()
