"""FedAvg on the splits that the one of all recipes was picked from: how much a split does by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from fedssd.reports.comparison import percent
from fedssd.reports.markdown import table
from fedssd.reports.statistics import pair
from fedssd.runs.read import read_run
from studies.paper.cells import Place, fedavg_of, places_of
from studies.paper.paper import CIFAR10, EXPERIMENTS
from studies.paper.report.wording import counted, spread

LOOKED_AT = range(5)  # seeds of the split, as many as were compared before one was picked


def section(done: Mapping[str, Path], seeds: Sequence[int]) -> str:
    """Table 1's FedAvg on each split: its accuracy, less that of the split that was picked, and less the published."""
    (place,) = [one for one in places_of(EXPERIMENTS["table1"], {}) if one.column.recipe == CIFAR10.recipe]
    found = {split: _accuracies(place, split, done, seeds) for split in LOOKED_AT}
    picked, published = place.base.partition_seed, place.column.published["fedavg"].accuracy
    rows = [
        [
            f"{split}{' (picked)' if split == picked else ''}",
            spread(list(own.values())),
            f"{fmean(own.values()) - published:+.2f}",
            "–" if split == picked else counted(pair("", found[picked], own)),
        ]
        for split, own in found.items()
        if own
    ]
    heads = ("split", "FedAvg %", f"less the published {published:.2f}", "less the one picked [95 %] (seeds)")
    return table(heads, rows) if rows else ""


def _accuracies(place: Place, split: int, done: Mapping[str, Path], seeds: Sequence[int]) -> dict[int, float]:
    cells = fedavg_of(Place(place.column, replace(place.base, partition_seed=split)), seeds)
    return {c.recipe.seed: percent(read_run(done[c.key])) for c in cells if c.key in done}
