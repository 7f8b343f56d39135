"""The study's answer, as far as there are runs for it: a paragraph that says it with its uncertainty, then the rest."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from statistics import fmean

from fedssd.recipe.resolve import printed_strengths
from fedssd.reports.markdown import table
from fedssd.reports.statistics import Rival
from studies.paper.paper import Column
from studies.paper.report.appearance import who_holds
from studies.paper.report.by_round import said_of_digits
from studies.paper.report.evidence import Best, Evidence
from studies.paper.report.row_names import strength
from studies.paper.report.wording import (
    NOT_RUN,
    clear_of,
    code,
    fedssd_at,
    holds,
    interval,
    leads,
    listed,
    published_lead,
    published_leads,
    rounds_of,
    seeds_of,
    size,
    spread,
    stands,
    stands_on,
    told_apart,
)
from studies.paper.study.design import OURS, THEIRS, label
from studies.paper.study.results import LATE
from studies.paper.study.trials import COLUMNS, Settled

PARTS = (
    "the base over all rounds",
    "every method at its tuned strength",
    "digits by round",
    "the best composition",
)
STAND_IN = "On digits, in the place of CIFAR-10"


def answer(evidence: Evidence) -> str:
    """A first paragraph that answers, FedSSD on every column, and a paragraph each for the rest, as far as was run."""
    base, columns, digits, best = _base(evidence), _on_columns(evidence), said_of_digits(evidence), _best(evidence)
    first = " ".join([_in_short(evidence), base])
    shown = evidence.reported
    second = " ".join([_beside_the_paper(evidence), *_added(shown), *_how_soon(shown), *_why(shown)])
    others = " ".join([who_holds(evidence), _beside_the_others(evidence)])
    paragraphs = [first, columns, second, others, digits, best]
    return _said(evidence, [base, columns, digits, best], paragraphs)


def short_answer(evidence: Evidence) -> str:
    """The same without variants, reasons and other methods."""
    digits = said_of_digits(evidence, brief=True)
    base, columns, best = _base(evidence), _on_columns(evidence, brief=True), _best(evidence)
    first, added = " ".join([_in_short(evidence), base]), " ".join(_added(evidence.reported))
    return _said(evidence, [base, columns, digits, best], [first, columns, added, digits, best])


def _said(evidence: Evidence, parts: list[str], paragraphs: list[str]) -> str:
    """The paragraphs that have something to say, and last which parts have not."""
    on = f"{STAND_IN}. " if evidence.study.small else ""
    if not any(parts):
        return (
            f"{on}**{NOT_RUN.capitalize()}.** Of the parts that report there is nothing here: whether FedSSD leads, "
            "when and by how much these runs do not say.\n"
        )
    rest = [part for part, sentence in zip(PARTS, parts, strict=True) if not sentence]
    missing = f"{NOT_RUN.capitalize()}: {', '.join(rest)}." if rest else ""
    said = [text.strip() for text in (*paragraphs, missing)]
    return on + "\n\n".join(filter(None, said)) + "\n"


def _in_short(evidence: Evidence) -> str:
    """The verdicts alone, where there is one: of FedSSD at the base, tuned, and with one strength for all columns."""
    home, key = evidence.home.title, evidence.study.design.columns.key
    on = "On CIFAR-10, with the paper's CNN and ten clients, " if evidence.beside_the_paper else ""
    paper = evidence.published(evidence.home)
    printed = "" if paper is None else f"; the paper prints {paper:+.2f}"
    base = list(_with_interval(_base_leads(evidence)).items())[:1]
    said = [f"{name} {stands(lead)} FedAvg on {home} ({_plain(lead)}{printed})" for name, lead in base]
    tuned, settled = _with_interval(_tuned_leads(evidence)), evidence.reported.settled
    if tuned and settled is not None:
        own = f"{'At' if base else 'FedSSD at'} {strength(settled.strengths[key])}, tuned on {home},"
        said.append(f"{own}{' it' if base else ''} {stands_on(tuned, len(COLUMNS), sizes=True)}")
        everywhere = _with_interval(_leads_everywhere(evidence.reported, settled))
        if everywhere and settled.everywhere is not None:
            best = f"{strength(settled.everywhere)}{_as_printed(evidence, settled.everywhere)}"
            said.append(f"Best over all columns is {best}, with which it {stands_on(everywhere, len(COLUMNS))}")
    return f"**{on}{'. '.join(said)}.**" if said else ""


def _plain(lead: Rival) -> str:
    return f"{interval(lead).removesuffix(' *')} points"


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
    return f"Over {rounds_of(rounds)} of our base recipe, {listed(said)}.{verdicts}"


def _tuned_leads(evidence: Evidence) -> dict[str, Rival]:
    """FedSSD's lead on every column that was run, with the pipeline that is reported."""
    settled = evidence.reported.settled
    return {} if settled is None else evidence.reported.reported_leads(OURS, settled)


