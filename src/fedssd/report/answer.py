"""The study's answer, as far as there are runs for it: a paragraph that says it with its uncertainty, then the rest."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

from fedssd.experiment.paper import Column
from fedssd.experiment.profiles import printed_strengths
from fedssd.experiment.study.design import OURS, THEIRS, Tuned
from fedssd.experiment.study.trials import COLUMNS, Settled
from fedssd.report.by_round import said_of_digits
from fedssd.report.evidence import Evidence
from fedssd.report.paired import Rival
from fedssd.report.wording import (
    NOT_RUN,
    clear_of,
    code,
    fedssd_at,
    holds,
    interval,
    leads,
    leads_on,
    listed,
    published_lead,
    published_leads,
    seeds_of,
    size,
    spread,
    stands,
    stands_on,
    told_apart,
)

PARTS = (
    "the base over all rounds",
    "every method at its tuned strength",
    "digits by round",
    "the best composition",
)
STAND_IN = "On digits, in the place of CIFAR-10"


def answer(evidence: Evidence) -> str:
    """A first paragraph that answers, and one each for the rest, every sentence as far as there are runs for it."""
    base, tuned, digits, best = _base(evidence), _tuned(evidence), said_of_digits(evidence), _best(evidence)
    first = " ".join(filter(None, [_in_short(evidence), base, tuned]))
    third = " ".join(filter(None, [digits, _everywhere_on_digits(evidence)]))
    paragraphs = [first, _beside_the_others(evidence), _of_tuned(evidence), third, best]
    return _said(evidence, [base, tuned, digits, best], paragraphs)


def short_answer(evidence: Evidence) -> str:
    """One paragraph: the same without what is level, without variants, and without a reason."""
    digits = said_of_digits(evidence, brief=True)
    base, report, best = _base(evidence), _short_report(evidence), _best(evidence)
    others, over_digits = _beside_the_others(evidence), _everywhere_on_digits(evidence)
    said = [_in_short(evidence), base, report, others, digits, over_digits, best]
    return _said(evidence, [base, report, digits, best], [" ".join(filter(None, said))])


def _said(evidence: Evidence, parts: list[str], paragraphs: list[str]) -> str:
    """The paragraphs that have something to say, and last which parts have not."""
    on = f"{STAND_IN}. " if evidence.study.small else ""
    if not any(parts):
        return (
            f"{on}**{NOT_RUN.capitalize()}.** The design is fixed and the runs are not made: whether FedSSD leads, "
            "when and by how much is not known here yet.\n"
        )
    rest = [part for part, sentence in zip(PARTS, parts, strict=True) if not sentence]
    missing = f" {NOT_RUN.capitalize()}: {', '.join(rest)}." if rest else ""
    return on + "\n\n".join(filter(None, paragraphs)) + missing + "\n"


def _in_short(evidence: Evidence) -> str:
    """The verdicts alone, where there is one: of FedSSD at the base, tuned, and with one strength for all columns."""
    base = list(_with_interval(_base_leads(evidence)).items())[:1]
    said = [f"{name} {stands(lead)} FedAvg on {evidence.home.title}" for name, lead in base]
    tuned, settled = _with_interval(_tuned_leads(evidence)), evidence.reported.settled
    if tuned and settled is not None:
        said.append(f"FedSSD tuned on {evidence.home.title} {stands_on(tuned, len(COLUMNS))}")
        everywhere = _with_interval(_leads_everywhere(evidence.reported, settled))
        said += (
            [f"with the strength best over all columns it {stands_on(everywhere, len(COLUMNS))}"] if everywhere else []
        )
    return f"**{'; '.join(said)}.**" if said else ""


def _with_interval(found: dict[str, Rival]) -> dict[str, Rival]:
    return {name: lead for name, lead in found.items() if lead.half_width is not None}


def _base_leads(evidence: Evidence) -> dict[str, Rival]:
    """The leads of FedSSD at the base as far as they were run, the arm that is FedSSD itself first."""
    bases = {trial.arm: trial for trial in evidence.study.bases("confirm")}
    printed = printed_strengths("cifar10", (OURS,))[OURS]
    found = {
        fedssd_at(bases[arm].cell(0).recipe.options[OURS], printed): evidence.over_fedavg(bases[arm])
        for arm in evidence.leaders
    }
    return {name: lead for name, lead in found.items() if lead.gains}


def _base(evidence: Evidence) -> str:
    found = _base_leads(evidence)
    if not found:
        return ""
    said = [f"{name} {leads(lead)}" for name, lead in found.items()]
    paper = evidence.published(evidence.home)
    held = {name: holds(lead, paper or 0.0) for name, lead in found.items() if lead.half_width is not None}
    verdicts = f" {published_lead(paper, held)}" if paper is not None and held else ""
    rounds = evidence.study.bases("confirm")[0].recipe.rounds
    return f"Over {rounds} rounds of our base recipe, {listed(said)}.{verdicts}"


def _tuned_leads(evidence: Evidence) -> dict[str, Rival]:
    """FedSSD's lead on every column that was run, with the pipeline that is reported."""
    settled = evidence.reported.settled
    return {} if settled is None else evidence.reported.reported_leads(OURS, settled)


