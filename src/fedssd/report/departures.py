"""What a departure from the base does: to FedSSD's lead, to each arm; and what the best round adds to the last."""

from __future__ import annotations

from statistics import fmean

from fedssd.experiment.study.design import OURS, THEIRS, Choice
from fedssd.experiment.study.trial import Trial
from fedssd.report.evidence import Evidence
from fedssd.report.markdown import table
from fedssd.report.paired import pair
from fedssd.report.wording import NOT_RUN, code, interval, spread, verdict


def lead(evidence: Evidence) -> str:
    """FedSSD less FedAvg under each departure: what makes a lead appear or vanish."""
    rows = []
    for part in ("confirm", "screen"):
        bases = {trial.arm: trial for trial in evidence.study.bases(part)}
        rows += [_lead_row(evidence, bases[arm]) for arm in evidence.leaders]
        for choice in evidence.study.design.choices:
            trials = evidence.study.departures(part, choice)
            rows += [_lead_row(evidence, trial) for trial in trials if trial.recipe.method == OURS]
    kept = [row for row in rows if row[2] != NOT_RUN]
    if not kept:
        return f"{NOT_RUN.capitalize()}.\n"
    heads = ("departure", "arm", "FedSSD %", "FedAvg % there", "FedSSD's gain over FedAvg [95 %]", "rounds")
    return table(heads, kept)


def _lead_row(evidence: Evidence, ours: Trial) -> list[str]:
    values = [spread(list(evidence.found(trial).values())) for trial in (ours, evidence.study.fedavg_beside(ours))]
    return [code(ours.label), ours.arm, *values, interval(evidence.over_fedavg(ours)), str(ours.recipe.rounds)]


def choices(evidence: Evidence) -> str:
    """A table for each choice: what each departure does to each arm, on the screen and confirmed."""
    choices = evidence.study.design.choices
    return "\n".join(_choice(evidence, choice) for choice in choices if evidence.study.departures("screen", choice))


def _choice(evidence: Evidence, choice: Choice) -> str:
    heads = ("departure", "arm", "rounds", "accuracy %", "base %", "less the base [95 %]", "says")
    rows = [
        _choice_row(evidence, trial)
        for part in ("screen", "confirm")
        for trial in evidence.study.departures(part, choice)
        if part == "screen" or evidence.found(trial)
    ]
    return f"**{choice.question}** (`--only {choice.name}`)\n\n{table(heads, rows)}"


def _choice_row(evidence: Evidence, trial: Trial) -> list[str]:
    base = evidence.study.base_of(trial)
    values = [spread(list(evidence.found(one).values())) for one in (trial, base)]
    found = evidence.against(trial, base)
    says = verdict(found, evidence.study.design.survives)
    return [code(trial.label), trial.arm, str(trial.recipe.rounds), *values, interval(found), says]


def last_or_best(evidence: Evidence) -> str:
    """The last round against the best one, which no runs of their own are needed for."""
    part = "confirm" if any(map(evidence.found, evidence.study.bases("confirm"))) else "screen"
    bases = {trial.arm: trial for trial in evidence.study.bases(part)}
    rows = []
    for arm, trial in bases.items():
        last, best = evidence.found(trial, "last"), evidence.found(trial, "best")
        leads = [interval(evidence.over_fedavg(trial, which)) for which in ("last", "best")]
        shown = ["–", "–"] if arm == THEIRS else leads
        gaps = pair(arm, last, best).gains  # none can be negative, so that an interval would say nothing
        gap = f"{fmean(gaps):.2f}" if gaps else "–"
        rows.append([arm, spread(list(last.values())), spread(list(best.values())), gap, *shown])
    heads = (
        "arm",
        "last round %",
        "best round %",
        "best less last",
        "gain over FedAvg, last",
        "gain over FedAvg, best",
    )
    return f"Over {bases[THEIRS].recipe.rounds} rounds.\n\n" + table(heads, rows)
