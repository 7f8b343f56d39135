"""What the study's page calls its rows, and which trials go by a name."""

from __future__ import annotations

from collections.abc import Sequence

from fedssd.experiment.study.design import Design, label
from fedssd.experiment.study.trial import Trial
from fedssd.experiment.study.trials import COLUMNS
from fedssd.report.figures import NAMES


def titles(design: Design) -> dict[str, str]:
    """What a page calls methods, variants, columns and FedSSD's strengths, by their names in the study."""
    variants = {one.name: one.title for one in (*design.variants, design.columns)}
    strengths = {label(design.columns.at(value)): strength(value) for value in design.digits.m_max}
    return NAMES | variants | strengths | {column.recipe: column.title for column in COLUMNS}


def strength(value: float) -> str:
    """One of FedSSD's strengths."""
    return f"M_max = {value:g}"


def named(name: str, trials: Sequence[Trial], design: Design) -> list[Trial]:
    """Those of that choice, setting, composition, label or arm, or what a page calls it, in letters of either case."""
    known = titles(design)

    def names(trial: Trial) -> set[str]:
        own = (trial.group, trial.label, trial.arm)
        return {one.casefold() for one in (*own, *(known.get(one, one) for one in own))}

    return [trial for trial in trials if name.casefold() in names(trial)]
