"""The pipeline and strengths that were chosen, and how the methods and compositions end with them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from fedssd.reports.charts import NAMES
from fedssd.reports.markdown import table
from fedssd.reports.statistics import pair
from studies.paper.paper import Column
from studies.paper.report.evidence import Evidence
from studies.paper.report.reproduction import FAR_OFF
from studies.paper.report.row_names import titles
from studies.paper.report.wording import NOT_RUN, any_run, chosen_mark, code, interval, leads_on, listed, spread
from studies.paper.study.design import OURS, THEIRS, Changes, Tuned, label
from studies.paper.study.trials import COLUMNS, Settled


def profile(evidence: Evidence) -> str:
    """FedAvg with every pipeline, and how far it is from the published, give or take a standard error."""
    chosen, rows = evidence.paper, []
    home = evidence.home
    order = [home, *(column for column in COLUMNS if column is not home)]
    candidates = evidence.study.candidates()
    final = all(evidence.study.distance(one, COLUMNS, evidence.results) is not None for one in candidates)
    for changes in candidates:
        found = [list(evidence.found(evidence.study.candidate(changes, column)).values()) for column in order]
        far = [_distance(evidence, changes, columns) for columns in ([home], COLUMNS)]
        mark = f" **chosen{'' if final else ' before all were run'}**" if chosen == changes else ""
        shown = [
            spread(values) + _flag(evidence, column, values) if values else "–"
            for column, values in zip(order, found, strict=True)
        ]
        rows.append([code(label(changes)) + mark, *shown, *far])
    published = [f"{column.published[THEIRS].accuracy:.2f}" for column in order]
    rows.append(["the paper's FedAvg", *published, "0", "0"])
    heads = ("pipeline", *(column.title for column in order), "distance, first", "distance, all")
    if chosen is None and not any_run(rows[:-1], 1):
        return f"{NOT_RUN.capitalize()}.\n"
    return _flagged(table(heads, rows)) + _less_the_first(evidence, order)


def _less_the_first(evidence: Evidence, columns: Sequence[Column]) -> str:
    """What each pipeline does to FedAvg over all rounds, beside the first."""
    study = evidence.study
    rows = []
    for other in study.candidates()[1:]:
        trials = [study.candidate(other, column) for column in columns]
        gains = [evidence.against(trial, study.first_pipeline_beside(trial)) for trial in trials]
        rows.append([code(label(other)), *map(interval, gains)])
    if not any(any_run(rows, place + 1) for place in range(len(columns))):
        return ""
    heads = ("less the first pipeline [95 %]", *(column.title for column in columns))
    return f"\n{table(heads, rows)}"


def _flag(evidence: Evidence, column: Column, accuracies: Sequence[float]) -> str:
    """Behind a FedAvg of ours that is far from the published one."""
    if not evidence.beside_the_paper or not accuracies:
        return ""
    return " ⚑" if abs(fmean(accuracies) - column.published[THEIRS].accuracy) > FAR_OFF else ""


def _distance(evidence: Evidence, changes: Changes, columns: Sequence[Column]) -> str:
    far, error = evidence.study.distance(changes, columns, evidence.results), evidence.distance_error(changes, columns)
    return "–" if far is None else f"{far:.2f}" + ("" if error is None else f" ± {error:.2f}")


def tuning(evidence: Evidence) -> str:
    """Every grid on the tuning seeds, the chosen value marked, variants below the paper's methods."""
    paper = evidence.paper
    if paper is None:
        return f"{NOT_RUN.capitalize()}: it follows from the profile.\n"
    strengths, variants = (
        evidence.study.strengths(evidence.results) or {},
        evidence.study.variants(evidence.results) or {},
    )
    best, known, rows = {**strengths, **variants}, titles(evidence.study.design), []
    for one in (*evidence.study.design.grids, *evidence.study.design.variants):
        chosen, tried = best.get(one.name if one.title else one.key), evidence.study.tried(one, paper)
        for value, trial in tried.items():
            found = spread(list(evidence.found(trial).values()))
            mark = chosen_mark(one.values, value) if chosen == value else ""
            less = "–" if chosen in (None, value) else interval(evidence.against(trial, tried[chosen]))
            rows.append([known[one.name], code(trial.label) + mark, found, less])
    if not any_run(rows, 2):
        return f"{NOT_RUN.capitalize()}.\n"
    settled = evidence.settled
    beside = [] if settled is None else [_beside(evidence, one, settled) for one in evidence.study.design.variants]
    return "\n".join(
        [table(("method", "strength", "accuracy %", "less the chosen [95 %]"), rows), *filter(None, beside)]
    )


