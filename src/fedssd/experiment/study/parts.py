"""The study's parts as trials to run, and the choices that follow from their results.

A part chooses, on the tuning seeds, or reports, on the others, and never both; :class:`Design` sees to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import fmean
from typing import Any, NamedTuple

from fedssd.errors import UserError
from fedssd.experiment.cells import Cell
from fedssd.experiment.paper import EVERYTHING, EXPERIMENTS, SMALL_ROUNDS, Column, setting
from fedssd.experiment.recipe import PAPER_METHODS, Recipe, check, merge
from fedssd.experiment.study.chosen import Chosen
from fedssd.experiment.study.design import (
    PARTS,
    REPORTING,
    Changes,
    Choice,
    Composition,
    Design,
    Tuned,
    label,
    load_design,
)
from fedssd.experiment.study.results import Results
from fedssd.experiment.study.trial import Trial
from fedssd.methods.registry import summands

BASE = "base"
COLUMNS = EXPERIMENTS["table2"].columns  # Table 1's CIFAR-10 among them
OF_IMAGES = "augment"  # the one key that means nothing for digits


class Settled(NamedTuple):
    """What the parts that choose leave to the others: the pipeline, and the strengths of methods and variants."""

    paper: Changes
    strengths: Changes  # method.option to its value
    variants: Mapping[str, Any]  # a variant's name to the value of its strength

    def of_methods(self, methods: Iterable[str]) -> Changes:
        """The strengths of these methods."""
        wanted = set(methods)
        return {key: value for key, value in self.strengths.items() if key.partition(".")[0] in wanted}


@dataclass(frozen=True)
class Study:
    """A design on the paper's data, or on digits, with what the caller changes."""

    design: Design = field(default_factory=load_design)
    small: bool = False
    changes: Mapping[str, str] = field(default_factory=dict)  # ``rounds`` and others, in every recipe
    tuning: tuple[int, ...] | None = None  # in place of the design's seeds
    reporting: tuple[int, ...] | None = None
    chosen: Chosen = field(default_factory=Chosen)  # of which what the design has stands where no results say otherwise

    def __post_init__(self) -> None:
        self.design.refuse_seeds("tune", self.tuning or ())
        self.design.refuse_seeds("report", self.reporting or ())
        self.design.refuse_changes(self.changes)
        self.rounds_of(PARTS[0])  # or a change that no recipe can have would be found when a part is planned

    def with_seeds(self, part: str, seeds: tuple[int, ...]) -> Study:
        """The study on these seeds: those that choose and those that report, in the parts that may have them.

        A part of which none is named, where others are, is refused; what it follows from may be named beside it.
        """
        choosing = tuple(seed for seed in seeds if seed in self.design.tuning)
        others = tuple(seed for seed in seeds if seed not in self.design.tuning)
        if part != EVERYTHING and not (others if part in REPORTING else choosing):
            self.design.refuse_seeds(part, seeds)
        return replace(self, tuning=choosing or None, reporting=others or None)

    def parts(self, part: str = EVERYTHING) -> tuple[str, ...]:
        """That part, or all; where seeds are named, all that have one of them."""
        if part != EVERYTHING:
            self.design.refuse_part(part)
            return (part,)
        named = self.tuning is not None or self.reporting is not None
        own = {True: self.reporting, False: self.tuning}
        return tuple(one for one in PARTS if not named or own[one in REPORTING] is not None)

    def seeds_of(self, part: str) -> tuple[int, ...]:
        """On which seeds a part runs."""
        if part in REPORTING:
            return self.reporting or self.design.reporting
        return self.tuning or self.design.tuning

    def rounds_of(self, part: str) -> int:
        """How many rounds its runs have."""
        return self._setting(self._column(self.design.base), part).rounds

    def seeds_for(self, trial: Trial) -> tuple[int, ...]:
        """On which seeds a trial runs: more than its part's where it says whether FedSSD leads."""
        more = trial.part == "confirm" and trial.group == BASE and trial.arm in self.design.more_arms
        return (*self.seeds_of(trial.part), *(self.design.more_seeds if more and not self.reporting else ()))

    def trials(self, part: str, results: Results) -> list[Trial]:
        """Everything a part has to run, as far as that can be known: some of it follows from what it finds."""
        self.design.refuse_part(part)
        found: list[Trial] = {
            "screen": self._screen,
            "confirm": self._confirm,
            "profile": self._profile,
            "tune": self._tune,
            "report": self._report,
            "compose": self._compose,
            "best": self._best,
        }[part](results)
        return found

    def possible(self, part: str) -> list[Trial]:
        """The trials a part can have, whatever the others find: their names are right, what was found is made up."""
        if part == "profile":
            return [self.candidate(changes, column) for changes in self.candidates() for column in COLUMNS]
        data = self._setting(self._column(self.design.base), part).data
        made_up = Chosen(
            self.candidates()[0],
            tuple(label(changes) for choice in self.design.choices for changes in choice.changes),
            {data: {one.key: one.values[0] for one in self.design.grids}},
            {one.name: one.values[0] for one in self.design.compositions},
            {one.name: one.values[0] for one in self.design.variants},
        )
        return replace(self, chosen=made_up).trials(part, Results([]))

    def cells(self, trials: Iterable[Trial]) -> list[Cell]:
        """The runs of these trials, seed by seed."""
        return [trial.cell(seed) for trial in trials for seed in self.seeds_for(trial)]

    @property
    def _given(self) -> Chosen:
        """What was chosen before, as far as the design still has it."""
        return self.chosen.within(self.design, self.candidates())

    # ── screen and confirm ──

    def bases(self, part: str) -> list[Trial]:
        """Every arm at the base."""
        return [self._departure(part, BASE, arm, {}) for arm in self.design.arms]

    def departures(self, part: str, choice: Choice) -> list[Trial]:
        """A choice's departures, arm by arm."""
        wanted = [changes for changes in choice.changes if not (self.small and OF_IMAGES in changes)]
        return [self._departure(part, choice.name, arm, changes) for changes in wanted for arm in choice.arms]

    def base_of(self, trial: Trial) -> Trial:
        """What a departure departs from."""
        return self._departure(trial.part, BASE, trial.arm, {})

    def _departure(self, part: str, group: str, arm: str, changes: Changes) -> Trial:
        given = self.design.arms[arm]
        base = replace(self._setting(self._column(self.design.base), part), method=given.method)
        recipe = merge(base, {**given.changes, **changes}, "study")
        return Trial(part, group, label(changes) or BASE, arm, check(recipe))

    def _screen(self, results: Results) -> list[Trial]:
        return [*self.bases("screen"), *(t for c in self.design.choices for t in self.departures("screen", c))]

    def _confirm(self, results: Results) -> list[Trial]:
        survivors = self.survivors(results)
        if survivors is None:
            raise self._needs("confirm", "screen", results)
        found = [trial for choice in self.design.choices for trial in self.departures("confirm", choice)]
        return [*self.bases("confirm"), *(trial for trial in found if trial.label in survivors)]

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

    # ── profile ──

    def candidates(self) -> list[Changes]:
        """The pipelines that could be the paper's; digits have fewer, as nothing pads them."""
        kept = [
            {key: value for key, value in one.items() if not (self.small and key == OF_IMAGES)}
            for one in self.design.candidates
        ]
        return list({label(one): one for one in kept}.values())

    def candidate(self, changes: Changes, column: Column) -> Trial:
        """FedAvg with a pipeline on a column."""
        recipe = merge(replace(self._setting(column, "profile"), method="fedavg"), changes, "study")
        return Trial("profile", column.recipe, label(changes), "fedavg", check(recipe))

    def _profile(self, results: Results) -> list[Trial]:
        home = self._column(self.design.base)
        first = [self.candidate(changes, home) for changes in self.candidates()]
        others = [column for column in COLUMNS if column.recipe != self.design.base]
        return first + [self.candidate(changes, column) for changes in self.shortlist(results) for column in others]

    def shortlist(self, results: Results) -> list[Changes]:
        """The pipelines closest to the published FedAvg on the base's column; none while one has not been run."""
        home = [self._column(self.design.base)]
        far = {label(one): self.distance(one, home, results) for one in self.candidates()}
        if any(distance is None for distance in far.values()):
            return []
        order = sorted(self.candidates(), key=lambda one: far[label(one)] or 0.0)
        return order[: self.design.shortlist]

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
        """The pipeline whose FedAvg is closest to the published one over all columns; ties go to the first."""
        far = [(self.distance(one, COLUMNS, results), one) for one in self.shortlist(results)]
        known = [(distance, one) for distance, one in far if distance is not None]
        if not known or len(known) < len(far):
            return self._given.paper
        return min(known, key=lambda pair: pair[0])[1]

    # ── tune and report ──

    def tried(self, one: Tuned, paper: Changes) -> dict[float, Trial]:
        """A grid, by the value of its strength."""
        base = self._paper_setting("tune", paper)
        return {
            value: Trial(
                "tune",
                one.name,
                label(one.at(value)),
                one.name,
                check(merge(base, {"method": one.method, **one.at(value)}, "study")),
            )
            for value in one.values
        }

    def _tune(self, results: Results) -> list[Trial]:
        paper = self._need_paper("tune", results)
        tuned = (*self.design.grids, *self.design.variants)
        return [trial for one in tuned for trial in self.tried(one, paper).values()]

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

    def strengths(self, results: Results) -> dict[str, float] | None:
        """The best value of every method of the paper that has a strength, by ``method.option``."""
        found = self._bests(self.design.grids, results)
        if found is not None:
            return {one.key: found[one.name] for one in self.design.grids}
        data = self._setting(self._column(self.design.base), "tune").data
        given = self._given.strengths
        return dict(given[data]) if data in given else None

    def variants(self, results: Results) -> dict[str, float] | None:
        """The best value of every variant, by its name."""
        found = self._bests(self.design.variants, results)
        return found if found is not None else dict(self._given.variants) or None

    def reported(self, column: Column, name: str, settled: Settled) -> Trial:
        """A method, or a variant, with its tuned strength on a column."""
        own = [one for one in self.design.variants if one.name == name]
        changes = own[0].at(settled.variants[name]) if own else settled.of_methods((name,))
        method = own[0].method if own else name
        recipe = merge(self._paper_setting("report", settled.paper, column), {"method": method, **changes}, "study")
        return Trial("report", column.recipe, name, name, check(recipe))

    def _report(self, results: Results) -> list[Trial]:
        settled = self._need_settled("report", results)
        names = (*PAPER_METHODS, *(one.name for one in self.design.variants))
        return [self.reported(column, name, settled) for column in COLUMNS for name in names]

    # ── compose and best ──

    def composed(self, part: str, one: Composition, value: object, settled: Settled) -> Trial:
        """A composition with a value of its key; the other strengths of its halves are the tuned ones."""
        own = self.design.variant(one.variant).at(settled.variants[one.variant]) if one.variant else {}
        tuned = {**settled.of_methods(summands(one.method)), **own}
        changes = {"method": one.method, "server": one.server, **tuned, one.key: value}
        recipe = merge(self._paper_setting(part, settled.paper), changes, "study")
        return Trial(part, one.name, f"{one.key}={value}", one.name, check(recipe))

    def _compose(self, results: Results) -> list[Trial]:
        settled = self._need_settled("compose", results)
        return [
            self.composed("compose", one, value, settled) for one in self.design.compositions for value in one.values
        ]

    def _best(self, results: Results) -> list[Trial]:
        settled = self._need_settled("best", results)
        found = self.compositions(results)
        if not found:
            raise self._needs("best", "compose", results)
        return [self.best(name, value, settled) for name, value in found.items()]

    def best(self, name: str, value: object, settled: Settled) -> Trial:
        """A composition that was chosen, as it is reported."""
        return self.composed("best", self.design.composition(name), value, settled)

    def compositions(self, results: Results) -> dict[str, object]:
        """The best with FedSSD, the same without it, and the best without: each at its best value, the better first."""
        settled = self.settled(results)
        if settled is None:
            return dict(self._given.compositions)
        ends: dict[str, tuple[float, object]] = {}
        for one in self.design.compositions:
            for value in one.values:
                mean = results.mean(self.composed("compose", one, value, settled), self.seeds_of("compose"))
                if mean is None:
                    return dict(self._given.compositions)
                if one.name not in ends or mean > ends[one.name][0]:
                    ends[one.name] = mean, value
        order = sorted(ends, key=lambda name: -ends[name][0])
        with_it, without = (
            next(name for name in order if self.design.composition(name).is_control == control)
            for control in (False, True)
        )
        wanted = {with_it, self.design.without_fedssd(with_it).name, without}
        return {name: ends[name][1] for name in order if name in wanted}

    # ── what all of them share ──

    def choices(self, results: Results) -> Chosen:
        """Everything that follows from the results, as the file that comes with fedssd has it."""
        strengths = self.strengths(results)
        data = self._setting(self._column(self.design.base), "tune").data
        return Chosen(
            self.paper(results),
            self.survivors(results),
            {} if strengths is None else {data: strengths},
            self.compositions(results),
            self.variants(results) or {},
        )

    def _column(self, recipe: str) -> Column:
        return next(column for column in COLUMNS if column.recipe == recipe)

    def _setting(self, column: Column, part: str) -> Recipe:
        rounds = SMALL_ROUNDS if self.small else self.design.rounds[part]
        return _setting(column.recipe, tuple({"rounds": str(rounds), **self.changes}.items()), self.small)

    def _paper_setting(self, part: str, paper: Changes, column: Column | None = None) -> Recipe:
        return merge(self._setting(column or self._column(self.design.base), part), paper, "study")

    def _need_paper(self, part: str, results: Results) -> Changes:
        found = self.paper(results)
        if found is None:
            raise self._needs(part, "profile", results)
        return found

    def settled(self, results: Results) -> Settled | None:
        """What report, compose and best begin with; None while one of the three is not known."""
        paper, strengths, variants = self.paper(results), self.strengths(results), self.variants(results)
        if paper is None or strengths is None or variants is None:
            return None
        return Settled(paper, strengths, variants)

    def _need_settled(self, part: str, results: Results) -> Settled:
        self._need_paper(part, results)
        found = self.settled(results)
        if found is None:
            raise self._needs(part, "tune", results)
        return found

    def _needs(self, part: str, other: str, results: Results) -> UserError:
        cells = self.cells(self.trials(other, results))
        done, count = len(results.found(cells)), len({cell.key for cell in cells})
        seeds = ", ".join(map(str, self.seeds_of(other)))
        return UserError(
            f"part {part!r} of the study follows from part {other!r}, of which {done} of {count} cells are finished "
            f"(seeds {seeds}): run that first, or name where it was run with --reuse, or its seeds too with --seeds"
        )


@cache
def _setting(recipe: str, changes: tuple[tuple[str, str], ...], small: bool) -> Recipe:
    """A column's recipe, read once: hundreds of trials begin with it."""
    column = next(column for column in COLUMNS if column.recipe == recipe)
    return setting(column, dict(changes), small)