def _on_columns(all_of_it: Evidence, brief: bool = False) -> str:
    """FedSSD less FedAvg on every column: tuned, with one strength for all columns, and unless brief, in other guises.

    Last what the paper prints; empty while nothing is reported.
    """
    evidence = all_of_it.reported
    settled = evidence.settled
    if settled is None or not _tuned_leads(all_of_it):
        return ""
    found = _fedssds(evidence, settled, brief)
    rows = [[name, *_cells(known)] for name, known in found.items()]
    if evidence.beside_the_paper:
        printed = [column.published[OURS].accuracy - column.published[THEIRS].accuracy for column in COLUMNS]
        rows.append(["the paper prints", "–", *(f"{lead:+.2f}" for lead in printed)])
    rounds = evidence.study.reported(evidence.home, OURS, settled).recipe.rounds
    caption = (
        f"FedSSD less FedAvg after {rounds_of(rounds)}, {_with_pipeline(all_of_it)}: points [95 %], paired by seed; "
        "*: the interval leaves out zero."
    )
    return f"{caption}\n\n{table(('FedSSD with', 'seeds', *(column.title for column in COLUMNS)), rows)}"


def _fedssds(evidence: Evidence, settled: Settled, brief: bool) -> dict[str, dict[str, Rival]]:
    """FedSSD in each of its guises that are reported, by what sets it apart: less FedAvg, by column's title."""
    design, study = evidence.study.design, evidence.study
    ours = design.columns
    tuned = settled.strengths[ours.key]
    found = {f"{strength(tuned)}{_as_printed(evidence, tuned)}, tuned on {evidence.home.title}": OURS}
    if ours.name in study.names_reported(settled) and settled.everywhere is not None:
        found[f"{strength(settled.everywhere)}{_as_printed(evidence, settled.everywhere)}, best over all columns"] = (
            ours.name
        )
    if not brief:
        variants = [one for one in design.variants if one.method == OURS]
        found |= {_apart(one.title, settled.variants[one.name]): one.name for one in variants}
    leads = {words: evidence.reported_leads(name, settled) for words, name in found.items()}
    for other in [] if brief else evidence.besides:
        if (own := other.settled) is not None and (known := other.reported_leads(OURS, own)):
            leads[f"{strength(own.strengths[ours.key])}, tuned and run with {code(other.pipeline)}"] = known
    return leads


def _as_printed(evidence: Evidence, value: float) -> str:
    """Behind a strength that is the paper's own, where the paper has figures for these runs."""
    printed = printed_strengths("cifar10", (OURS,))[OURS]["m_max"]
    return " as printed" if evidence.beside_the_paper and value == printed else ""


def _apart(title: str, value: float) -> str:
    """A variant by what sets it apart from FedSSD, and its strength."""
    return f"{strength(value)}, {title.partition(', ')[2] or title}"


def _cells(found: Mapping[str, Rival]) -> list[str]:
    """How many seeds, and the lead on every column."""
    seeds = seeds_of(list(found.values())).rpartition(" ")[0] if found else "–"
    return [seeds, *(interval(found[column.title]) if column.title in found else NOT_RUN for column in COLUMNS)]


