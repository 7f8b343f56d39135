"""What client 8 keeps of the global model and what client 0 makes of each class: figures as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from fedssd import Result
from studies.paper.formats import By, interval, paired, spread, table
from studies.paper.paper import CIFAR10, EXPERIMENTS, NAMES, THEIRS
from studies.paper.results import Runs

CLIENT = 8  # whose confusion matrices the paper shows
LEARNT, KEPT = (0, 3, 4, 5, 8), (1, 2, 6, 7)  # classes that its local training learns, and that FedSSD preserves
SEEDS = range(10)  # as many as anybody has run
Recalls = dict[int, tuple[float, ...]]  # by seed, class by class


def kept(runs: Runs) -> str:
    """Recall of client 8's model in the last round and of the one it was sent, for Table 1's methods and Table 3's.

    The paper says of its client 8 which classes local training learns and of which FedSSD preserves what the global
    model knows; in a split like it, the client holds the first and hardly any of the others.
    """
    rows, shown = [], set[str]()
    base: By = {}
    for column in (CIFAR10, *EXPERIMENTS["table3"].columns):
        for method in column.methods:
            recipe = column.setting(method=method)
            done = runs.by_seed(recipe, SEEDS)
            after = {seed: own for seed, run in done.items() if (own := after_training(run))}
            sent = {seed: own for seed, run in done.items() if seed in after and (own := _sent(run))}
            key = runs.key(recipe)[0]
            if after and key not in shown:  # a cell of two tables is shown once
                shown.add(key)
                name = NAMES[method] + ("" if column is CIFAR10 else f", {column.title}")
                keeps = _mean(after, KEPT)
                base = keeps if method == THEIRS else base
                less = "–" if keeps is base else interval(paired(base, keeps))
                others = [_spread(after, LEARNT), _spread(sent, KEPT), _spread(sent, LEARNT)]
                rows.append([name, spread(list(keeps.values())), less, *others])
    words = [", ".join(map(str, classes)) for classes in (KEPT, LEARNT)]
    heads = ("method", f"client {CLIENT} keeps of {words[0]}, %", "less FedAvg's [95 %]", f"knows of {words[1]}, %")
    return table((*heads, f"the global model it was sent, of {words[0]}, %", f"of {words[1]}, %"), rows)


def after_training(run: Result) -> tuple[float, ...]:
    """Recall of every class by client 8's model after the last round's training, as far as it was recorded."""
    return _recall(run.rounds[-1].client_confusion.get(CLIENT, ()))


def _sent(run: Result) -> tuple[float, ...]:
    """The same of the global model that it was sent; a run without matrices may have every class's accuracy."""
    before = run.rounds[-2]
    return _recall(before.confusion) or tuple(before.class_accuracy)


def _recall(matrix: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(row[place] / sum(row) for place, row in enumerate(matrix))


def _mean(found: Recalls, classes: Sequence[int]) -> By:
    return {seed: 100 * fmean(recalls[one] for one in classes) for seed, recalls in found.items()}


def _spread(found: Recalls, classes: Sequence[int]) -> str:
    return spread(list(_mean(found, classes).values())) if found else "–"


def learnt(runs: Runs) -> str:
    """Class by class the model that client 0 is sent and what it makes of it, each as a mean over the rounds."""
    heads = ("class", "samples of client 0", "the model it is sent, %", "its own after training, %", "less it [95 %]")
    parts = []
    for column in EXPERIMENTS["figure-classes"].columns:
        done = runs.by_seed(column.setting(method=THEIRS), SEEDS)
        known = {seed: found for seed, run in done.items() if (found := _by_round(run))}
        if known:
            counts = done[min(done)].provenance["counts"][0]
            rows = [[str(number), str(count), *_figures(known, number)] for number, count in enumerate(counts)]
            parts.append(f"**{column.title}**\n\n{table(heads, rows)}")
    return "\n".join(parts)


ByRound = list[tuple[tuple[float, ...], tuple[float, ...]]]


def _by_round(run: Result) -> ByRound:
    """By round the accuracy of every class: of the model that is sent, known from the second on, and of client 0's."""
    return [
        (tuple(before.class_accuracy), tuple(one.client_0_class_accuracy))
        for before, one in pairwise(run.rounds)
        if before.class_accuracy and one.client_0_class_accuracy
    ]


def _figures(known: dict[int, ByRound], number: int) -> list[str]:
    sent, after = (
        {seed: 100 * fmean(one[place][number] for one in rounds) for seed, rounds in known.items()} for place in (0, 1)
    )
    return [spread(list(sent.values())), spread(list(after.values())), interval(paired(sent, after))]
