"""Where a lead as large as the published one appears: by method, on the split it is printed for, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence

from fedssd.reports.markdown import table
from fedssd.reports.statistics import Rival, pair
from studies.paper.report.evidence import Evidence
from studies.paper.report.tuned import until_reported
from studies.paper.report.wording import NOT_RUN, code, counted, holds, interval, listed, seeds_of, spread
from studies.paper.study.design import OURS, THEIRS
from studies.paper.study.trial import Trial
from studies.paper.study.trials import Settled

LESS = "less FedAvg [95 %] (seeds)"


def appearance(evidence: Evidence) -> str:
    """Every method less FedAvg on the base's column: whether it may be the published lead, how soon, and elsewhere."""
    shown = evidence.reported
    settled, home, lead = shown.settled, shown.home.title, shown.published(shown.home)
    if settled is None or not shown.has_report:
        return f"{NOT_RUN.capitalize()}.\n"
    others = [one for one in evidence.besides if one is not shown and one.has_report]
    rows = [_fedavg(shown, settled, others), *(_row(shown, name, settled, others) for name in _rivals(shown))]
    heads = ["method", f"{home}, {LESS}", f"{lead or 0:+.2f} in it", "T", f"by the best round, {LESS}"]
    heads += [f"mean of the columns, {LESS}"]
    heads += [f"{home} with {code(other.pipeline)}, {LESS}" for other in others]
    kept = [place for place in range(len(heads)) if place != 2 or lead is not None]
    shown_rows = [[row[place] for place in kept] for row in rows if row[1] != NOT_RUN]
    shown_table = table([heads[place] for place in kept], shown_rows)
    return f"{until_reported(evidence)}{shown_table}{_on_shared_seeds(shown, settled)}"


def who_holds(evidence: Evidence) -> str:
    """Whose interval holds the lead that the paper prints, as a sentence; empty where the paper or we have none."""
    shown = evidence.reported
    settled, lead = shown.settled, shown.published(shown.home)
    if settled is None or lead is None:
        return ""
    leads = {title: _lead(shown, name, settled) for name, title in _rivals(shown).items()}
    found = {title: one for title, one in leads.items() if one.half_width is not None}
    if not found:
        return ""
    held = {title: one for title, one in found.items() if holds(one, lead)}
    each = [f"{title.partition(',')[0]} ({interval(one).removesuffix(' *')})" for title, one in held.items()]
    whose = f"those of {listed(each)}, over {seeds_of(list(held.values()))}" if each else "none"
    return (
        f"Of the intervals of all methods on {shown.home.title}, each at its tuned strength, these hold the paper's "
        f"{lead:+.2f}: {whose}."
    )


def _on_shared_seeds(evidence: Evidence, settled: Settled) -> str:
    """What FedAvg and FedSSD have on the seeds of those methods that have fewer; empty where all have the same."""
    found = {name: evidence.found(evidence.study.reported(evidence.home, name, settled)) for name in evidence.titles}
    theirs, ours = (found.get(name, {}) for name in (THEIRS, OURS))
    shared = set.intersection(*(set(one) for one in found.values() if one))
    if not theirs or not ours or not shared or shared == set(theirs):
        return ""
    lead = pair(THEIRS, *({seed: one[seed] for seed in sorted(shared)} for one in (theirs, ours)))
    return (
        f"\nRows of fewer seeds are compared with FedAvg on these alone: on the seeds that all have FedAvg is at "
        f"{spread(lead.accuracies)}, and FedSSD less it {counted(lead)}.\n"
    )


def _rivals(evidence: Evidence) -> dict[str, str]:
    return {name: title for name, title in evidence.titles.items() if name != THEIRS}


def _fedavg(evidence: Evidence, settled: Settled, others: Sequence[Evidence]) -> list[str]:
    """What all are compared with."""
    trial = evidence.study.reported(evidence.home, THEIRS, settled)
    accuracies = [evidence.found(trial), evidence.found(trial, "best"), evidence.mean_reported(THEIRS, settled)]
    accuracies += [other.found(at_home) for other in others if (at_home := _at_home(other, THEIRS)) is not None]
    home, *others_found = (spread(list(found.values())) for found in accuracies)
    return ["FedAvg itself, %", home, "–", str(evidence.rounds_to_fedavg(trial) or "–"), *others_found]


def _row(evidence: Evidence, name: str, settled: Settled, others: Sequence[Evidence]) -> list[str]:
    found, lead = _lead(evidence, name, settled), evidence.published(evidence.home)
    inside = "yes" if lead is not None and holds(found, lead) else "no"
    at_home = evidence.study.reported(evidence.home, name, settled)
    reached, by_best = evidence.rounds_to_fedavg(at_home), evidence.over_fedavg(at_home, "best")
    everywhere = pair(THEIRS, *(evidence.mean_reported(one, settled) for one in (THEIRS, name)))
    beside = [other.over_fedavg(trial) if (trial := _at_home(other, name)) is not None else None for other in others]
    cells = ["–" if one is None else counted(one) for one in (by_best, everywhere, *beside)]
    return [evidence.titles[name], counted(found), inside, str(reached or "–"), *cells]


def _lead(evidence: Evidence, name: str, settled: Settled) -> Rival:
    return evidence.over_fedavg(evidence.study.reported(evidence.home, name, settled))


def _at_home(evidence: Evidence, name: str) -> Trial | None:
    """A method on the base's column with this pipeline, if it is reported with it."""
    settled = evidence.settled
    if settled is None or name not in evidence.titles:
        return None
    return evidence.study.reported(evidence.home, name, settled)