def _tuned(evidence: Evidence) -> str:
    found = _tuned_leads(evidence)
    if not found:
        return ""
    said = [f"{_with_pipeline(evidence)}, FedSSD {leads_on(found)}."]
    printed = {column.title: evidence.reported.published(column) for column in COLUMNS if column.title in found}
    known = {title: lead for title, lead in printed.items() if lead is not None and found[title].half_width is not None}
    if known:
        said.append(published_leads(known, {title: holds(found[title], lead) for title, lead in known.items()}))
    return " ".join([*said, *_how_soon(evidence.reported)])


def _how_soon(evidence: Evidence) -> list[str]:
    """After how many rounds FedSSD has FedAvg's final accuracy, and FedAvg itself: the null it is compared with."""
    settled, column = evidence.settled, evidence.home
    if settled is None:
        return []
    trials = [evidence.study.reported(column, name, settled) for name in (OURS, THEIRS)]
    ours, theirs = (evidence.rounds_to_fedavg(trial) for trial in trials)
    if ours is None or theirs is None:
        return []
    printed = [column.published[name].rounds for name in (OURS, THEIRS)]
    paper = f"; the paper prints {printed[0]} and {printed[1]}" if evidence.beside_the_paper and all(printed) else ""
    return [
        f"Where {column.title} it first has FedAvg's final accuracy after {ours} rounds, FedAvg itself after {theirs} "
        f"(medians over seeds{paper})."
    ]


def _of_tuned(all_of_it: Evidence) -> str:
    """With another strength, as a variant, with another pipeline; and why."""
    evidence = all_of_it.reported
    settled = evidence.settled
    if settled is None or not _tuned_leads(all_of_it):
        return ""
    said = [_everywhere(evidence, settled)]
    said += [_variant(evidence, one, settled) for one in evidence.better(settled)]
    said += [_beside(other) for other in evidence.besides]
    return " ".join([*filter(None, said), *_why(evidence, settled)])


def _beside_the_others(all_of_it: Evidence) -> str:
    """Which methods are told apart from FedSSD, of those that are not FedSSD in another guise."""
    evidence, design = all_of_it.reported, all_of_it.study.design
    settled = evidence.settled
    if settled is None:
        return ""
    guises = (THEIRS, OURS, design.columns.name, *(one.name for one in design.variants if one.method == OURS))
    others = {name: title.partition(",")[0] for name, title in evidence.titles.items() if name not in guises}
    found: dict[str, dict[str, Rival]] = {}
    for column in COLUMNS:
        rivals = {title: evidence.over_fedssd(name, column, settled) for name, title in others.items()}
        if known := {title: rival for title, rival in rivals.items() if rival.half_width is not None}:
            found[column.title] = known
    every = [rival for rivals in found.values() for rival in rivals.values()]
    if not every:
        return ""
    return (
        f"Of the other methods, each with its own strength tuned on {evidence.home.title}, these are told apart from "
        f"FedSSD over {seeds_of(every)} ({clear_of(every)}): {told_apart(found)}."
    )


def _with_pipeline(evidence: Evidence) -> str:
    shown = evidence.reported
    if shown is evidence:
        return "With the pipeline chosen on FedAvg and a tuned strength"
    return f"With {code(shown.pipeline)} and a tuned strength (with the pipeline chosen on FedAvg: {NOT_RUN})"


def _beside(other: Evidence) -> str:
    """The same with another pipeline, in brief."""
    settled = other.settled
    found = {} if settled is None else other.reported_leads(OURS, settled)
    if not found:
        return ""
    return f"With {code(other.pipeline)} in place of that pipeline, FedSSD {leads_on(found, brief=True)}."


