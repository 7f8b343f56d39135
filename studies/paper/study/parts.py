"""The study part by part: which seeds a part has, what it has to run, and what it waits for.

A part chooses, on the tuning seeds, or reports, on the others, and never both; :class:`Design` sees to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedssd.errors import UserError, perhaps
from studies.paper.paper import EVERYTHING
from studies.paper.study.choices import Choices
from studies.paper.study.chosen import Chosen
from studies.paper.study.design import OURS, PARTS, REPORTING, Changes, label
from studies.paper.study.results import Results
from studies.paper.study.trial import Trial
from studies.paper.study.trials import COLUMNS, Settled


@dataclass(frozen=True)
class Study(Choices):
    """A design on the paper's data, or on digits, with what the caller changes."""

    def with_seeds(self, part: str, seeds: tuple[int, ...]) -> Study:
        """The study on these seeds: those that choose and those that report, in the parts that may have them.

        A part of which none is named, where others are, is refused; what it follows from may be named beside it.
        """
        choosing = tuple(seed for seed in seeds if seed in self.design.choosing)
        others = tuple(seed for seed in seeds if seed not in self.design.choosing)
        own = others if part in REPORTING else [seed for seed in choosing if seed in self.design.chosen_on(part)]
        if part != EVERYTHING and not own:
            self.design.refuse_seeds(part, seeds)
        return replace(self, tuning=choosing or None, reporting=others or None)

    def parts(self, part: str = EVERYTHING) -> tuple[str, ...]:
        """That part, or all; where seeds are named, all that have one of them."""
        if part != EVERYTHING:
            self.design.refuse_part(part)
            return (part,)
        named = self.tuning is not None or self.reporting is not None
        own = {True: self.reporting, False: self.tuning}
        return tuple(one for one in PARTS if not named or (own[one in REPORTING] and self.seeds_of(one)))

    def with_pipeline(self, name: str) -> Study:
        """The study with one of the profile's pipelines, whichever is chosen."""
        for one in self.candidates():
            if label(one) == name:
                return replace(self, pipeline=one)
        known = [label(one) for one in self.candidates()]
        raise UserError(f"the study has no pipeline {name!r}: expected one of {' '.join(known)}{perhaps(name, known)}")

    def trials(self, part: str, results: Results) -> list[Trial]:
        """Everything a part has to run, as far as that can be known: some of it follows from what it finds."""
        self.design.refuse_part(part)
        found: list[Trial] = {
            "screen": self._screen,
            "confirm": self._confirm,
            "profile": self._profile,
            "tune": self._tune,
            "columns": self._columns,
            "report": self._report,
            "compose": self._compose,
            "best": self._best,
            "digits-columns": self._digits_columns,
            "digits-choices": self._digits_choices,
            "digits": self._digits,
        }[part](results)
        return found

    def possible(self, part: str) -> list[Trial]:
        """The trials a part can have, whatever the others find: their names are right, what was found is made up."""
        data = self._setting(self._column(self.design.base), part).data
        made_up = Chosen(
            self.pipeline or self.candidates()[0],
            tuple(label(changes) for choice in self.design.choices for changes in choice.changes),
            {data: {one.key: one.values[0] for one in self.design.grids}},
            {one.name: one.values[0] for one in self.design.compositions},
            {one.name: one.values[0] for one in self.design.variants},
            {data: {self.design.columns.key: self.design.columns.values[-1]}},
        )
        found = replace(self, chosen=made_up)
        if part == "best":  # any composition, with any of its values
            return [replace(trial, part=part) for trial in found.trials("compose", Results([]))]
        return found.trials(part, Results([]))

    def _screen(self, results: Results) -> list[Trial]:
        return [*self.bases("screen"), *(t for c in self.design.choices for t in self.departures("screen", c))]

    def _confirm(self, results: Results) -> list[Trial]:
        survivors = self.survivors(results)
        if survivors is None:
            raise self._needs("confirm", "screen", results)
        return [*self.bases("confirm"), *(trial for trial in self.optional("confirm") if trial.label in survivors)]

    def optional(self, part: str) -> list[Trial]:
        """What a part may run: of the confirmation every departure, whether it survived or not."""
        if part != "confirm":
            return []
        return [trial for choice in self.design.choices for trial in self.departures(part, choice)]

    def _profile(self, results: Results) -> list[Trial]:
        return [self.candidate(changes, column) for changes in self.candidates() for column in COLUMNS]

    def _tune(self, results: Results) -> list[Trial]:
        paper = self._need_paper("tune", results)
        tuned = (*self.design.grids, *self.design.variants)
        return [trial for one in tuned for trial in self.tried(one, paper).values()]

    def _columns(self, results: Results) -> list[Trial]:
        paper = self._need_paper("columns", results)
        return self.on_columns("columns", paper)

    def _report(self, results: Results) -> list[Trial]:
        settled = self._need_settled("report", results)
        names = self.names_reported(settled)
        return [self.reported(column, name, settled) for column in COLUMNS for name in names]

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

    def _digits_columns(self, results: Results) -> list[Trial]:
        return self.on_columns("digits-columns", {})

    def _digits_choices(self, results: Results) -> list[Trial]:
        departures = [trial for choice in self.design.digits.choices for trial in self.digits_departures(choice)]
        return [*self.digits_bases(), *departures]

    def _digits(self, results: Results) -> list[Trial]:
        found = [self.on_digits(column, "fedavg") for column in COLUMNS]
        return found + [
            self.on_digits(column, OURS, m_max=value) for column in COLUMNS for value in self.design.digits.m_max
        ]

    def _need_paper(self, part: str, results: Results) -> Changes:
        found = self.paper(results)
        if found is None:
            raise self._needs(part, "profile", results)
        return found

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
