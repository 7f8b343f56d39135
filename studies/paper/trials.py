"""The trials of the study, each a row: a recipe, the seeds it runs on, and what it is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedssd import Recipe, UserError
from studies.paper.design import (
    BASE,
    BY_LATE_ROUNDS,
    PARTS,
    Changes,
    Choice,
    Composition,
    Design,
    Tuned,
    label,
    load_design,
)
from studies.paper.paper import METHODS, NAMES, OURS, SPLITS, THEIRS, Column, split
from studies.paper.results import Runs


class Settled(NamedTuple):
    """What the parts that choose leave to the others."""

    pipeline: Changes
    strengths: Changes  # method.option to its value
    variants: Mapping[str, Any]  # a variant's name to the value of its strength
    everywhere: float | None = None  # FedSSD's strength that is best over all columns


@dataclass(frozen=True)
class Chosen:
    """What was chosen, as chosen.toml has it."""

    settled: Settled
    survivors: tuple[str, ...]  # departures worth confirming
    compositions: Mapping[str, Any]  # a composition's name to the value of its key; the better first
    on_digits: float  # FedSSD's strength that is best over all columns of digits


@dataclass(frozen=True)
class Trial:
    """One row of the study: a recipe, seed aside, and where it belongs."""

    part: str
    group: str  # the choice, column or composition it belongs to
    label: str  # what differs there
    arm: str
    recipe: Recipe = field(repr=False)
    seeds: tuple[int, ...]  # to run
    read: tuple[int, ...]  # on which it may have been run: a departure may be another trial's recipe
    pipeline: str = ""  # of a part that follows from the profile

    @property
    def recipes(self) -> list[Recipe]:
        """A recipe for each seed."""
        return [self.recipe.replace(seed=seed) for seed in self.seeds]

    def percent(self, runs: Runs, which: str = "") -> dict[int, float]:
        """Percent by seed; of the late rounds where a part chooses between runs, else of the last, as in the paper."""
        return runs.percent(self.recipe, self.read, which or ("late" if self.part in BY_LATE_ROUNDS else "last"))

    def after(self, rounds: int) -> Trial:
        """The same over fewer rounds."""
        recipe = self.recipe.replace(rounds=rounds)
        return Trial(self.part, self.group, self.label, self.arm, recipe, self.seeds, self.read, self.pipeline)


@dataclass(frozen=True)
class Study:
    """A design and what was chosen: what any of its trials would run."""

    chosen: Chosen
    design: Design = field(default_factory=load_design)

    def titles(self) -> dict[str, str]:
        """What tables call methods, variants and columns."""
        variants = {one.name: one.title for one in (*self.design.variants, self.design.columns)}
        return NAMES | variants | {column.recipe: column.title for column in SPLITS}

    def trials(self, part: str) -> list[Trial]:
        """Everything a part has to run."""
        design, chosen = self.design, self.chosen
        settled = chosen.settled
        if part == "screen":
            return [*self.bases(part), *(one for choice in design.choices for one in self.departures(part, choice))]
        if part == "confirm":
            every = [one for choice in design.choices for one in self.departures(part, choice)]
            return [*self.bases(part), *(one for one in every if one.label in chosen.survivors)]
        if part == "profile":
            return [self.candidate(changes, column) for changes in design.candidates for column in SPLITS]
        if part == "tune":
            tuned = (*design.grids, *design.variants)
            return [trial for one in tuned for trial in self.tried(one, settled.pipeline).values()]
        if part in design.on_columns:
            values = (None, *design.on_columns[part].values)
            return [self.on_column(column, value, part) for column in SPLITS for value in values]
        if part == "report":
            return [self.reported(column, name) for column in SPLITS for name in self.reported_names()]
        if part == "compose":
            return [self.composed(part, one, value) for one in design.compositions for value in one.values]
        if part == "best":
            return [self.best(name) for name in chosen.compositions]
        if part == "digits-choices":
            return [
                *self.digits_bases(),
                *(t for choice in design.digits_choices for t in self.departures(part, choice)),
            ]
        if part == "digits":
            values = (None, *design.digits_m_max)
            return [self.on_digits(column, value) for column in SPLITS for value in values]
        raise UserError(f"unknown part {part!r} of the study: expected one of {', '.join(PARTS)}")

    def bases(self, part: str) -> list[Trial]:
        """Every arm at the base."""
        return [self._departure(part, BASE, arm, {}) for arm in self.design.arms]

    def digits_bases(self) -> list[Trial]:
        """FedAvg and FedSSD with the recipe that comes with digits."""
        return [self._departure("digits-choices", BASE, method, {}) for method in (THEIRS, OURS)]

    def departures(self, part: str, choice: Choice) -> list[Trial]:
        """A choice's departures, arm by arm."""
        return [self._departure(part, choice.name, arm, changes) for changes in choice.changes for arm in choice.arms]

    def candidate(self, changes: Changes, column: Column) -> Trial:
        """FedAvg with a pipeline on a column."""
        recipe = column.setting(rounds=self.design.rounds["profile"], method=THEIRS, **changes)
        return self._trial("profile", column.recipe, label(changes), THEIRS, recipe)

    def tried(self, one: Tuned, pipeline: Changes) -> dict[float, Trial]:
        """A grid, by the value of its strength."""
        base = self._base("tune", pipeline)
        return {
            value: self._trial(
                "tune",
                one.name,
                label(one.at(value)),
                one.name,
                base.replace(method=one.method, **one.at(value)),
                pipeline,
            )
            for value in one.values
        }

    def on_column(self, column: Column, value: float | None, part: str = "columns") -> Trial:
        """FedSSD with a value of its strength on a column, or FedAvg where there is none. Digits have no pipeline."""
        own = {} if value is None else self.design.on_columns[part].at(value)
        method = THEIRS if value is None else OURS
        pipeline = self.chosen.settled.pipeline if part == "columns" else {}
        base = self._base(part, pipeline, column) if part == "columns" else self._digits(part, column)
        recipe = base.replace(method=method, **own)
        return self._trial(part, column.recipe, label(own) or method, method, recipe, pipeline)

    def reported_names(self, settled: Settled | None = None) -> tuple[str, ...]:
        """The paper's methods, the variants, and FedSSD again where all columns choose another strength than one."""
        ours, settled = self.design.columns, settled or self.chosen.settled
        again = settled.everywhere not in (None, settled.strengths[ours.key])
        return (*METHODS, *(one.name for one in self.design.variants), *([ours.name] if again else ()))

    def reported(self, column: Column, name: str, settled: Settled | None = None) -> Trial:
        """A method, or a variant, with its tuned strength on a column."""
        settled = settled or self.chosen.settled
        values = {**settled.variants, self.design.columns.name: settled.everywhere}
        own = next((one for one in (*self.design.variants, self.design.columns) if one.name == name), None)
        changes = own.at(values[name]) if own else _of_methods(settled.strengths, (name,))
        recipe = self._base("report", settled.pipeline, column).replace(method=own.method if own else name, **changes)
        return self._trial("report", column.recipe, name, name, recipe, settled.pipeline)

    def composed(self, part: str, one: Composition, value: object) -> Trial:
        """A composition with a value of its key and what all have; the strengths of its halves are the tuned ones."""
        settled = self.chosen.settled
        own = self.design.variant(one.variant).at(settled.variants[one.variant]) if one.variant else {}
        tuned = {**_of_methods(settled.strengths, one.method.split("+")), **own}
        changes = {"method": one.method, "server": one.server, **self.design.composed, **tuned, one.key: value}
        recipe = self._base(part, settled.pipeline).replace(**changes)
        return self._trial(part, one.name, f"{one.key}={value}", one.name, recipe, settled.pipeline)

    def best(self, name: str) -> Trial:
        """A composition that was chosen, as it is reported."""
        return self.composed("best", self.design.composition(name), self.chosen.compositions[name])

    def on_digits(self, column: Column, m_max: float | None) -> Trial:
        """FedSSD, or FedAvg where there is no strength, on digits that are split as a column's data are."""
        own = {} if m_max is None else {self.design.columns.key: m_max}
        method = THEIRS if m_max is None else OURS
        recipe = self._digits("digits", column).replace(method=method, **own)
        return self._trial("digits", column.recipe, label(own) or method, method, recipe)

    def base_of(self, trial: Trial) -> Trial:
        """What a departure departs from, with the same arm; of a pipeline the first on the same column."""
        if trial.part == "profile":
            return self.candidate(self.design.candidates[0], split(trial.group))
        return self._departure(trial.part, BASE, trial.arm, {})

    def fedavg_beside(self, trial: Trial, settled: Settled | None = None) -> Trial:
        """FedAvg where a trial is: with its departure, on its column, or beside a composition as it is reported."""
        if trial.part in ("screen", "confirm", "digits-choices"):
            choices = self.design.digits_choices if trial.part == "digits-choices" else self.design.choices
            for choice in choices:
                for changes in choice.changes if THEIRS in choice.arms else ():
                    if (choice.name, label(changes)) == (trial.group, trial.label):
                        return self._departure(trial.part, choice.name, THEIRS, changes)
            return self._departure(trial.part, BASE, THEIRS, {})
        if trial.part == "digits":
            return self.on_digits(split(trial.group), None)
        if trial.part in self.design.on_columns:
            return self.on_column(split(trial.group), None, trial.part)
        column = split(self.design.base if trial.part == "best" else trial.group)
        return self.reported(column, THEIRS, settled)

    def compared_with(self, trial: Trial) -> list[Trial]:
        """What its row is compared with, for a plan of a few rows."""
        if trial.part == "tune":
            return []
        if trial.part == "compose":
            one = self.design.composition(trial.group)
            if one.is_control:
                return []
            other = self.design.without_fedssd(one.name)
            return [t for value in other.values if (t := self.composed("compose", other, value)).label == trial.label]
        departs = trial.part in ("screen", "confirm", "digits-choices", "profile")
        found = [self.base_of(trial)] if departs else []
        if trial.part == "best":
            found += [self.best(name) for name in self.chosen.compositions]
        if trial.part != "profile":
            found.append(self.fedavg_beside(trial))
        return [other for other in found if other != trial]

    def _departure(self, part: str, group: str, arm: str, changes: Changes) -> Trial:
        if part == "digits-choices":
            recipe = self._digits(part).replace(method=arm, **changes)
        else:
            given = self.design.arms[arm]
            base = split(self.design.base).setting(rounds=self.design.rounds[part], method=given.method)
            recipe = base.replace(**{**given.changes, **changes})
        return self._trial(part, group, label(changes) or BASE, arm, recipe)

    def _base(self, part: str, pipeline: Changes, column: Column | None = None) -> Recipe:
        return (column or split(self.design.base)).setting(rounds=self.design.rounds[part], **pipeline)

    def _digits(self, part: str, column: Column | None = None) -> Recipe:
        """The recipe that comes with digits for a part's rounds, split as a column's data are if one is named."""
        base = Recipe.load("digits", rounds=self.design.rounds[part])
        return base if column is None else base.replace(partition=column.setting().partition)

    def _trial(
        self, part: str, group: str, name: str, arm: str, recipe: Recipe, pipeline: Changes | None = None
    ) -> Trial:
        """With its seeds: more than others where it says whether FedSSD leads."""
        design, own = self.design, self.design.seeds_of(part)
        at_base = part == "confirm" and group == BASE and arm in design.more_arms
        chosen = pipeline == self.chosen.settled.pipeline
        more = at_base or (part == "report" and arm in design.more_reported and chosen)
        read = (*own, *design.more_seeds) if part in ("confirm", "report") else own
        return Trial(part, group, name, arm, recipe, read if more else own, read, label(pipeline or {}))


def _of_methods(strengths: Changes, methods: Iterable[str]) -> Changes:
    wanted = set(methods)
    return {key: value for key, value in strengths.items() if key.partition(".")[0] in wanted}
