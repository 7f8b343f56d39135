"""Which pipeline is closest to the paper's FedAvg, and which strength of each method is best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance

from studies.paper import choose
from studies.paper.design import Changes, label
from studies.paper.evidence import Evidence, flagged, over_late_rounds
from studies.paper.formats import chosen_mark, code, interval, paired, spread, table
from studies.paper.paper import SPLITS, THEIRS, Column
from studies.paper.trials import Settled


def profile(of: Evidence) -> str:
    """FedAvg with every pipeline, how far it is from the published, and what a pipeline does beside the first."""
    order = [of.home, *(column for column in SPLITS if column is not of.home)]
    candidates, rows, beside = of.study.design.candidates, [], []
    for changes in candidates:
        trials = [of.study.candidate(changes, column) for column in order]
        shown = [of.cell(one) + of.flag(column, one) for one, column in zip(trials, order, strict=True)]
        mark = " **chosen**" if changes == of.settled.pipeline else ""
        far = [_distance(of, changes, columns) for columns in ([of.home], SPLITS)]
        rows.append([code(label(changes)) + mark, *shown, *far])
        less = [interval(of.less(one, of.study.base_of(one))) for one in trials]
        beside += [] if changes == candidates[0] else [[code(label(changes)), *less]]
    rows.append(["the paper's FedAvg", *(f"{column.published[THEIRS].accuracy:.2f}" for column in order), "0", "0"])
    titles = [column.title for column in order]
    every = table(("pipeline", *titles, "distance, first", "distance, all"), rows)
    return f"{flagged(every)}\n{table(('less the first pipeline [95 %]', *titles), beside)}"


def _distance(of: Evidence, changes: Changes, columns: Sequence[Column]) -> str:
    far = choose.distance(of.study, changes, columns, of.mean)
    return "–" if far is None else f"{far:.2f} ± {_error(of, changes, columns):.2f}"


def _error(of: Evidence, changes: Changes, columns: Sequence[Column]) -> float:
    """The standard error of a pipeline's distance to the published FedAvg, from our seeds alone.

    With a few seeds a pipeline's own spread says little, so a column's is pooled over the pipelines that have run
    on it. Over columns it is of first order in the errors of their means.
    """
    squares, errors = [], []
    for column in columns:
        every = [of.found(of.study.candidate(one, column)) for one in of.study.design.candidates]
        found = of.found(of.study.candidate(changes, column))
        squares.append((fmean(found.values()) - column.published[THEIRS].accuracy) ** 2)
        errors.append(fmean(variance(one.values()) for one in every if len(one) > 1) / len(found))
    weighted = sum(far * error for far, error in zip(squares, errors, strict=True)) / sum(squares)
    return math.sqrt(weighted / len(columns))


def tuning(of: Evidence, settled: Settled | None = None) -> str:
    """Every grid on the tuning seeds, the chosen value marked, variants below the paper's methods."""
    settled, design, rows = settled or of.settled, of.study.design, []
    for one in (*design.grids, *design.variants):
        best = settled.variants[one.name] if one in design.variants else settled.strengths[one.key]
        tried = of.study.tried(one, settled.pipeline)
        for value, trial in tried.items():
            mark = chosen_mark(one.values, value) if value == best else ""
            less = "–" if value == best else interval(of.less(trial, tried[best]))
            rows.append([of.titles[one.name], code(trial.label) + mark, of.cell(trial), less])
    return over_late_rounds(table(("method", "strength", "accuracy %", "less the chosen [95 %]"), rows))


def columns(of: Evidence, part: str) -> str:
    """FedSSD with each of its strengths less FedAvg on every column, on the tuning seeds, and what is best."""
    values, rows = of.study.design.on_columns[part].values, []
    trials = {value: [of.study.on_column(column, value, part) for column in SPLITS] for value in (None, *values)}
    for place, column in enumerate(SPLITS):
        gains = [interval(of.less(trials[value][place], trials[None][place])) for value in values]
        rows.append([column.title, of.cell(trials[None][place]), *gains])
    means = {value: of.mean_of(own) for value, own in trials.items()}
    best = of.settled.everywhere if part == "columns" else of.study.chosen.on_digits
    gains = [interval(paired(means[None], means[value])) for value in values]
    less = ["–" if value == best else interval(paired(means[best], means[value])) for value in values]
    rows.append(["mean of the columns", spread(list(means[None].values())), *gains])
    rows.append(["the same, less the chosen", "–", *less])
    key = of.study.design.columns.key
    heads = [code(label({key: value})) + (" **chosen**" if value == best else "") for value in values]
    return over_late_rounds(table(("column", "FedAvg %", *heads), rows))
