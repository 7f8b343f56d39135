"""What the study chooses: survivors, pipeline, strengths, compositions; by fixed rules, from runs on tuning seeds.

``python -m studies.paper choose`` prints what the rules give; a person copies it into chosen.toml, and ``check`` fails
where that says otherwise. A rule gives nothing while one of its runs is missing.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from studies.paper.design import ON_COLUMNS, Changes, Tuned
from studies.paper.paper import HERE, SPLITS, THEIRS, Column
from studies.paper.trials import Chosen, Settled, Study, Trial

Mean = Callable[[Trial], float | None]  # percent over all of a trial's tuning seeds; None while one is missing


def load_chosen() -> Chosen:
    """Read what is written down."""
    return understood(tomllib.loads((HERE / "chosen.toml").read_text(encoding="utf-8")))


def understood(content: Mapping[str, Any]) -> Chosen:
    """Read a file's content."""
    everywhere, on_digits = content["defaults"]["cifar10"], content["recipes"]["digits"]
    settled = Settled(content["paper"], content["strengths"]["cifar10"], content["variants"], *everywhere.values())
    return Chosen(settled, tuple(content["screen"]["survivors"]), content["compositions"], *on_digits.values())


def survivors(study: Study, mean: Mean) -> tuple[str, ...] | None:
    """The departures worth confirming: of every choice the one that changes most and the one that ends best.

    One that changes no arm by the design's number of points, either way, is not worth it.
    """
    found: list[str] = []
    for choice in study.design.choices:
        effects: dict[str, float] = {}
        ends: dict[str, float] = {}
        for trial in study.departures("screen", choice):
            ours, base = mean(trial), mean(study.base_of(trial))
            if ours is None or base is None:
                return None
            effects[trial.label] = max(effects.get(trial.label, 0.0), abs(ours - base))
            ends[trial.label] = max(ends.get(trial.label, 0.0), ours)
        worth = [name for name, effect in effects.items() if effect >= study.design.survives]
        if worth:
            found += dict.fromkeys((max(worth, key=effects.__getitem__), max(worth, key=ends.__getitem__)))
    return tuple(found)


def distance(study: Study, changes: Changes, columns: Sequence[Column], mean: Mean) -> float | None:
    """Points between FedAvg with a pipeline and the published FedAvg, as a root mean square over columns."""
    means = [mean(study.candidate(changes, column)) for column in columns]
    known = [one for one in means if one is not None]
    if len(known) < len(columns):
        return None
    printed = [column.published[THEIRS].accuracy for column in columns]
    return math.sqrt(fmean((ours - theirs) ** 2 for ours, theirs in zip(known, printed, strict=True)))


def pipeline(study: Study, mean: Mean) -> Changes | None:
    """The pipeline whose FedAvg is closest to the published one over all columns; ties go to the first."""
    far = {place: distance(study, one, SPLITS, mean) for place, one in enumerate(study.design.candidates)}
    best = _least(far)
    return None if best is None else study.design.candidates[best]


def strengths(study: Study, tuned: Sequence[Tuned], changes: Changes, mean: Mean) -> dict[str, float] | None:
    """The best value of each with a pipeline, by the mean over the tuning seeds; ties go to the first."""
    found = {}
    for one in tuned:
        best = _largest({value: mean(trial) for value, trial in study.tried(one, changes).items()})
        if best is None:
            return None
        found[one.name] = best
    return found


def settled(study: Study, changes: Changes, mean: Mean) -> Settled | None:
    """What a pipeline is reported with: the strengths of methods and variants that are best with it."""
    methods, variants = (strengths(study, one, changes, mean) for one in (study.design.grids, study.design.variants))
    if methods is None or variants is None:
        return None
    return Settled(changes, {one.key: methods[one.name] for one in study.design.grids}, variants)


def everywhere(study: Study, mean: Mean, part: str) -> float | None:
    """FedSSD's strength with the best mean over all columns, on the paper's data or on digits; ties: the first."""
    means = {}
    for value in study.design.on_columns[part].values:
        found = [mean(study.on_column(column, value, part)) for column in SPLITS]
        means[value] = None if None in found else fmean(one for one in found if one is not None)
    best: float | None = _largest(means)
    return best


def compositions(study: Study, mean: Mean) -> dict[str, Any] | None:
    """The best with FedSSD, the same without it, and the best without: each at its best value, the better first."""
    ends: dict[str, tuple[float, Any]] = {}
    for one in study.design.compositions:
        means = {value: mean(study.composed("compose", one, value)) for value in one.values}
        best = _largest(means)
        if best is None:
            return None
        ends[one.name] = means[best] or 0.0, best
    order = sorted(ends, key=lambda name: -ends[name][0])
    ours, rival = (
        next(name for name in order if study.design.composition(name).is_control == control)
        for control in (False, True)
    )
    wanted = {ours, study.design.without_fedssd(ours).name, rival}
    return {name: ends[name][1] for name in order if name in wanted}


def choices(study: Study, mean: Mean) -> Chosen | None:
    """All that follows from the runs; None while one is missing."""
    changes = pipeline(study, mean)
    found = None if changes is None else settled(study, changes, mean)
    rest = (survivors(study, mean), compositions(study, mean), *(everywhere(study, mean, part) for part in ON_COLUMNS))
    if found is None or None in rest:
        return None
    worth, composed, best, on_digits = rest
    return Chosen(found._replace(everywhere=best), worth, composed, on_digits)  # type: ignore[arg-type]


def as_toml(chosen: Chosen) -> str:
    """Write it as chosen.toml has it, without comments."""
    tables: dict[str, Mapping[str, Any]] = {
        "screen": {"survivors": chosen.survivors},
        "paper": chosen.settled.pipeline,
        "strengths.cifar10": chosen.settled.strengths,
        "defaults.cifar10": {"fedssd.m_max": chosen.settled.everywhere},
        "recipes.digits": {"fedssd.m_max": chosen.on_digits},
        "variants": chosen.settled.variants,
        "compositions": chosen.compositions,
    }
    lines = [
        f"[{name}]\n" + "".join(f'"{key}" = {_value(one)}\n' for key, one in own.items())
        for name, own in tables.items()
    ]
    return "\n".join(lines)


def _value(value: Any) -> str:
    return (
        f"[{', '.join(map(_value, value))}]"
        if isinstance(value, tuple)
        else f'"{value}"'
        if isinstance(value, str)
        else repr(value)
    )


def _largest(means: Mapping[Any, float | None]) -> Any:
    known = {value: mean for value, mean in means.items() if mean is not None}
    return max(known, key=known.__getitem__) if known and len(known) == len(means) else None


def _least(means: Mapping[Any, float | None]) -> Any:
    return _largest({value: None if mean is None else -mean for value, mean in means.items()})
