"""The trials a design can have, each a recipe: departures, pipelines, strengths, methods on columns, compositions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from fedssd.methods.registry import summands
from fedssd.recipe import PAPER_METHODS, Recipe, check, load_recipe, merge
from studies.paper.cell import Cell
from studies.paper.paper import EXPERIMENTS, SMALL_ROUNDS, Column, recipe_file, setting
from studies.paper.study.chosen import Chosen
from studies.paper.study.design import (
    OURS,
    PARTS,
    REPORTING,
    THEIRS,
    Changes,
    Choice,
    Composition,
    Design,
    Tuned,
    label,
    load_design,
)
from studies.paper.study.trial import Trial

BASE = "base"
ON_DIGITS = ("digits-choices", "digits")  # what is reported there
COLUMNS = EXPERIMENTS["table2"].columns  # Table 1's CIFAR-10 among them
OF_IMAGES = "augment"  # the one key that means nothing for digits


class Settled(NamedTuple):
    """What the parts that choose leave to the others: the pipeline, and the strengths of methods and variants."""

    paper: Changes
    strengths: Changes  # method.option to its value
    variants: Mapping[str, Any]  # a variant's name to the value of its strength
    everywhere: float | None = None  # FedSSD's strength that is best over all columns; None while that is not known

    def of_methods(self, methods: Iterable[str]) -> Changes:
        """The strengths of these methods."""
        wanted = set(methods)
        return {key: value for key, value in self.strengths.items() if key.partition(".")[0] in wanted}


@dataclass(frozen=True)
class Trials:
    """A design on the paper's data, or on digits, with what the caller changes: what any of its trials would run."""

    design: Design = field(default_factory=load_design)
    small: bool = False
    changes: Mapping[str, str] = field(default_factory=dict)  # ``rounds`` and others, in every recipe
    tuning: tuple[int, ...] | None = None  # in place of the design's seeds; a part has those that it chooses on
    reporting: tuple[int, ...] | None = None
    chosen: Chosen = field(default_factory=Chosen)  # of which what the design has stands where no results say otherwise
    pipeline: Changes | None = None  # in place of the one that is chosen

    def __post_init__(self) -> None:
        on_digits = [seed for seed in self.tuning or () if seed in self.design.digits.tuning]
        self.design.refuse_seeds("digits-columns", tuple(on_digits))
        self.design.refuse_seeds("tune", tuple(seed for seed in self.tuning or () if seed not in on_digits))
        self.design.refuse_seeds("report", self.reporting or ())
        self.design.refuse_changes(self.changes)
        self.rounds_of(PARTS[0])  # or a change that no recipe can have would be found when a part is planned

    def seeds_of(self, part: str) -> tuple[int, ...]:
        """On which seeds a part runs."""
        if part in REPORTING:
            return self.reporting or self.design.reporting
        own = self.design.chosen_on(part)
        return own if self.tuning is None else tuple(seed for seed in self.tuning if seed in own)

    def rounds_of(self, part: str) -> int:
        """How many rounds its runs have."""
        return self._setting(self._column(self.design.base), part).rounds

    def seeds_for(self, trial: Trial) -> tuple[int, ...]:
        """On which seeds a trial runs: more than others where it says whether FedSSD leads."""
        if trial.part in ON_DIGITS and self.reporting is None:
            return self.design.digits.seeds
        at_base = trial.part == "confirm" and trial.group == BASE and trial.arm in self.design.more_arms
        more = at_base or (trial.part == "report" and trial.arm in self.design.more_reported and self.pipeline is None)
        return (*self.seeds_of(trial.part), *(self.design.more_seeds if more and not self.reporting else ()))

    def seeds_read(self, trial: Trial) -> tuple[int, ...]:
        """On which seeds it may have been run: a departure may be another trial's recipe, which has more of them."""
        own = self.seeds_for(trial)
        more = trial.part in ("confirm", "report") and not self.reporting
        return (*own, *(seed for seed in self.design.more_seeds if more and seed not in own))

    def cells(self, trials: Iterable[Trial]) -> list[Cell]:
        """The runs of these trials, seed by seed."""
        return [trial.cell(seed) for trial in trials for seed in self.seeds_for(trial)]

    def bases(self, part: str) -> list[Trial]:
        """Every arm at the base."""
        return [self._departure(part, BASE, arm, {}) for arm in self.design.arms]

    def departures(self, part: str, choice: Choice) -> list[Trial]:
        """A choice's departures, arm by arm."""
        wanted = [changes for changes in choice.changes if not (self.small and OF_IMAGES in changes)]
        return [self._departure(part, choice.name, arm, changes) for changes in wanted for arm in choice.arms]

    def _departure(self, part: str, group: str, arm: str, changes: Changes) -> Trial:
        given = self.design.arms[arm]
        base = replace(self._setting(self._column(self.design.base), part), method=given.method)
        recipe = merge(base, {**given.changes, **changes}, "study")
        return Trial(part, group, label(changes) or BASE, arm, check(recipe))

    def candidates(self) -> list[Changes]:
        """The pipelines that could be the paper's; digits have fewer, as nothing pads them."""
        kept = [self._of_data(one) for one in self.design.candidates]
        return list({label(one): one for one in kept}.values())

    def _of_data(self, pipeline: Changes) -> Changes:
        return {key: value for key, value in pipeline.items() if not (self.small and key == OF_IMAGES)}

    def also(self) -> list[Changes]:
        """The pipelines that are reported beside the chosen one."""
        wanted = [label(self._of_data(one)) for one in self.design.also]
        return [one for one in self.candidates() if label(one) in wanted]

    def candidate(self, changes: Changes, column: Column) -> Trial:
        """FedAvg with a pipeline on a column."""
        recipe = merge(replace(self._setting(column, "profile"), method="fedavg"), changes, "study")
        return Trial("profile", column.recipe, label(changes), "fedavg", check(recipe))

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
                label(paper),
            )
            for value in one.values
        }

    def on_column(self, column: Column, value: float | None, paper: Changes, part: str = "columns") -> Trial:
        """FedSSD with a value of its strength on a column, or FedAvg where there is none. Digits have no pipeline."""
        ours = self.design.on_columns[part]
        own = {} if value is None else ours.at(value)
        method = "fedavg" if value is None else ours.method
        base = self._paper_setting(part, paper, column) if part == "columns" else self._digits_setting(part, column)
        recipe = merge(base, {"method": method, **own}, "study")
        return Trial(part, column.recipe, label(own) or method, method, check(recipe), label(paper))

    def on_columns(self, part: str, paper: Changes) -> list[Trial]:
        """FedAvg and FedSSD with each of its strengths on every column."""
        values = (None, *self.design.on_columns[part].values)
        return [self.on_column(column, value, paper, part) for column in COLUMNS for value in values]

    def names_reported(self, settled: Settled | None) -> tuple[str, ...]:
        """The paper's methods, the variants, and FedSSD again where all columns choose another strength than one."""
        ours = self.design.columns
        again = settled is not None and settled.everywhere not in (None, settled.strengths[ours.key])
        return (*PAPER_METHODS, *(one.name for one in self.design.variants), *([ours.name] if again else ()))

    def reported(self, column: Column, name: str, settled: Settled) -> Trial:
        """A method, or a variant, with its tuned strength on a column."""
        values = {**settled.variants, self.design.columns.name: settled.everywhere}
        own = [one for one in (*self.design.variants, self.design.columns) if one.name == name]
        changes = own[0].at(values[name]) if own else settled.of_methods((name,))
        method = own[0].method if own else name
        recipe = merge(self._paper_setting("report", settled.paper, column), {"method": method, **changes}, "study")
        return Trial("report", column.recipe, name, name, check(recipe), label(settled.paper))

    def composed(self, part: str, one: Composition, value: object, settled: Settled) -> Trial:
        """A composition with a value of its key and what all have; the strengths of its halves are the tuned ones."""
        own = self.design.variant(one.variant).at(settled.variants[one.variant]) if one.variant else {}
        tuned = {**settled.of_methods(summands(one.method)), **own}
        changes = {"method": one.method, "server": one.server, **self.design.composed, **tuned, one.key: value}
        recipe = merge(self._paper_setting(part, settled.paper), changes, "study")
        return Trial(part, one.name, f"{one.key}={value}", one.name, check(recipe), label(settled.paper))

    def best(self, name: str, value: object, settled: Settled) -> Trial:
        """A composition that was chosen, as it is reported."""
        return self.composed("best", self.design.composition(name), value, settled)

    def digits_bases(self) -> list[Trial]:
        """FedAvg and FedSSD with the recipe that comes with digits."""
        return [self.digits_departure(BASE, method, {}) for method in (THEIRS, OURS)]

    def digits_departures(self, choice: Choice) -> list[Trial]:
        """A choice's departures from it, method by method."""
        return [
            self.digits_departure(choice.name, method, changes) for changes in choice.changes for method in choice.arms
        ]

    def digits_departure(self, group: str, method: str, changes: Changes) -> Trial:
        """One of them, on the split that the recipe has."""
        part = "digits-choices"
        recipe = merge(self._digits_setting(part), {"method": method, **changes}, "study")
        return Trial(part, group, label(changes) or BASE, method, check(recipe))

    def on_digits(self, column: Column, method: str, **strength: float) -> Trial:
        """A method on digits that are split as a column's data are."""
        own = {f"{method}.{option}": value for option, value in strength.items()}
        recipe = merge(self._digits_setting("digits", column), {"method": method, **own}, "study")
        return Trial("digits", column.recipe, label(own) or method, method, check(recipe))

    def _column(self, recipe: str) -> Column:
        return next(column for column in COLUMNS if column.recipe == recipe)

    def _setting(self, column: Column, part: str) -> Recipe:
        rounds = SMALL_ROUNDS if self.small else self.design.rounds[part]
        return _setting(column.recipe, tuple({"rounds": str(rounds), **self.changes}.items()), self.small)

    def _digits_setting(self, part: str, column: Column | None = None) -> Recipe:
        """The recipe that comes with digits for a part's rounds, split as a column's data are if one is named."""
        split = {} if column is None else {"partition": self._setting(column, part).partition}
        changes = {**split, "rounds": self.rounds_of(part), **self.changes}
        return merge(load_recipe(recipe_file(self.design.digits.recipe), {}), changes, "study")

    def _paper_setting(self, part: str, paper: Changes, column: Column | None = None) -> Recipe:
        return merge(self._setting(column or self._column(self.design.base), part), paper, "study")


@cache
def _setting(recipe: str, changes: tuple[tuple[str, str], ...], small: bool) -> Recipe:
    """A column's recipe, read once: hundreds of trials begin with it."""
    column = next(column for column in COLUMNS if column.recipe == recipe)
    return setting(column, dict(changes), small)
