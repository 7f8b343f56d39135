"""What the study's page calls its rows, and which trials go by a name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedssd.reports.charts import NAMES
from studies.paper.study.design import OURS, Design, label
from studies.paper.study.trial import Trial
from studies.paper.study.trials import COLUMNS


def titles(design: Design) -> dict[str, str]:
    """What a page calls methods, variants, columns and FedSSD's strengths, by their names in the study."""
    variants = {one.name: one.title for one in (*design.variants, design.columns)}
    strengths = {label(one.at(value)): strength(value) for one in design.on_columns.values() for value in one.values}
    return NAMES | variants | strengths | {column.recipe: column.title for column in COLUMNS}


def group_shown(group: str) -> str:
    """A column by its title; choices and compositions are called what they are."""
    return next((column.title for column in COLUMNS if column.recipe == group), group)


def strength(value: float) -> str:
    """One of FedSSD's strengths."""
    return f"M_max = {value:g}"


def named(names: Sequence[str], trials: Sequence[Trial], design: Design, any_strength: bool = False) -> list[Trial]:
    """Those that go by all of these names: of a choice, setting, composition, label or arm, or what a page calls it.

    Case, blanks and how a number or a Greek letter is written do not matter. ``any_strength``: where what was found is
    made up, FedSSD goes by all its strengths.
    """
    known, wanted = titles(design), {plain(name) for name in names}

    def own(trial: Trial) -> set[str]:
        words = (trial.group, trial.label, trial.arm)
        called = [known.get(one, one) for one in words]
        brief = [one.partition(",")[0] for one in called]  # as a sentence has it, where nothing else is called that
        said = (*words, *called, *(one for one in brief if one not in known.values()))
        return {plain(one) for one in (*said, *_strengths(trial, design, any_strength))}

    return [trial for trial in trials if wanted <= own(trial)]


def plain(name: str) -> str:
    """A name without case and blanks; 1e-5 and 0.00001 are one number, ``delta`` is δ and ``alpha`` α."""
    text = "".join(name.split()).casefold().replace("delta", "δ").replace("alpha=", "α=").replace(".α=", ".alpha=")
    return re.sub(r"(?<![\w.])\d+(\.\d+)?(e[+-]?\d+)?(?![\w.])", lambda found: f"{float(found[0]):g}", text)


def _strengths(trial: Trial, design: Design, any_strength: bool) -> list[str]:
    """What the page calls FedSSD's rows of the report, by round: the tuned strength, and the best over all columns."""
    ours = design.columns
    if trial.part != "report" or trial.arm not in (OURS, ours.name):
        return []
    if any_strength:
        grid = ours if trial.arm == ours.name else next(one for one in design.grids if one.key == ours.key)
        return [strength(value) for value in grid.values]
    method, _, option = ours.key.partition(".")
    return [strength(trial.recipe.options[method][option])]
