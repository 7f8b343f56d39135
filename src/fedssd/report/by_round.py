"""When FedSSD leads: its gain over FedAvg on the way, on CIFAR-10 and on digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from fedssd.experiment.paper import Column
from fedssd.experiment.study.design import OURS
from fedssd.experiment.study.trial import Trial
from fedssd.experiment.study.trials import COLUMNS
from fedssd.report import mechanism
from fedssd.report.evidence import THEIRS, Evidence
from fedssd.report.markdown import table
from fedssd.report.paired import Rival
from fedssd.report.wording import NOT_RUN, interval, leads


class Pair(NamedTuple):
    """FedSSD and FedAvg on a column."""

    column: Column
    ours: Trial
    theirs: Trial


def on_cifar10(evidence: Evidence) -> str:
    """Both as they are reported, with their tuned strengths."""
    settled = evidence.study.settled(evidence.results)
    if settled is None:
        return f"{NOT_RUN.capitalize()}.\n"
    return _table(
        evidence, [Pair(c, *(evidence.study.reported(c, name, settled) for name in (OURS, THEIRS))) for c in COLUMNS]
    )


def on_digits(evidence: Evidence) -> str:
    """Both with the strengths that digits come with."""
    return _table(evidence, _pairs_of_digits(evidence))


def said_of_digits(evidence: Evidence) -> str:
    """A sentence: where and when FedSSD leads most, and what is left of that at the end."""
    pairs = _pairs_of_digits(evidence)
    found = {pair.column.title: by for pair in pairs if (by := _by_round(evidence, pair))}
    if not found:
        return ""
    told = [
        (fmean(lead.gains), title, after) for title, by in found.items() for after, lead in by.items() if lead.clear
    ]
    ahead = [one for one in told if one[0] > 0]
    if not ahead:
        return "On digits FedSSD leads FedAvg on no column after any of the rounds looked at."
    _, most, after = max(ahead, key=lambda one: one[0])
    last = max(found[most])
    end = "" if after == last else f", and after {last} it {leads(found[most][last])}"
    return (
        f"On digits, split as the columns are, FedSSD leads most on {most}: after {after} rounds it "
        f"{leads(found[most][after])}{end}."
    )


def _pairs_of_digits(evidence: Evidence) -> list[Pair]:
    return [Pair(c, *(evidence.study.on_digits(c, name) for name in (OURS, THEIRS))) for c in COLUMNS]


def _table(evidence: Evidence, pairs: Sequence[Pair]) -> str:
    rows: list[list[str]] = []
    rounds = [after for after in evidence.study.design.digits.after if after <= pairs[0].ours.recipe.rounds]
    for pair in pairs:
        found = _by_round(evidence, pair)
        if found:
            rows += _rows(evidence, pair, found, rounds)
    if not rows:
        return f"{NOT_RUN.capitalize()}.\n"
    return table(("", "after round", *map(str, rounds)), rows, left=2)


def _rows(evidence: Evidence, pair: Pair, found: Mapping[int, Rival], rounds: Sequence[int]) -> list[list[str]]:
    """FedAvg's accuracy, FedSSD's gain over it, and how much was distilled."""
    theirs = [f"{fmean(found[after].accuracies):.2f}" if after in found else "–" for after in rounds]
    gains = [interval(found[after]) if after in found else "–" for after in rounds]
    rows = [[f"**{pair.column.title}**", "FedAvg %", *theirs], ["", "FedSSD less FedAvg", *gains]]
    title, measure = next(iter(mechanism.DISTILLED.items()))
    records = evidence.records(pair.ours)
    if records:
        ends = [mechanism.at_the_end([one.until(after) for one in records], measure) for after in rounds]
        rows.append(["", title, *("–" if end is None else f"{end:.2g}" for end in ends)])
    return rows


def _by_round(evidence: Evidence, pair: Pair) -> dict[int, Rival]:
    """The gain after every round that is looked at: the first rounds of a longer run are the shorter run."""
    found = {}
    for after in evidence.study.design.digits.after:
        if after <= pair.ours.recipe.rounds:
            ours, theirs = (replace(t, recipe=replace(t.recipe, rounds=after)) for t in (pair.ours, pair.theirs))
            lead = evidence.against(ours, theirs)
            if lead.gains:
                found[after] = lead
    return found
