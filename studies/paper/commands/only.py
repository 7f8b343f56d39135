"""``--only`` of the study: the rows that go by all the names that are given, and what these are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fedssd.cli.parser import UsageError
from studies.paper.commands import PROGRAM

if TYPE_CHECKING:
    from studies.paper.study.parts import Study
    from studies.paper.study.results import Results
    from studies.paper.study.trial import Trial


class Chosen(NamedTuple):
    """Of a part what is wanted, and what comes along because rows of it are compared with that."""

    wanted: list[Trial]
    along: list[Trial]

    @property
    def trials(self) -> list[Trial]:
        """All that is run, what others are compared with first."""
        return [*self.along, *self.wanted]


def check(study: Study, part: str, only: Sequence[str]) -> None:
    """Before anything runs: one name is seldom one of every part, and a part may not have it at all."""
    from fedssd.errors import perhaps
    from studies.paper.paper import EVERYTHING
    from studies.paper.study.design import PARTS

    if not only:
        return
    trials = {one: study.possible(one) for one in (PARTS if part == EVERYTHING else (part,))}
    known = _known([trial for found in trials.values() for trial in found])
    for name in only:
        if _having([name], trials, study):
            continue
        if part == EVERYTHING:
            raise UsageError(f"{PROGRAM}: --only {name!r} is in no part of the study{perhaps(name, known)}")
        listed = ", ".join(known)
        raise UsageError(
            f"{PROGRAM}: --only expects one of {listed}, or a label or arm of theirs, got {name!r}"
            f"{perhaps(name, known)}"
        )
    having = _having(only, trials, study)
    if not having:
        where = "the study" if part == EVERYTHING else f"part {part!r}"
        raise UsageError(f"{PROGRAM}: no row of {where} goes by --only {_said(only)} together")
    if part == EVERYTHING:
        found = ", ".join(having)
        raise UsageError(f"{PROGRAM}: --only needs --part beside it; the parts that have {_said(only)}: {found}")


def _having(only: Sequence[str], trials: dict[str, list[Trial]], study: Study) -> list[str]:
    from studies.paper.report.row_names import named

    return [one for one, found in trials.items() if named(only, found, study.design, any_strength=True)]


def _known(trials: Sequence[Trial]) -> list[str]:
    """The groups of these trials, columns as the page calls them."""
    from studies.paper.report.row_names import group_shown

    return list(dict.fromkeys(group_shown(trial.group) for trial in trials))


def _said(only: Sequence[str]) -> str:
    return " and ".join(map(repr, only))


def chosen(study: Study, part: str, results: Results, only: Sequence[str]) -> Chosen:
    """What a part has to run, or of that what goes by these names, and what its rows compare it with."""
    from studies.paper.report.row_names import named

    trials = study.trials(part, results)
    if not only:  # what rows are compared with is of the same part, but for FedAvg beside the best compositions
        return Chosen(trials, [one for one in study.with_compared(trials, trials) if one not in trials])
    if not named(only, trials, study.design):  # a departure that did not survive is confirmed if it is named
        trials += study.optional(part)
    wanted = named(only, trials, study.design)
    if not wanted:
        known = ", ".join(_known(trials))
        raise UsageError(f"{PROGRAM}: --only {_said(only)} is not among what the part has to run: {known}")
    return Chosen(wanted, [one for one in study.with_compared(wanted, trials) if one not in wanted])
