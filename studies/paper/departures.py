"""What a departure from the base does: to FedSSD's gain, to each arm; and what the best round adds to the last."""

from __future__ import annotations

from studies.paper.design import Changes, Choice, label
from studies.paper.evidence import Evidence
from studies.paper.formats import NOT_RUN, code, counted, interval, paired, spread, table
from studies.paper.paper import OURS, THEIRS
from studies.paper.trials import Trial


def lead(of: Evidence) -> str:
    """FedSSD less FedAvg under each departure: what makes a gain appear or vanish."""
    leaders = [arm for arm in of.study.design.more_arms if of.study.design.arms[arm].method == OURS]
    rows = []
    for part in ("confirm", "screen"):
        trials = [one for one in of.study.bases(part) if one.arm in leaders]
        for choice in of.study.design.choices:
            trials += [one for one in of.study.departures(part, choice) if one.recipe.method == OURS]
        for one in trials:
            if of.found(one):
                both = of.cell(one), of.cell(of.study.fedavg_beside(one))
                rows.append([code(one.label), one.arm, *both, interval(of.gain(one)), str(one.recipe.rounds)])
    heads = ("departure", "arm", "FedSSD %", "FedAvg % there", "FedSSD's gain over FedAvg [95 %]", "rounds")
    return table(heads, rows)


def choices(of: Evidence) -> str:
    """A table for each choice: what each departure does to each arm, on the screen and confirmed."""
    parts = []
    for choice in of.study.design.choices:
        trials = [one for part in ("screen", "confirm") for one in of.study.departures(part, choice)]
        rows = [
            [code(one.label), one.arm, str(one.recipe.rounds), of.cell(one), of.cell(base), interval(less)]
            for one in trials
            if one.part == "screen" or of.found(one)
            for base in [of.study.base_of(one)]
            for less in [of.less(one, base)]
        ]
        heads = ("departure", "arm", "rounds", "accuracy %", "base %", "less the base [95 %]")
        parts.append(f"**{choice.question}** (`--only {choice.name}`)\n\n{table(heads, rows)}")
    return "\n".join(parts)


def choices_in_short(of: Evidence) -> str:
    """Every departure in one row: what it does to FedAvg, and to FedSSD or to the method whose option it is."""
    rows: list[list[str]] = []
    for choice in of.study.design.choices:
        other = next(arm for arm in choice.arms if arm != THEIRS)
        for place, changes in enumerate(choice.changes):
            theirs = _known(of, choice, changes, THEIRS) if THEIRS in choice.arms else ["–", "–"]
            question = "" if place else choice.question
            rows.append([question, code(label(changes)), *theirs, other, *_known(of, choice, changes, other)])
    less = "less the base [95 %] (seeds)"
    heads = ("open choice", "departure", f"FedAvg, {less}", "rounds", "arm", f"it, {less}", "rounds")
    return table(heads, [*rows, *_best_rounds(of)], left=2)


def _known(of: Evidence, choice: Choice, changes: Changes, arm: str) -> list[str]:
    """What a departure does, and after how many rounds: confirmed, else of the profile, else of the screen."""
    trials = [one for part in ("confirm", "screen") for one in of.study.departures(part, choice)]
    trials = [one for one in trials if (one.label, one.arm) == (label(changes), arm)]
    first = of.study.design.candidates[0]
    if arm == THEIRS and {**first, **changes} in of.study.design.candidates[1:]:
        trials.insert(1, of.study.candidate({**first, **changes}, of.home))
    for one in trials:
        less = of.less(one, of.study.base_of(one))
        if less.low is not None:
            return [counted(less), str(one.recipe.rounds)]
    return [NOT_RUN, "–"]


def _best_rounds(of: Evidence) -> list[list[str]]:
    """The choice that needs no runs of its own: what the best round adds to the last, which is never negative."""
    bases = {one.arm: one for one in of.study.bases("confirm")}
    leaders = [arm for arm in of.study.design.more_arms if of.study.design.arms[arm].method == OURS]
    gaps = {arm: _best_less_last(of, bases[arm]) for arm in (THEIRS, *leaders)}
    rounds, theirs = str(bases[THEIRS].recipe.rounds), f"+{spread(gaps[THEIRS])}"
    rows = [["", "`best round`", theirs, rounds, arm, f"+{spread(gaps[arm])}", rounds] for arm in leaders]
    rows[0][0] = "The last round is reported, or the best"
    return rows


def _best_less_last(of: Evidence, trial: Trial) -> list[float]:
    return list(paired(of.found(trial, "last"), of.found(trial, "best")).values)


def last_or_best(of: Evidence) -> str:
    """The last round against the best one, which no runs of their own are needed for."""
    rows, bases = [], of.study.bases("confirm")
    for one in bases:
        gains = ["–", "–"] if one.arm == THEIRS else [interval(of.gain(one, which)) for which in ("last", "best")]
        gap = spread(_best_less_last(of, one))  # none is negative, so that an interval would say nothing
        rows.append([one.arm, of.cell(one, "last"), of.cell(one, "best"), gap, *gains])
    heads = ("arm", "last round %", "best round %", "best less last")
    gain = [f"gain over FedAvg, {which}" for which in ("last", "best")]
    return f"Over {bases[0].recipe.rounds} rounds.\n\n{table((*heads, *gain), rows)}"


def digits_choices(of: Evidence) -> str:
    """Every departure from the recipe of digits: what it does to FedAvg, to FedSSD, and to FedSSD's gain."""
    theirs, ours = of.study.digits_bases()
    rows = [["", "`base`", *(f"{of.cell(one)} %" for one in (theirs, ours)), interval(of.gain(ours))]]
    for choice in of.study.design.digits_choices:
        trials = {(one.label, one.arm): one for one in of.study.departures("digits-choices", choice)}
        for place, changes in enumerate(choice.changes):
            own = [trials.get((label(changes), arm)) for arm in (THEIRS, OURS)]
            less = ["–" if one is None else counted(of.less(one, of.study.base_of(one))) for one in own]
            gain = interval(of.gain(trials[label(changes), OURS]))
            rows.append(["" if place else choice.question, code(label(changes)), *less, gain])
    less_base = "less the base [95 %] (seeds)"
    heads = (
        "open choice",
        "departure",
        f"FedAvg, {less_base}",
        f"FedSSD, {less_base}",
        "FedSSD less FedAvg there [95 %]",
    )
    return table(heads, rows, left=2)
