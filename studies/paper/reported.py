"""How methods and compositions end on seeds nothing was chosen on, what was run, and the leaderboard."""

from __future__ import annotations

from studies.paper.design import PARTS, label
from studies.paper.evidence import Evidence, flagged, over_late_rounds
from studies.paper.formats import NOT_RUN, By, chosen_mark, code, counted, holds, interval, paired, spread, table
from studies.paper.paper import NAMES, OURS, SPLITS, THEIRS, Column
from studies.paper.strengths import tuning
from studies.paper.trials import Settled


def appearance(of: Evidence) -> str:
    """Every method less FedAvg on the base's column: whether it may be the published gain, how soon, elsewhere."""
    printed = of.home.published[OURS].accuracy - of.home.published[THEIRS].accuracy
    base = of.study.reported(of.home, THEIRS)
    everywhere = {name: _reported_mean(of, name) for name in of.study.reported_names()}
    beside = [of.cell(of.study.reported(of.home, THEIRS, one)) for one in of.besides]
    head = [of.cell(base), "–", of.reached(base), of.cell(base, "best"), spread(list(everywhere[THEIRS].values()))]
    rows = [["FedAvg itself, %", *head, *beside]]
    for name in of.study.reported_names()[1:]:
        trial = of.study.reported(of.home, name)
        gain, best = of.gain(trial), counted(of.gain(trial, "best"))
        inside = "yes" if holds(gain, printed) else "no"
        mean = counted(paired(everywhere[THEIRS], everywhere[name]))
        beside = [_beside(of, name, one) for one in of.besides]
        if gain.n:
            rows.append([of.titles[name], counted(gain), inside, of.reached(trial), best, mean, *beside])
    less, home = "less FedAvg [95 %] (seeds)", of.home.title
    heads = ["method", f"{home}, {less}", f"{printed:+.2f} in it", "T", f"by the best round, {less}"]
    heads += [
        f"mean of the columns, {less}",
        *(f"{home} with {code(label(one.pipeline))}, {less}" for one in of.besides),
    ]
    return table(heads, rows) + _on_shared_seeds(of)


def _beside(of: Evidence, name: str, settled: Settled) -> str:
    if name not in of.study.reported_names(settled):
        return "–"
    return counted(of.gain(of.study.reported(of.home, name, settled), settled=settled))


def _reported_mean(of: Evidence, name: str) -> By:
    return of.mean_of([of.study.reported(column, name) for column in SPLITS])


def _on_shared_seeds(of: Evidence) -> str:
    """What FedAvg and FedSSD have on the seeds of those methods that have fewer."""
    found = {name: of.found(of.study.reported(of.home, name)) for name in of.study.reported_names()}
    shared = sorted(set.intersection(*(set(one) for one in found.values() if one)))
    theirs, ours = ({seed: found[name][seed] for seed in shared} for name in (THEIRS, OURS))
    return (
        f"\nRows of fewer seeds are compared with FedAvg on these alone: on the seeds that all have FedAvg is at "
        f"{spread(list(theirs.values()))}, and FedSSD less it {counted(paired(theirs, ours))}.\n"
    )


def report(of: Evidence, settled: Settled | None = None) -> str:
    """Every method with its tuned strength on every column, on seeds nothing was chosen on."""
    own = "" if settled is None else f" --pipeline {label(settled.pipeline)}"
    parts = []
    for column in SPLITS:
        rows = [_report_row(of, column, name, settled) for name in of.study.reported_names(settled)]
        heads = ("method", "ours %", "gain over FedAvg [95 %]", "over FedSSD [95 %]", "T")
        shown = flagged(table((*heads, "paper %", "paper's gain", "paper's T"), rows))
        parts.append(f"**{column.title}** (`--part report --only {column.recipe}{own}`)\n\n{shown}")
    return "\n".join(parts)


def _report_row(of: Evidence, column: Column, name: str, settled: Settled | None) -> list[str]:
    trial, ours = (of.study.reported(column, one, settled) for one in (name, OURS))
    found = of.cell(trial) + (of.flag(column, trial) if name == THEIRS else "")
    gain = "–" if name == THEIRS else interval(of.gain(trial, settled=settled))
    less = "–" if name in (THEIRS, OURS) else interval(of.less(trial, ours))
    printed, row = column.published.get(name), [of.titles[name], found, gain, less, of.reached(trial, settled)]
    if printed is None:
        return [*row, "–", "–", "–"]
    theirs = f"{printed.accuracy:.2f}" + ("" if printed.spread is None else f" ± {printed.spread:.2f}")
    lead = "–" if name == THEIRS else f"{printed.accuracy - column.published[THEIRS].accuracy:+.2f}"
    return [*row, theirs, lead, str(printed.rounds or "–")]


