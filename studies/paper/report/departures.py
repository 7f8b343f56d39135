"""What a departure from the base does: to FedSSD's lead, to each arm; and what the best round adds to the last."""

from __future__ import annotations

from fedssd.reports.markdown import table
from fedssd.reports.statistics import Rival, pair
from studies.paper.report.evidence import Evidence
from studies.paper.report.wording import NOT_RUN, code, counted, interval, rounds_of, spread, verdict
from studies.paper.study.design import OURS, THEIRS, Changes, Choice, label
from studies.paper.study.trial import Trial

UNSTEADY = "‡"  # behind a verdict


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
    shown = [_choice(evidence, choice) for choice in choices if evidence.study.departures("screen", choice)]
    return explained("\n".join(shown))


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
    found = interval(less_the_base(evidence, trial))
    return [code(trial.label), trial.arm, str(trial.recipe.rounds), *values, found, says(evidence, trial)]


def in_short(evidence: Evidence) -> str:
    """Every departure in one row: what it does to FedAvg, and to FedSSD or to the method whose option it is."""
    rows = [row for choice in evidence.study.design.choices for row in _short_rows(evidence, choice)]
    less = "less the base [95 %] (seeds)"
    heads = ("open choice", "departure", f"FedAvg, {less}", "rounds", "arm", f"it, {less}", "rounds")
    return explained(table(heads, [*rows, *_best_rounds(evidence)], left=2))


def _short_rows(evidence: Evidence, choice: Choice) -> list[list[str]]:
    known = known_departures(evidence, choice)
    rows: list[list[str]] = []
    for name in dict.fromkeys(trial.label for trial in evidence.study.departures("screen", choice)):
        trials = known.get(name, {})
        other = next(arm for arm in choice.arms if arm != THEIRS)
        theirs, its = (_said(evidence, trials.get(arm)) for arm in (THEIRS, other))
        theirs = theirs if THEIRS in choice.arms else ["–", "–"]
        rows.append(["" if rows else choice.question, code(name), *theirs, other, *its])
    return rows


def _said(evidence: Evidence, trial: Trial | None) -> list[str]:
    """What a departure does, and after how many rounds."""
    if trial is None or not (found := less_the_base(evidence, trial)).gains:
        return [NOT_RUN, "–"]
    return [f"{counted(found)}: {says(evidence, trial)}", str(trial.recipe.rounds)]


def _best_rounds(evidence: Evidence) -> list[list[str]]:
    """The choice that needs no runs of its own: what the best round adds to the last, which is never less than none."""
    trials = {trial.arm: trial for trial in evidence.study.bases("confirm")}
    gaps = {arm: _best_less_last(evidence, trials[arm]) for arm in (THEIRS, *evidence.leaders)}
    said = {arm: f"+{spread(gap)}: raises it, as it must" for arm, gap in gaps.items() if gap}
    if THEIRS not in said:
        return []
    question, rounds = "The last round is reported, or the best", str(trials[THEIRS].recipe.rounds)
    rows = [["", "`best round`", said[THEIRS], rounds, arm, said[arm], rounds] for arm in said if arm != THEIRS]
    return [[question, *row[1:]] if place == 0 else row for place, row in enumerate(rows)]


def _best_less_last(evidence: Evidence, trial: Trial) -> list[float]:
    last, best = evidence.found(trial, "last"), evidence.found(trial, "best")
    return pair(trial.arm, last, best).gains


def on_digits(evidence: Evidence) -> str:
    """Every departure from the recipe of digits: what it does to FedAvg, to FedSSD, and to FedSSD's lead."""
    theirs, ours = evidence.study.digits_bases()
    if evidence.over_fedavg(ours).half_width is None:
        return f"{NOT_RUN.capitalize()}.\n"
    accuracies = [f"{spread(list(evidence.found(trial).values()))} %" for trial in (theirs, ours)]
    rows = [["", "`base`", *accuracies, interval(evidence.over_fedavg(ours))]]
    for choice in evidence.study.design.digits.choices:
        for place, changes in enumerate(choice.changes):
            trials = [evidence.study.digits_departure(choice.name, arm, changes) for arm in (THEIRS, OURS)]
            said = [_said(evidence, trial)[0] if trial.arm in choice.arms else "–" for trial in trials]
            question = "" if place else choice.question
            rows.append([question, code(label(changes)), *said, interval(evidence.over_fedavg(trials[1]))])
    less = "less the base [95 %] (seeds)"
    heads = ("open choice", "departure", f"FedAvg, {less}", f"FedSSD, {less}", "FedSSD less FedAvg there [95 %]")
    rounds = rounds_of(theirs.recipe.rounds)
    return f"After {rounds}, {theirs.recipe.partition}.\n\n{explained(table(heads, rows, left=2))}"


def says(evidence: Evidence, trial: Trial) -> str:
    """The verdict on a departure; marked where longer runs of the same recipes would give another."""
    worth = evidence.study.design.survives
    said, other = (verdict(less_the_base(one, trial), worth) for one in (evidence, evidence.by_longest))
    return said if said == other else f"{said} {UNSTEADY}"


def explained(shown: str) -> str:
    """With what the mark means below, where there is one."""
    meaning = (
        "with the first rounds of longer runs where there are any, of the base at least, the verdict would be another"
    )
    return f"{shown}\n{UNSTEADY}: {meaning}.\n" if UNSTEADY in shown else shown


def known_departures(evidence: Evidence, choice: Choice) -> dict[str, dict[str, Trial]]:
    """By departure and arm those of which an interval is known: confirmed, else of the profile, else of the screen."""
    study = evidence.study
    pipelines = [_of_profile(evidence, changes) for changes in choice.changes if THEIRS in choice.arms]
    found: dict[str, dict[str, Trial]] = {}
    for name, trial in (
        *((trial.label, trial) for trial in study.departures("screen", choice)),
        *((name, trial) for name, trial in pipelines if trial is not None),
        *((trial.label, trial) for trial in study.departures("confirm", choice)),
    ):
        if less_the_base(evidence, trial).half_width is not None:
            found.setdefault(name, {})[trial.arm] = trial
    return found


def _of_profile(evidence: Evidence, changes: Changes) -> tuple[str, Trial | None]:
    """A departure as one of the profile's pipelines, which FedAvg has run all rounds with, if it is one of them."""
    study = evidence.study
    pipeline = {**study.candidates()[0], **changes}
    there = pipeline in study.candidates() and pipeline != study.candidates()[0]
    return label(changes), study.candidate(pipeline, evidence.home) if there else None


def less_the_base(evidence: Evidence, trial: Trial) -> Rival:
    """A departure less its own arm at the base."""
    study = evidence.study
    base = study.first_pipeline_beside(trial) if trial.part == "profile" else study.base_of(trial)
    return evidence.against(trial, base)


def last_or_best(evidence: Evidence) -> str:
    """The last round against the best one, which no runs of their own are needed for."""
    part = "confirm" if any(map(evidence.found, evidence.study.bases("confirm"))) else "screen"
    bases = {trial.arm: trial for trial in evidence.study.bases(part)}
    rows = []
    for arm, trial in bases.items():
        last, best = evidence.found(trial, "last"), evidence.found(trial, "best")
        leads = [interval(evidence.over_fedavg(trial, which)) for which in ("last", "best")]
        shown = ["–", "–"] if arm == THEIRS else leads
        gaps = _best_less_last(evidence, trial)  # none can be negative, so that an interval would say nothing
        gap = spread(gaps) if gaps else "–"
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
