"""What a departure from the base does: to FedSSD's lead, to each arm; and what the best round adds to the last."""

from __future__ import annotations

from statistics import fmean

from fedssd.experiment.study.design import OURS, THEIRS, Choice
from fedssd.experiment.study.trial import Trial
from fedssd.report.evidence import Evidence
from fedssd.report.markdown import table
from fedssd.report.paired import Rival, pair
from fedssd.report.wording import NOT_RUN, code, interval, rounds_of, spread, verdict


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
    values = [spread(list(evidence.found(one).values())) for one in (trial, evidence.study.base_of(trial))]
    found = less_the_base(evidence, trial)
    says = verdict(found, evidence.study.design.survives)
    return [code(trial.label), trial.arm, str(trial.recipe.rounds), *values, interval(found), says]


def in_short(evidence: Evidence) -> str:
    """Every departure in one row: what it does to FedAvg, and to FedSSD or to the method whose option it is."""
    rows = [row for choice in evidence.study.design.choices for row in _short_rows(evidence, choice)]
    heads = ("open choice", "departure", "rounds", "FedAvg, less the base [95 %]", "arm", "it less its base [95 %]")
    return table(heads, rows, left=2)


def _short_rows(evidence: Evidence, choice: Choice) -> list[list[str]]:
    known = known_departures(evidence, choice)
    rows: list[list[str]] = []
    for label in dict.fromkeys(trial.label for trial in evidence.study.departures("screen", choice)):
        trials = known.get(label, {})
        rounds = sorted({trial.recipe.rounds for trial in trials.values()})
        other = next(arm for arm in choice.arms if arm != THEIRS)
        both = [_said(evidence, trials.get(arm)) for arm in (THEIRS, other)]
        theirs = both[0] if THEIRS in choice.arms else "–"
        question = "" if rows else choice.question
        rows.append([question, code(label), ", ".join(map(str, rounds)) or "–", theirs, other, both[1]])
    return rows


def _said(evidence: Evidence, trial: Trial | None) -> str:
    if trial is None:
        return NOT_RUN
    found = less_the_base(evidence, trial)
    return f"{interval(found)}: {verdict(found, evidence.study.design.survives)}"


def known_departures(evidence: Evidence, choice: Choice) -> dict[str, dict[str, Trial]]:
    """By departure and arm those of which an interval is known; what is confirmed stands in place of the screen."""
    found: dict[str, dict[str, Trial]] = {}
    for part in ("screen", "confirm"):
        for trial in evidence.study.departures(part, choice):
            if less_the_base(evidence, trial).half_width is not None:
                found.setdefault(trial.label, {})[trial.arm] = trial
    return found


def less_the_base(evidence: Evidence, trial: Trial) -> Rival:
    """A departure less its own arm at the base."""
    return evidence.against(trial, evidence.study.base_of(trial))


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
    return f"Over {rounds_of(bases[THEIRS].recipe.rounds)}.\n\n" + table(heads, rows)