def _short_report(all_of_it: Evidence) -> str:
    evidence, found = all_of_it.reported, _tuned_leads(all_of_it)
    settled = evidence.settled
    if settled is None or not found:
        return ""
    ours = [fmean(lead.gains) for lead in found.values()]
    printed = [evidence.published(column) for column in COLUMNS if column.title in found]
    known = [lead for lead in printed if lead is not None]
    paper = f", where the paper prints {min(known):+.2f} to {max(known):+.2f}" if known else ""
    said = f"{_with_pipeline(all_of_it)}, FedSSD {leads_on(found, brief=True)}"
    size = f"mean gains of {min(ours):+.2f} to {max(ours):+.2f} points over {seeds_of(list(found.values()))}{paper}"
    return " ".join([f"{said}: {size}.", *filter(None, [_everywhere(evidence, settled)])])


def _leads_everywhere(evidence: Evidence, settled: Settled) -> dict[str, Rival]:
    """With the strength that is best over all columns, where that is another than the first column's."""
    name = evidence.study.design.columns.name
    return evidence.reported_leads(name, settled) if name in evidence.study.names_reported(settled) else {}


def _everywhere(evidence: Evidence, settled: Settled) -> str:
    ours = evidence.study.design.columns
    if ours.name not in evidence.study.names_reported(settled):
        return ""
    found = _leads_everywhere(evidence, settled)
    said = f", FedSSD {leads_on(found, brief=True)}" if found else f": {NOT_RUN}"
    tuned, best = settled.strengths[ours.key], settled.everywhere
    printed = evidence.beside_the_paper and best == printed_strengths("cifar10", (OURS,))[OURS]["m_max"]
    which = "which the paper prints and which is the best over all columns" if printed else "the best over all columns"
    return f"M_max = {tuned:g} was tuned on {evidence.home.title}; with {best:g}, {which}{said}."


def _everywhere_on_digits(evidence: Evidence) -> str:
    """The strength that is best over all columns of digits, which is their recipe's unless recipes are changed."""
    best = evidence.study.everywhere(evidence.results, "digits-columns")
    if best is None:
        return ""
    rounds = evidence.study.rounds_of("digits-columns")
    recipe = ", and is in their recipe" if evidence.beside_the_paper else ""
    said = f"Over all columns of digits M_max = {best:g} is the best on the tuning seeds"
    return f"{said}, after {rounds} rounds{recipe}."


def _why(evidence: Evidence, settled: Settled) -> list[str]:
    """On which column FedSSD distils least and on which most, and how good the model is there that it distils from.

    That its weights follow the model is said only where they do: both rise from column to column.
    """
    found = [(weight, _right(evidence, column, settled), column) for column, weight in evidence.distilled(settled)]
    order = sorted(found, key=lambda one: one[0])
    if len(found) < 2 or order[0][0] == order[-1][0]:
        return []
    rights = [right for _, right, _ in order]
    follow = all(low < high for low, high in pairwise(rights))
    opening = "FedSSD's weights follow how often the global model is right: in" if follow else "In"
    least, most = (
        f"on {column.title} ({weight:.2g} % of M_max, the global model right in {right:.0f} %)"
        for weight, right, column in (order[0], order[-1])
    )
    return [f"{opening} the last round FedSSD distils least {least} and most {most}."]


def _right(evidence: Evidence, column: Column, settled: Settled) -> float:
    return fmean(evidence.found(evidence.study.reported(column, OURS, settled)).values())


def _variant(evidence: Evidence, one: Tuned, settled: Settled) -> str:
    found, gain = evidence.reported_leads(one.name, settled), evidence.ahead(one, settled)
    place = "ahead of FedSSD" if gain.clear else "not told apart from FedSSD"
    said = leads_on(found, brief=True) if found else f"is not reported: {NOT_RUN}"
    return f"{one.title}, {place} on the tuning seeds ({interval(gain)}), {said}."


def _best(evidence: Evidence) -> str:
    best = evidence.best()
    found = [] if best is None else [(t.arm, role, list(evidence.found(t).values())) for t, role in best.roles]
    if best is None or not any(values for *_, values in found):
        return ""
    said = [
        f"{name}, {role}, {f'reaches {spread(values)}' if values else f'is {NOT_RUN}'}" for name, role, values in found
    ]
    printed = evidence.home.published[OURS].accuracy
    paper = f" (the paper's FedSSD: {printed:.2f})" if evidence.beside_the_paper else ""
    less = ""
    for ours, theirs in best.differences:
        gain, part = evidence.against(ours, theirs), "what of it is FedSSD's, " if theirs == best.control else ""
        less += f"; {part}{ours.arm} less {theirs.arm}: {size(gain)}" if gain.gains else ""
    return f"Of the compositions tried, {listed(said)}{paper}{less}."