def columns(evidence: Evidence, part: str = "columns") -> str:
    """FedSSD with each of its strengths less FedAvg on every column, on the tuning seeds, and what is best over all."""
    study, paper = evidence.study, evidence.study.pipeline_on(part, evidence.results)
    if paper is None:
        return f"{NOT_RUN.capitalize()}: it follows from the profile.\n"
    ours, rows = study.design.on_columns[part], []
    for column in COLUMNS:
        base = study.on_column(column, None, paper, part)
        tried = [study.on_column(column, value, paper, part) for value in ours.values]
        gains = [interval(evidence.over_fedavg(trial)) for trial in tried]
        rows.append([column.title, spread(list(evidence.found(base).values())), *gains])
    if not any(any_run(rows, place) for place in range(1, len(rows[0]))):
        return f"{NOT_RUN.capitalize()}.\n"
    best = study.everywhere(evidence.results, part)
    rows += _over_columns(evidence, paper, part, best)
    marks = [" **chosen**" if value == best else "" for value in ours.values]
    heads = [code(label({ours.key: v})) + mark for v, mark in zip(ours.values, marks, strict=True)]
    return table(("column", "FedAvg %", *heads), rows)


def _over_columns(evidence: Evidence, paper: Changes, part: str, best: float | None) -> list[list[str]]:
    """The mean of the columns, seed by seed: less FedAvg's, and less that of the strength that is the best there."""
    theirs = evidence.mean_of_columns(None, paper, part)
    means = {v: evidence.mean_of_columns(v, paper, part) for v in evidence.study.design.on_columns[part].values}
    if not theirs:
        return []
    rows = [
        ["mean of the columns", spread(list(theirs.values())), *(interval(pair("", theirs, m)) for m in means.values())]
    ]
    chosen = means.get(best) if best is not None else None
    if chosen:
        less = ["–" if value == best else interval(pair("", chosen, mean)) for value, mean in means.items()]
        rows.append(["the same, less the chosen", "–", *less])
    return rows


def _beside(evidence: Evidence, one: Tuned, settled: Settled) -> str:
    found = evidence.ahead(one, settled)
    if not found.gains:
        return ""
    words = "ends" if fmean(found.gains) > 0 else "does not end"
    doubt = "" if found.clear else ", not told apart"
    return f"On the tuning seeds {code(one.name)} {words} above FedSSD, each at its best: {interval(found)}{doubt}.\n"


def report(evidence: Evidence) -> str:
    """Every method with its tuned strength on every column, on seeds nothing was chosen on."""
    settled = evidence.settled
    if settled is None:
        return f"{NOT_RUN.capitalize()}: it follows from the profile and the tuned strengths.\n"
    note = (
        "T: after how many rounds a method first has FedAvg's final accuracy of the same seed, as a median; FedAvg "
        "itself first hits it before the end, which is what to compare with. (k/n): k of n seeds reach it. Gains and T "
        "are paired by seed, on the seeds that both methods have.\n"
    )
    return "\n".join([*(_column(evidence, column, settled) for column in COLUMNS), note, *_added(evidence, settled)])


def _added(evidence: Evidence, settled: Settled) -> list[str]:
    """The same of FedSSD on the seeds alone that were added after the others had been looked at."""
    seeds, found = evidence.study.design.more_seeds, evidence.on_added_seeds(settled)
    if not found:
        return []
    return [f"On the seeds {listed([str(seed) for seed in seeds])} alone, FedSSD {leads_on(found)}.\n"]


def until_reported(evidence: Evidence) -> str:
    """What a block begins with that shows another pipeline's report while the chosen one has none; else nothing."""
    shown = evidence.reported
    if shown is evidence:
        return ""
    return f"With {code(shown.pipeline)}; with the chosen pipeline {NOT_RUN}.\n\n"


def report_beside(evidence: Evidence) -> str:
    """The same with every pipeline that is reported beside the chosen one."""
    found = []
    if evidence.paper is not None and not evidence.besides:
        return "None: the pipeline that would be is the chosen one.\n"
    for other in evidence.besides:
        if other.has_report:
            found.append(f"With {code(other.pipeline)}:\n\n{tuning(other)}\n{report(other)}")
    return "\n".join(found) or f"{NOT_RUN.capitalize()}.\n"