def _beside_the_paper(evidence: Evidence) -> str:
    """On which columns the interval of FedSSD's lead holds the one that the paper prints."""
    found = _with_interval(_tuned_leads(evidence))
    printed = {column.title: evidence.reported.published(column) for column in COLUMNS if column.title in found}
    held = {title: holds(found[title], lead) for title, lead in printed.items() if lead is not None}
    return published_leads(held) if held else ""


def _added(evidence: Evidence) -> list[str]:
    """The same on the seeds alone that were added after FedSSD and FedAvg had been looked at on the others."""
    settled = evidence.settled
    found = {} if settled is None else _with_interval(evidence.on_added_seeds(settled))
    if not found:
        return []
    alone = f"On {seeds_of(list(found.values()))} that were added after the others had been looked at"
    return [f"{alone}, and on these alone, the tuned FedSSD {stands_on(found, len(COLUMNS))}."]


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
    found = evidence.sooner(trials[0])
    verdict = "" if found.clear else ", not told apart"
    doubt = f"; seed by seed {interval(found)} rounds{verdict}" if found.half_width is not None else ""
    return [
        f"Where {column.title} the tuned FedSSD first has FedAvg's final accuracy after {ours} rounds, FedAvg itself "
        f"after {theirs} (medians over {ours.seeds} seeds{doubt}{paper})."
    ]


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
        return f"with the pipeline chosen on FedAvg{_but_for(evidence)}"
    return f"with {code(shown.pipeline)} (with the pipeline chosen on FedAvg: {NOT_RUN})"


def _but_for(evidence: Evidence) -> str:
    """What the chosen pipeline has that the base has not."""
    base = evidence.study.bases("confirm")[0].recipe
    other = {key: value for key, value in (evidence.paper or {}).items() if getattr(base, key) != value}
    return f", which is the base recipe{f' but for {code(label(other))}' if other else ''}"


def _leads_everywhere(evidence: Evidence, settled: Settled) -> dict[str, Rival]:
    """With the strength that is best over all columns, where that is another than the first column's."""
    name = evidence.study.design.columns.name
    return evidence.reported_leads(name, settled) if name in evidence.study.names_reported(settled) else {}


def _why(evidence: Evidence) -> list[str]:
    """On which column FedSSD distils least and on which most, and how good the model is there that it distils from.

    That its weights follow the model is said only where they do: both rise from column to column.
    """
    settled = evidence.settled
    if settled is None:
        return []
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


def _best(evidence: Evidence) -> str:
    """What the compositions reach that are reported, first the best with FedSSD, or last that it has not been run."""
    best = evidence.best()
    found = {} if best is None else {trial.arm: list(evidence.found(trial).values()) for trial, _ in best.roles}
    if best is None or not any(found.values()):
        return ""
    roles = {trial.arm: role for trial, role in best.roles}
    if not found[best.ours.arm] and best.control == best.rival:
        roles[best.rival.arm] = "the best without FedSSD"  # the same as what, is not said before it
    said = [f"{name}, {roles[name]}, reaches {spread(values)}" for name, values in found.items() if values]
    printed = evidence.home.published[OURS].accuracy
    paper = f" (the paper's FedSSD: {printed:.2f})" if evidence.beside_the_paper else ""
    less = ""
    for ours, theirs in best.differences:
        gain, part = evidence.against(ours, theirs), "what of it is FedSSD's, " if theirs == best.control else ""
        less += f"; {part}{ours.arm} less {theirs.arm}: {size(gain)}" if gain.gains else ""
    rest = [_unreported(evidence, best, name) for name, values in found.items() if not values]
    return " ".join([f"Of the compositions tried, {listed(said)}{paper}{less}.", *rest])


def _unreported(evidence: Evidence, best: Best, name: str) -> str:
    """That a composition is not reported; of the one with FedSSD what the tuning seeds say FedSSD adds to it."""
    role = next(role for trial, role in best.roles if trial.arm == name)
    said = f"{name}, {role}, is {NOT_RUN} on the reported seeds"
    gain = evidence.fedssd_adds(best.ours)
    if name != best.ours.arm or not gain.gains:
        return f"{said}."
    both = f"less {best.control.arm}, both with {code(best.ours.label)}, by the mean of the last {LATE} rounds"
    return f"{said}; on the tuning seeds, {both}: {size(gain)}."
