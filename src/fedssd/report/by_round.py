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
from fedssd.report.wording import NOT_RUN, interval, leads, listed


class Pair(NamedTuple):
    """FedSSD and FedAvg on a column."""

    column: Column
    name: str  # of this FedSSD
    ours: Trial
    theirs: Trial


def on_cifar10(evidence: Evidence) -> str:
    """Both as they are reported, with their tuned strengths."""
    settled = evidence.study.settled(evidence.results)
    if settled is None:
        return f"{NOT_RUN.capitalize()}.\n"
    both = {
        column.title: [evidence.study.reported(column, name, settled) for name in (OURS, THEIRS)] for column in COLUMNS
    }
    return _table(evidence, [Pair(column, "FedSSD", *both[column.title]) for column in COLUMNS])


def on_digits(evidence: Evidence) -> str:
    """FedSSD with each of its strengths."""
    return _table(evidence, _pairs_of_digits(evidence))


def said_of_digits(evidence: Evidence) -> str:
    """Where and when FedSSD leads most, what is left of that at the end, and where it then trails."""
    found = {
        (pair.name, pair.column.title): by for pair in _pairs_of_digits(evidence) if (by := _by_round(evidence, pair))
    }
    if not found:
        return ""
    ahead = [
        (fmean(lead.gains), place, after)
        for place, by in found.items()
        for after, lead in by.items()
        if lead.clear and fmean(lead.gains) > 0
    ]
    said = "On digits FedSSD leads FedAvg on no column after any of the rounds looked at."
    if ahead:
        _, most, after = max(ahead, key=lambda one: one[0])
        last = max(found[most])
        end = "" if after == last else f", and after {last} it {leads(found[most][last])}"
        said = (
            f"On digits, split as the columns are, FedSSD leads most on {most[1]} with {most[0]}: after {after} rounds "
            f"it {leads(found[most][after])}{end}."
        )
    return " ".join([said, *_ends({place: by[max(by)] for place, by in found.items()})])


def _ends(found: Mapping[tuple[str, str], Rival]) -> list[str]:
    """Where FedSSD leads and where it trails after the last round, as far as that is told apart."""
    told = {place: lead for place, lead in found.items() if lead.clear}
    said = []
    for word, sign in (("leads", 1), ("trails", -1)):
        where = [
            f"{title} with {name} ({interval(lead).removesuffix(' *')})"
            for (name, title), lead in told.items()
            if fmean(lead.gains) * sign > 0
        ]
        said += [f"{word} FedAvg on {listed(where)}"] if where else []
    return [f"In the end it {' and '.join(said)}."] if said else []


def _pairs_of_digits(evidence: Evidence) -> list[Pair]:
    study = evidence.study
    return [
        Pair(column, f"M_max = {value:g}", study.on_digits(column, OURS, m_max=value), study.on_digits(column, THEIRS))
        for column in COLUMNS
        for value in study.design.digits.m_max
    ]


def _table(evidence: Evidence, pairs: Sequence[Pair]) -> str:
    """For each column FedAvg's accuracy, and for each FedSSD its gain over it and how much was distilled."""
    rounds = _rounds(evidence, pairs[0])
    rows: list[list[str]] = []
    shown = ""  # the column whose FedAvg stands above
    for pair in pairs:
        found = _by_round(evidence, pair)
        if found and pair.column.title != shown:
            shown = pair.column.title
            theirs = [f"{fmean(found[after].accuracies):.2f}" if after in found else "–" for after in rounds]
            rows.append([f"**{shown}**", "FedAvg %", *theirs])
        if found:
            rows += _rows(evidence, pair, found, rounds)
    if not rows:
        return f"{NOT_RUN.capitalize()}.\n"
    return table(("", "after round", *map(str, rounds)), rows, left=2)


def _rows(evidence: Evidence, pair: Pair, found: Mapping[int, Rival], rounds: Sequence[int]) -> list[list[str]]:
    gains = [interval(found[after]) if after in found else "–" for after in rounds]
    rows = [["", f"{pair.name}, less FedAvg", *gains]]
    title, measure = next(iter(mechanism.DISTILLED.items()))
    records = evidence.records(pair.ours)
    if records:
        ends = [mechanism.at_the_end([one.until(after) for one in records], measure) for after in rounds]
        rows.append(["", title, *("–" if end is None else f"{end:.2g}" for end in ends)])
    return rows


def _by_round(evidence: Evidence, pair: Pair) -> dict[int, Rival]:
    """The gain after every round that is looked at: the first rounds of a longer run are the shorter run."""
    found = {}
    for after in _rounds(evidence, pair):
        ours, theirs = (replace(t, recipe=replace(t.recipe, rounds=after)) for t in (pair.ours, pair.theirs))
        lead = evidence.against(ours, theirs)
        if lead.gains:
            found[after] = lead
    return found


def _rounds(evidence: Evidence, pair: Pair) -> list[int]:
    """Those that are looked at, and the last."""
    last = pair.ours.recipe.rounds
    return [*(after for after in evidence.study.design.digits.after if after < last), last]