def _column(evidence: Evidence, column: Column, settled: Settled) -> str:
    rows = []
    for name, title in evidence.titles.items():
        trial = evidence.study.reported(column, name, settled)
        accuracies = list(evidence.found(trial).values())
        found = spread(accuracies) + (_flag(evidence, column, accuracies) if name == THEIRS else "")
        lead = "–" if name == THEIRS else interval(evidence.over_fedavg(trial))
        less = "–" if name in (THEIRS, OURS) else interval(evidence.over_fedssd(name, column, settled))
        reached = evidence.rounds_to_fedavg(trial)
        rows.append([title, found, lead, less, str(reached or "–"), *_printed(evidence, column, name)])
    gains = ("gain over FedAvg [95 %]", "over FedSSD [95 %]")
    heads = ("method", "ours %", *gains, "T", "paper %", "paper's gain", "paper's T")
    shown = _flagged(table(heads[: len(rows[0])], rows))
    named = evidence.study.pipeline
    tuned_in = " --reuse results/study/tune.runs.jsonl.gz"  # from which its strengths follow
    tuned = tuned_in if evidence.beside_the_paper else ""
    pipeline = "" if named is None else f" --pipeline {label(named)}{tuned}"
    return f"**{column.title}** (`--part report --only {column.recipe}{pipeline}`)\n\n{shown}"


def _printed(evidence: Evidence, column: Column, name: str) -> list[str]:
    """What the paper has for a method; for digits and changed recipes it has nothing, and no column."""
    if not evidence.beside_the_paper:
        return []
    if name not in column.published:
        return ["–", "–", "–"]
    printed = column.published[name]
    theirs = f"{printed.accuracy:.2f}" + (f" ± {printed.spread:.2f}" if printed.spread is not None else "")
    gain = "–" if name == THEIRS else f"{printed.accuracy - column.published[THEIRS].accuracy:+.2f}"
    return [theirs, gain, str(printed.rounds or "–")]


def compositions(evidence: Evidence) -> str:
    """Grids on the tuning seeds, then the best of them, and what they are compared with, on the others."""
    settled = evidence.settled
    if settled is None:
        return f"{NOT_RUN.capitalize()}: it follows from the profile and the tuned strengths.\n"
    chosen, rows = evidence.study.compositions(evidence.results), []
    for one in evidence.study.design.compositions:
        for value in one.values:
            trial = evidence.study.composed("compose", one, value, settled)
            mark = chosen_mark(one.values, value) if chosen.get(one.name) == value else ""
            adds = "–" if one.is_control else interval(evidence.fedssd_adds(trial))
            rows.append([one.name, code(trial.label) + mark, spread(list(evidence.found(trial).values())), adds])
    reported = _best_rows(evidence)
    if not any_run(rows, 2) and not any_run(reported, 3):
        return f"{NOT_RUN.capitalize()}.\n"
    parts = [
        f"All with {code(label(evidence.study.design.composed))}, whatever the pipeline has.\n",
        table(("composition", "value", "accuracy % on the tuning seeds", "less the same without FedSSD [95 %]"), rows),
    ]
    heads = ("composition", "which is", "value", "accuracy % on the reported seeds", "difference", "points [95 %]")
    return "\n".join([*parts, table(heads, reported) if reported else f"The best: {NOT_RUN}.\n"])


def _best_rows(evidence: Evidence) -> list[list[str]]:
    """Each less FedAvg, then the one with FedSSD less the same without it and less the best without."""
    best = evidence.best()
    if best is None:
        return []
    rivals = [(ours, role, evidence.study.fedavg_beside(ours)) for ours, role in best.roles]
    rivals += [
        (ours, "what of it is FedSSD's" if theirs == best.control else "", theirs) for ours, theirs in best.differences
    ]
    return [
        [
            ours.arm,
            role,
            code(ours.label),
            spread(list(evidence.found(ours).values())),
            f"{ours.arm} less {NAMES.get(theirs.arm, theirs.arm)}",
            interval(evidence.against(ours, theirs)),
        ]
        for ours, role, theirs in rivals
    ]


def _flagged(shown: str) -> str:
    """With what the flag means below, where there is one."""
    note = f"⚑: our FedAvg is more than {FAR_OFF:g} from the published figure; read its column with that in mind."
    return f"{shown}\n{note}\n" if "⚑" in shown else shown