def report_beside(of: Evidence) -> str:
    """The same with every pipeline that is reported beside the chosen one."""
    return "\n".join(f"With {code(label(one.pipeline))}:\n\n{tuning(of, one)}\n{report(of, one)}" for one in of.besides)


def compositions(of: Evidence) -> str:
    """Grids on the tuning seeds, then the best of them, and what they are compared with, on the others."""
    rows, chosen = [], of.study.chosen.compositions
    for one in of.study.design.compositions:
        for value in one.values:
            trial = of.study.composed("compose", one, value)
            mark = chosen_mark(one.values, value) if chosen.get(one.name) == value else ""
            without = [] if one.is_control else of.study.compared_with(trial)
            adds = interval(of.less(trial, without[0])) if without else "–"
            rows.append([one.name, code(trial.label) + mark, of.cell(trial), adds])
    heads = ("composition", "value", "accuracy % on the tuning seeds", "less the same without FedSSD [95 %]")
    best = ("composition", "which is", "value", "accuracy % on the reported seeds", "difference", "points [95 %]")
    opening = f"All with {code(label(of.study.design.composed))}, whatever the pipeline has."
    return f"{opening}\n\n{over_late_rounds(table(heads, rows))}\n{table(best, _best_rows(of))}"


def _best_rows(of: Evidence) -> list[list[str]]:
    """Each less FedAvg, then the one with FedSSD less the same without it and less the best without."""
    trials = {name: of.study.best(name) for name in of.study.chosen.compositions}  # the better first
    ours = next(name for name in trials if not of.study.design.composition(name).is_control)
    rival = next(name for name in trials if of.study.design.composition(name).is_control)
    control = of.study.design.without_fedssd(ours).name
    roles = {ours: "the best with FedSSD", control: "the same without FedSSD", rival: "the best without FedSSD"}
    if control == rival:
        roles[control] = "the same without FedSSD, which is the best without"
    compared = [(name, role, of.study.fedavg_beside(trials[name])) for name, role in roles.items()]
    compared += [(ours, "what of it is FedSSD's" if name == control else "", trials[name]) for name in list(roles)[1:]]
    return [
        [
            *(name, role, code(trials[name].label), of.cell(trials[name])),
            f"{name} less {NAMES.get(theirs.arm, theirs.arm)}",
            interval(of.less(trials[name], theirs)),
        ]
        for name, role, theirs in compared
    ]


def leaderboard(of: Evidence) -> str:
    """Every number on the split of Table 1 that no seed of its own chose, best first, with what made it."""
    named = f"--only '{of.home.title}'"
    rows = [
        (
            NAMES[method],
            "as printed",
            of.home.setting(method=method),
            tuple(range(10)),
            f"run table2 {named} --methods {method}",
        )
        for method in of.home.methods
    ]
    for name in of.study.reported_names()[1:]:
        trial = of.study.reported(of.home, name)
        rows.append(
            (of.titles[name], "tuned", trial.recipe, trial.read, f"run study --part report {named} --only {name}")
        )
    for name in of.study.chosen.compositions:
        trial = of.study.best(name)
        rows.append((name, trial.label, trial.recipe, trial.read, f"run study --part best --only {name}"))
    shown = []
    for title, strength, recipe, seeds, command in rows:
        runs = of.runs.by_seed(recipe, seeds).values()
        values = [100 * (run.rounds[-1].accuracy or 0.0) for run in runs]
        dates = sorted({str(run.provenance["started"])[:10] for run in runs if "started" in run.provenance})
        commits = ", ".join(dict.fromkeys(code(run.provenance.get("commit", "–")[:7]) for run in runs))
        number = spread(values) if values else NOT_RUN
        shown.append([title, strength, (dates or ["–"])[-1], commits or "–", code(command), number])
    shown.sort(key=lambda row: "" if row[-1] == NOT_RUN else row[-1], reverse=True)
    heads = ("method", "strength", "date", "commit", "`python -m studies.paper` …", "accuracy % (seeds)")
    return table(heads, shown, left=5)


def state(of: Evidence) -> str:
    """How much of every part has been run."""
    rows = []
    for part in PARTS:
        wanted = {of.runs.key(one): one for trial in of.study.trials(part) for one in trial.recipes}
        done = sum(of.runs.find(one) is not None for one in wanted.values())
        seeds = ", ".join(map(str, sorted({one.seed for one in wanted.values()})))
        rows.append([f"`{part}`", str(len(wanted)), str(done), seeds, str(of.study.design.rounds[part])])
    return table(("part", "cells", "finished", "seeds", "rounds"), rows)
