"""The paper's and the study's figures: one function a picture, each drawn from runs by the title of their setting.

``draw("figure-forgetting", runs, folder)`` writes folder/figure-forgetting.svg.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedssd.simulation.result import Result
from studies.paper.report import figure_pictures, mechanism
from studies.paper.report.shaded_grids import split_picture
from studies.paper.theory.figure import promise_figure

Runs = Mapping[str, Sequence[Result]]  # by the title of their setting, or the name of their line


def forgetting(runs: Runs) -> str:
    """Left a dot for every round, global against mean local accuracy; right their difference over the rounds."""
    return figure_pictures.forgetting(_titled(runs))


def classes(runs: Runs) -> str:
    """Accuracy by class over the rounds, of the global model and of client 0, a pair of panels a setting."""
    return figure_pictures.by_class(_titled(runs))


def confusion(runs: Runs) -> str:
    """What client 8 holds, the global model it was sent last, and what it made of each method's."""
    return figure_pictures.confusion(_titled(runs))


def distribution(splits: Mapping[str, Sequence[Sequence[int]]]) -> str:
    """Who holds how many samples of each class: a panel a dataset, given as counts by client and class."""
    return split_picture(list(splits.items()))


def from_round_to_round(runs: Runs) -> str:
    """What a method does over the rounds: how much is distilled and forgotten, and how far clients go."""
    return mechanism.picture(runs)


def theorem(found: Mapping[str, Any]) -> str:
    """Promised against observed decrease, round by round, from what ``theory`` measured on a run."""
    from studies.paper.theory.report import rounds_of

    return promise_figure(rounds_of(dict(found)), found["m_max"], float(found["S"]), found["setting"])


def _titled(runs: Runs) -> list[tuple[str, Result]]:
    return [(title, run) for title, found in runs.items() for run in found]


FIGURES: dict[str, Callable[[Any], str]] = {
    "figure-distribution": distribution,
    "figure-forgetting": forgetting,
    "figure-classes": classes,
    "figure-confusion": confusion,
    "study-mechanism": from_round_to_round,
    "theory": theorem,
}


def draw(name: str, results: Any, folder: Path) -> Path:
    """Write one of the figures as ``NAME.svg``.

    Args:
        name: of the figure; theory-m-max-1 is the figure theory under another name
        results: what its function takes, mostly runs by the title of their setting
        folder: where it goes

    Returns:
        The file.
    """
    figure = FIGURES["theory" if name.startswith("theory") else name]
    file = folder / f"{name}.svg"
    file.write_text(figure(results), encoding="utf-8")
    return file
