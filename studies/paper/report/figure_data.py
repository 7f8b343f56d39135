"""The numbers behind the paper's figures, as CSV: splits, forgetting, accuracy by class, confusion matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fedssd.reports.table import values
from fedssd.simulation.result import Result
from studies.paper.report.lines import lines_of

Titled = Sequence[tuple[str, Result]]  # runs with the title of their setting
Matrix = Sequence[Sequence[int]]
CLIENT = "8"  # whose confusion matrices the paper shows


def _csv(heads: str, rows: Iterable[Sequence[Any]]) -> str:
    return values(heads, [[str(value) for value in row] for row in rows]).csv()  # numbers with all their digits


def forgetting(runs: Titled) -> str:
    """Global and mean local accuracy of every round, and their difference."""
    rows = [
        (
            title,
            run.summary.seed,
            line["round"],
            line["global"]["acc"],
            line["local"]["acc_mean"],
            line["forgetting"],
        )
        for title, run in runs
        for line in lines_of(run)
        if "local" in line
    ]
    return _csv("setting seed round global local difference", rows)


def by_class(runs: Titled) -> str:
    """Accuracy by class and round of the global model and of client 0."""
    rows = [
        (title, run.summary.seed, line["round"], model, number, accuracy)
        for title, run in runs
        for line in lines_of(run)
        for model, key in (("global", "global"), ("client 0", "client_0"))
        for number, accuracy in enumerate(line.get(key, {}).get("class_acc", []))
    ]
    return _csv("setting seed round model class accuracy", rows)


def confusion(runs: Titled) -> str:
    """Test samples by true and called class: the global model sent in the last round, and client 8 after training.

    Before them the training samples that client holds, by class.
    """
    rows = []
    for title, run in runs:
        found = matrices_of(run)
        for model, matrix in (("data", found.held), ("global", found.sent), (f"client {CLIENT}", found.after)):
            for true, counts in enumerate(matrix):
                for called, count in enumerate(counts):
                    rows.append((title, run.recipe.method, run.summary.seed, model, true, called, count))
    return _csv("setting method seed model true called count", rows)


class Matrices(NamedTuple):
    """Of client 8, classes downwards; each empty where a run does not hold it."""

    held: Matrix  # its training samples, which are called what they are
    sent: Matrix  # what the global model that it was sent in the last round calls test samples
    after: Matrix  # and what its own does after training


def matrices_of(run: Result) -> Matrices:
    """What a run recorded of client 8."""
    found = {line["round"]: line["confusion"] for line in lines_of(run) if "confusion" in line}
    last, counts = max(found, default=0), run.provenance.get("counts", [])[int(CLIENT) :][:1]
    held = [[count * (place == at) for at in range(len(one))] for one in counts for place, count in enumerate(one)]
    after = found.get(last, {}).get("local", {}).get(CLIENT, [])
    return Matrices(held, found.get(last - 1, {}).get("global", []), after)


def distribution(splits: Iterable[tuple[str, Sequence[Sequence[int]]]]) -> str:
    """Training samples by client and class."""
    rows = [
        (title, client, number, count)
        for title, counts in splits
        for client, held in enumerate(counts)
        for number, count in enumerate(held)
    ]
    return _csv("setting client class samples", rows)


OF_RUNS: dict[str, Callable[[Titled], str]] = {
    "figure-forgetting": forgetting,
    "figure-classes": by_class,
    "figure-confusion": confusion,
}
