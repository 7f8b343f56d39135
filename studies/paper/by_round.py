"""What happens from round to round: FedSSD's gain on the way, distillation, forgetting and drift."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedssd import Result, Round
from studies.paper.evidence import Evidence
from studies.paper.formats import By, interval, paired, spread, table
from studies.paper.paper import OURS, SPLITS, Column
from studies.paper.trials import Trial


def _worst(recalls: Sequence[float], recorded: float | None) -> float | None:
    """Of a packed run often the worst alone is there."""
    return min(recalls) if recalls else recorded


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 9)  # 10 % less 10 % is 0


DISTILLED: dict[str, Callable[[Round], float | None]] = {  # a method without a teacher has none of these
    "mean M / M_max, %": lambda one: _percent(one.distillation.get("weight")),
    "share of M > 0, %": lambda one: _percent(one.distillation.get("active")),
    "penalty over cross-entropy, %": lambda one: _percent(one.distillation.get("ratio")),
}
MEASURES: dict[str, Callable[[Round], float | None]] = DISTILLED | {
    "clients' accuracy Acc_L, %": lambda one: _percent(one.local_accuracy),
    "forgetting Acc_G − Acc_L, points": lambda one: _percent(one.forgetting),
    "drift ‖w_i − w_g‖": lambda one: one.drift,
    "recall of the worst class, global model, %": lambda one: _percent(_worst(one.class_accuracy, one.worst_class)),
    "recall of the worst class, clients' mean, %": lambda one: _percent(
        _worst(one.local_class_accuracy, one.local_worst_class)
    ),
}


def at_the_end(runs: Mapping[int, Result], measure: Callable[[Round], float | None]) -> By:
    """A measure in the last round, of those seeds that have it."""
    found = {seed: measure(run.rounds[-1]) for seed, run in runs.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def by_round(of: Evidence) -> str:
    """FedSSD's gain over FedAvg on the way, as both are reported, on every column."""
    names = {OURS: of.settled.strengths[of.study.design.columns.key]}
    names[of.study.design.columns.name] = of.settled.everywhere
    return _by_round(
        of, [(column, value, of.study.reported(column, name)) for column in SPLITS for name, value in names.items()]
    )


def by_round_on_digits(of: Evidence) -> str:
    """The same on digits, with each of its strengths."""
    values = of.study.design.digits_m_max
    return _by_round(of, [(column, value, of.study.on_digits(column, value)) for column in SPLITS for value in values])


def _by_round(of: Evidence, trials: Sequence[tuple[Column, float | None, Trial]]) -> str:
    last = trials[0][2].recipe.rounds
    rounds = [*(after for after in of.study.design.after if after < last), last]
    rows: list[list[str]] = []
    for column, value, ours in trials:
        theirs = of.study.fedavg_beside(ours)
        if [f"**{column.title}**"] not in [row[:1] for row in rows]:
            shared = of.found(ours).keys()
            both = [{s: one for s, one in of.found(theirs.after(n)).items() if s in shared} for n in rounds]
            rows.append([f"**{column.title}**", "FedAvg %", *(spread(list(one.values())) for one in both)])
        gains = [of.less(ours.after(after), theirs.after(after)) for after in rounds]
        seeds = f"{gains[-1].n} seed{'' if gains[-1].n == 1 else 's'}"
        rows.append(["", f"M_max = {value:g}, less FedAvg, over {seeds}", *map(interval, gains)])
        title, measure = next(iter(DISTILLED.items()))
        ends = [at_the_end(of.records(ours.after(after)), measure) for after in rounds]
        rows.append(["", title, *(spread(list(one.values()), 2) if one else "–" for one in ends)])
    return table(("", "after round", *map(str, rounds)), rows, left=2)


def mechanism(of: Evidence) -> str:
    """What is distilled, forgotten and drifted in the last round at the base."""
    runs = {one.arm: of.records(one) for one in of.study.bases("confirm")}
    rows = []
    for title, measure in MEASURES.items():
        ends = [list(at_the_end(records, measure).values()) for records in runs.values()]
        rows.append([title, *(spread(values, 3) if values else "–" for values in ends)])
    return "![From round to round](images/study-mechanism.svg)\n\n" + table(("in the last round", *runs), rows)


def mechanism_by_column(of: Evidence) -> str:
    """The same of every method that is reported, on every column."""
    parts = []
    for column in SPLITS:
        rows = []
        for name in of.study.reported_names():
            trial = of.study.reported(column, name)
            ours, theirs = of.records(trial), of.records(of.study.fedavg_beside(trial))
            ends = {title: at_the_end(ours, measure) for title, measure in MEASURES.items()}
            if ours:
                shown = [spread(list(one.values()), 3) if one else "–" for one in ends.values()]
                rows.append([of.titles[name], *shown])
            if ours and name in (OURS, of.study.design.columns.name):
                less = [paired(at_the_end(theirs, measure), ends[title]) for title, measure in MEASURES.items()]
                rows.append([f"{of.titles[name]}, less FedAvg [95 %]", *map(interval, less)])
        parts.append(f"**{column.title}**\n\n{table(('in the last round', *MEASURES), rows)}")
    return "\n".join(parts)
