"""What client 0 makes of each class: the paper's figure of accuracy by class as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from fedssd.reports.markdown import table
from fedssd.reports.statistics import pair
from fedssd.simulation.result import Result
from studies.paper.cells import places_of
from studies.paper.paper import EXPERIMENTS
from studies.paper.report.figure_data import runs_of
from studies.paper.report.lines import lines_of
from studies.paper.report.wording import interval, spread

HEADS = ("class", "samples of client 0", "the model it is sent, %", "its own after training, %", "less it [95 %]")


def section(done: Mapping[str, Path], seeds: Sequence[int]) -> str:
    """Class by class the model that client 0 is sent and what it makes of it, each as a mean over the rounds."""
    runs = runs_of(places_of(EXPERIMENTS["figure-classes"], {}), done, seeds)
    parts = []
    for title in dict.fromkeys(title for title, _ in runs):
        own = [run for other, run in runs if other == title]
        known = {run.summary.seed: found for run in own if (found := _rounds(run))}
        rows = [
            [str(number), str(count), *_figures(known, number)]
            for number, count in enumerate(own[0].provenance["counts"][0])
        ]
        parts.append(f"**{title}**\n\n{table(HEADS, rows)}")
    return "\n".join(parts)


def _rounds(run: Result) -> list[tuple[list[float], list[float]]]:
    """By round the accuracy of every class: of the model that is sent, known from the second on, and of client 0's."""
    return [
        (before["global"]["class_acc"], line["client_0"]["class_acc"])
        for before, line in pairwise(lines_of(run))
        if "global" in before and "client_0" in line
    ]


def _figures(known: Mapping[int, Sequence[tuple[list[float], list[float]]]], number: int) -> list[str]:
    sent, after = (
        {seed: 100 * fmean(one[place][number] for one in rounds) for seed, rounds in known.items()} for place in (0, 1)
    )
    return [spread(list(sent.values())), spread(list(after.values())), interval(pair("", sent, after))]
