"""When FedSSD leads: its gain over FedAvg on the way, on CIFAR-10 and on digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from fedssd.reports import statistics
from fedssd.reports.charts import COLOURS, Curve, global_accuracy, mean_curve, value_scale
from fedssd.reports.drawings import Page, Plot, drawn, seeds
from fedssd.reports.markdown import table
from fedssd.reports.statistics import Rival
from studies.paper.paper import Column
from studies.paper.report import mechanism
from studies.paper.report.evidence import Evidence
from studies.paper.report.lines import until
from studies.paper.report.row_names import strength
from studies.paper.report.tuned import until_reported
from studies.paper.report.wording import NOT_RUN, interval, leads, listed, rounds_of, seeds_of, spread
from studies.paper.study.design import OURS
from studies.paper.study.trial import Trial
from studies.paper.study.trials import COLUMNS

LIKE = ("fedcad", "moon", "fedcurv", "fedssd", "fedntd")  # whose colours the columns' lines have, in their order
ON_DIGITS = "On digits, split as the columns are,"
DASHED = ".c0, .c1 { stroke-dasharray: 6 4 }"  # the columns by classes a client


class Pair(NamedTuple):
    """FedSSD and FedAvg on a column."""

    column: Column
    name: str  # of this FedSSD
    ours: Trial
    theirs: Trial


def on_cifar10(evidence: Evidence) -> str:
    """Both as they are reported, with their tuned strengths."""
    pairs = _pairs_of_cifar10(evidence.reported)
    return f"{until_reported(evidence)}{_table(evidence, pairs)}" if pairs else f"{NOT_RUN.capitalize()}.\n"


def _pairs_of_cifar10(evidence: Evidence) -> list[Pair]:
    settled = evidence.settled
    if settled is None:
        return []
    study, ours = evidence.study, evidence.study.design.columns
    values = {OURS: settled.strengths[ours.key], ours.name: settled.everywhere}
    names = [name for name in study.names_reported(settled) if name in values]
    return [
        _beside_fedavg(evidence, column, values[name], study.reported(column, name, settled))
        for column in COLUMNS
        for name in names
    ]


def on_digits(evidence: Evidence) -> str:
    """FedSSD with each of its strengths."""
    return _table(evidence, _pairs_of_digits(evidence))


def picture(evidence: Evidence) -> str:
    """The gain over FedAvg in every round, a line for each column; empty where nothing was run."""
    cifar10 = _plots(evidence, "CIFAR-10", _pairs_of_cifar10(evidence.reported))
    both = [curve for plot in cifar10 for curve in plot.curves]
    shared = [plot._replace(y=value_scale(both)) for plot in cifar10]  # or noise would look as large as an effect
    plots = [*shared, *_plots(evidence, "Digits", _pairs_of_digits(evidence))]
    if not plots:
        return ""
    names = [column.title for column in COLUMNS]
    title, note = "FedSSD's gain over FedAvg over the rounds, by split", "mean over seeds, by round"
    note += "; both of CIFAR-10 on one scale, of digits each on its own" if len(cifar10) > 1 else ""
    page = Page(title, "FedSSD less FedAvg, points", note, names, [COLOURS[like] for like in LIKE], DASHED)
    return drawn(page, plots)


def _plots(evidence: Evidence, data: str, pairs: Sequence[Pair]) -> list[Plot]:
    """One for each strength, on a scale of its own."""
    found: dict[str, list[tuple[Curve, int]]] = {}
    for pair in pairs:
        by_round = _gains(evidence, pair)
        if by_round:
            curve = replace(mean_curve(pair.column.title, by_round), spread=(0.0,) * len(by_round))
            found.setdefault(f"{data}, {pair.name}", []).append((curve, max(map(len, by_round.values()))))
    return [
        Plot(title, curves, value_scale(curves), seeds(count for _, count in lines))
        for title, lines in found.items()
        if (curves := [curve for curve, _ in lines])
    ]


def _gains(evidence: Evidence, pair: Pair) -> dict[int, list[float]]:
    """By round, seed by seed."""
    both = [{record.summary.seed: record for record in evidence.records(trial)} for trial in (pair.ours, pair.theirs)]
    found: dict[int, list[float]] = {}
    for seed in sorted(both[0].keys() & both[1].keys()):
        ours, theirs = ({one.number: global_accuracy(one) for one in records[seed].rounds} for records in both)
        for number, accuracy in ours.items():
            other = theirs.get(number)
            if accuracy is not None and other is not None:
                found.setdefault(number, []).append(100 * (accuracy - other))
    return found


def said_of_digits(evidence: Evidence, brief: bool = False) -> str:
    """Where and when FedSSD leads most, what is left of that at the end, and unless brief, where else it is apart.

    It is asked of the strength that was chosen on other seeds, if there is one, and else of all that are reported.
    """
    every = {
        (pair.name, pair.column.title): by for pair in _pairs_of_digits(evidence) if (by := _by_round(evidence, pair))
    }
    if not every:
        return ""
    best = evidence.best_on_digits
    found = {} if best is None else {place: by for place, by in every.items() if place[0] == strength(best)}
    opening = f"{_chosen_on_digits(evidence, best)} With it" if best is not None and found else ON_DIGITS
    ends = [] if brief else _ends({place: by[max(by)] for place, by in every.items()})
    return " ".join([f"{opening} {_leads_most(found or every, alone=bool(found))}", *ends])


def _chosen_on_digits(evidence: Evidence, best: float) -> str:
    rounds, recipe = evidence.study.rounds_of("digits-columns"), ", and is in their recipe"
    where = recipe if evidence.beside_the_paper else ""
    level = [f"{value:g}" for value in _not_told_apart_on_digits(evidence, best)]
    doubt = f" (not told apart from {listed(level)})" if level else ""
    is_best = f"{strength(best)} is the best over all columns on the tuning seeds{doubt}"
    return f"{ON_DIGITS} {is_best}, by round {rounds}{where}."


def _not_told_apart_on_digits(evidence: Evidence, best: float) -> list[float]:
    """The other strengths whose mean over all columns may be that of the best."""
    part = "digits-columns"
    means = {v: evidence.mean_of_columns(v, {}, part) for v in evidence.study.design.on_columns[part].values}
    less = {value: statistics.pair("", found, means[best]) for value, found in means.items() if value != best}
    return [value for value, found in less.items() if found.half_width is not None and not found.clear]


def _leads_most(found: Mapping[tuple[str, str], Mapping[int, Rival]], alone: bool) -> str:
    """The largest lead that is told apart; ``alone``: all are of one strength, which has been named."""
    ahead = [
        (fmean(lead.gains), place, after)
        for place, by in found.items()
        for after, lead in by.items()
        if lead.clear and fmean(lead.gains) > 0
    ]
    if not ahead:
        return "FedSSD leads FedAvg on no column after any of the rounds looked at."
    _, most, after = max(ahead, key=lambda one: one[0])
    last, by = max(found[most]), "split and round" if alone else "split, strength and round"
    with_it = " with this strength" if alone else ""
    end = "" if after == last else f", and after {last} it {leads(found[most][last])}"
    return (
        f"FedSSD leads most on {most[1]}{'' if alone else f' with {most[0]}'}: after {rounds_of(after)} it "
        f"{leads(found[most][after])}{end}. That is the largest of {sum(map(len, found.values()))} differences looked "
        f"at{with_it}, by {by}; {len(ahead)} of them are leads told apart from zero."
    )


def _ends(found: Mapping[tuple[str, str], Rival]) -> list[str]:
    """Where FedSSD leads and where it trails after the last round, strength by strength, as far as it is told apart."""
    where: dict[tuple[str, str], list[str]] = {}
    for (name, title), lead in found.items():
        if lead.clear:
            verdict = "leads" if fmean(lead.gains) > 0 else "trails"
            where.setdefault((name, verdict), []).append(f"{title} ({_end(lead)})")
    said = [f"with {name} it {verdict} FedAvg on {listed(places)}" for (name, verdict), places in sorted(where.items())]
    return [f"In the end {'; '.join(said)}."] if said else []


def _end(lead: Rival) -> str:
    """A difference with its interval; where that goes below an accuracy of 0, how many runs broke in its place."""
    half = lead.half_width
    if half is None or fmean(lead.ours) - half >= 0:
        return interval(lead).removesuffix(" *")
    broken = sum(ours < theirs / 2 for ours, theirs in zip(lead.ours, lead.accuracies, strict=True))
    return f"{fmean(lead.gains):+.2f}, {broken} of {len(lead.gains)} runs below half of FedAvg's accuracy"


def _pairs_of_digits(evidence: Evidence) -> list[Pair]:
    study = evidence.study
    return [
        _beside_fedavg(evidence, column, value, study.on_digits(column, OURS, m_max=value))
        for column in COLUMNS
        for value in study.design.digits.m_max
    ]


def _beside_fedavg(evidence: Evidence, column: Column, value: float, ours: Trial) -> Pair:
    return Pair(column, strength(value), ours, evidence.study.fedavg_beside(ours))


def _table(evidence: Evidence, pairs: Sequence[Pair]) -> str:
    """For each column FedAvg's accuracy, and for each FedSSD its gain over it and how much was distilled."""
    rounds = _rounds(evidence, pairs[0])
    rows: list[list[str]] = []
    shown = ""  # the column whose FedAvg stands above
    for pair in pairs:
        found = _by_round(evidence, pair)
        if found and pair.column.title != shown:
            shown = pair.column.title
            theirs = [spread(found[after].accuracies) if after in found else "–" for after in rounds]
            rows.append([f"**{shown}**", "FedAvg %", *theirs])
        if found:
            rows += _rows(evidence, pair, found, rounds)
    if not rows:
        return f"{NOT_RUN.capitalize()}.\n"
    return table(("", "after round", *map(str, rounds)), rows, left=2)


def _rows(evidence: Evidence, pair: Pair, found: Mapping[int, Rival], rounds: Sequence[int]) -> list[list[str]]:
    gains = [interval(found[after]) if after in found else "–" for after in rounds]
    rows = [["", f"{pair.name}, less FedAvg, over {seeds_of(list(found.values()))}", *gains]]
    title, measure = next(iter(mechanism.DISTILLED.items()))
    records = evidence.records(pair.ours)
    if records:
        ends = [mechanism.ends([until(one, after) for one in records], measure) for after in rounds]
        rows.append(["", title, *(spread(values, 2) if values else "–" for values in ends)])
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
