"""What is recorded of a round: what was measured, sent, distilled and dropped; and of all rounds together."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Local, parts_of
from fedssd.core.engine import Evaluation, Job, Trained
from fedssd.core.tree import Tree
from fedssd.recipe import Recipe
from fedssd.simulation.fields import NAN, Matrix, Vector
from fedssd.simulation.receive import Received
from fedssd.simulation.result import Round, Summary
from fedssd.simulation.setup import Federation

CREDIBILITY_IN_FULL = 20  # classes up to which the whole matrix is recorded; beyond, its diagonal
MATRICES_IN_FULL = 20  # classes, and clients, up to which confusion matrices are recorded


class Clock:
    """Seconds by purpose, with the device idle at every reading."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def move(self, purpose: str, other: str, seconds: float) -> None:
        """Count seconds of one purpose as those of another."""
        self.seconds[purpose] -= seconds
        self.seconds[other] = self.seconds.get(other, 0.0) + seconds

    @contextmanager
    def measure(self, purpose: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds[purpose] = self.seconds.get(purpose, 0.0) + time.perf_counter() - begun


def measure_round(
    federation: Federation, job: Job, received: Received, evaluation: Evaluation | None, seconds: dict[str, float]
) -> Round:
    """A round's record. ``forgetting`` is the new global model's accuracy less the mean of the local models'."""
    number = job.round + 1
    measured: dict[str, Any] = {}
    if evaluation is not None:
        left = federation.recipe.rounds - number
        measured = _accuracies(job, received, evaluation) | close_up(evaluation, job.clients, left)
    return Round(
        number=number,
        bytes_up=received.bytes_up,
        bytes_down=received.bytes_down,
        credibility=_credibility(job.sent),
        distillation=_distillation(federation.method.local, received.trained),
        drift=_drift(job.sent, received.trained),
        clients=tuple(job.clients),
        dropped=received.dropped,
        unchanged=_unchanged(received),
        seconds=seconds,
        **measured,
    )


def summarise(
    recipe: Recipe, split_hash: str, rounds: Sequence[Round], seconds: float, failed: str = "", ended: str = ""
) -> Summary:
    """What these rounds came to."""
    measured = [one for one in rounds if one.accuracy is not None]
    last = measured[-1] if measured else None
    best = max(measured, key=lambda one: one.accuracy or 0.0) if measured else None
    return Summary(
        method=recipe.method,
        seed=recipe.seed,
        rounds=len(rounds),
        of_rounds=recipe.rounds,
        bytes_up=sum(one.bytes_up for one in rounds),
        bytes_down=sum(one.bytes_down for one in rounds),
        server=recipe.server,
        data=recipe.data,
        partition=recipe.partition,
        accuracy=last.accuracy if last else None,
        loss=last.loss if last else None,
        local_accuracy=last.local_accuracy if last else None,
        forgetting=last.forgetting if last else None,
        best_accuracy=best.accuracy if best else None,
        best_round=best.number if best else None,
        dropped=sum(len(one.dropped) for one in rounds),
        unchanged_rounds=sum(bool(one.unchanged) for one in rounds),
        diverged=next((one.number for one in rounds if one.diverged), None),
        failed=failed,
        ended=ended,
        privacy=rounds[-1].privacy if rounds else None,
        seconds=round(seconds, 3),
        recipe_hash=recipe.hash,
        split_hash=split_hash,
    )


def _unchanged(received: Received) -> str:
    """Why no update went in, where none did."""
    if received.clients:
        return ""
    if received.rolled_back:
        return "rolled back"
    return "refused" if received.bytes_up else "lost"


def _accuracies(job: Job, received: Received, evaluation: Evaluation) -> dict[str, Any]:
    accuracy, by_class = evaluation.accuracy.tolist(), evaluation.class_accuracy
    found = {
        "accuracy": accuracy[0],
        "loss": _or_nan(float(evaluation.loss[0])),
        "class_accuracy": _vector(by_class[0]),
    }
    if len(accuracy) > 1 and received.clients:
        places = [1 + job.clients.index(client) for client in received.clients]
        mean = sum(accuracy[place] for place in places) / len(places)
        found |= {"local_accuracy": mean, "forgetting": accuracy[0] - mean}
        each = zip(received.clients, places, strict=True)
        found["client_accuracy"] = {client: accuracy[place] for client, place in each}
        found["local_class_accuracy"] = _vector(by_class[places].mean(0))
    return found


def _credibility(sent: Tree) -> Matrix | Vector:
    """The credibility matrix that was sent, wherever in a sum of methods it is."""
    for path, leaf in tree.flatten({k: v for k, v in sent.items() if k != "weights"}).items():
        if path.split("/")[-1] == "credibility":
            shown = leaf if len(leaf) <= CREDIBILITY_IN_FULL or leaf.dim() == 1 else leaf.diagonal()
            return tuple(map(_vector, shown)) if shown.dim() > 1 else _vector(shown)
    return ()


def _distillation(local: Local, trained: Trained) -> dict[str, float]:
    """How much was distilled, as means over every sample that was trained on this round; for methods with a teacher."""
    if all(type(part).targets is Local.targets for part in parts_of(local)) or not len(trained.work.samples):
        return {}
    sums = {name: float(value.sum()) for name, value in trained.figures.items()}
    count, entropy, penalty = (sums.pop(name) for name in ("count", "entropy", "penalty"))
    found = {**{name: value / count for name, value in sums.items()}, "ratio": penalty / entropy if entropy else 0.0}
    return {name: _or_nan(value) for name, value in found.items()}


def _drift(sent: Tree, trained: Trained) -> float | None:
    """How far local training went, ‖w_i − w_g‖ over all parameters, as a mean over the accepted clients.

    Where no weights go down or up, or those of several models, there is no one distance.
    """
    if "weights" not in sent or "params" not in trained.local or not len(trained.work.samples):
        return None
    pairs = zip(tree.leaves(trained.local["params"]), tree.leaves(sent["weights"]["params"]), strict=True)
    squares = [(local - start).flatten(1).square().sum(1) for local, start in pairs]  # each [C]
    return _or_nan(float(torch.stack(squares).sum(0).sqrt().mean()))


def _or_nan(value: float) -> float:
    return value if math.isfinite(value) else NAN


def _vector(values: Tensor) -> Vector:
    """Four decimals are plenty for a figure in a record, and keep its lines short."""
    return tuple(round(value, 4) for value in values.tolist())


def close_up(evaluation: Evaluation, clients: Sequence[int], rounds_left: int) -> dict[str, Any]:
    """Client 0's accuracy by class wherever it took part; confusion matrices of the last two rounds.

    The clients of the last round started from the global model of the round before, so that matrix is kept too.
    """
    found: dict[str, Any] = {}
    alone = len(evaluation.loss) == 1  # only the global model was evaluated
    if not alone and 0 in clients:
        mine = evaluation.class_accuracy[1 + clients.index(0)]
        found["client_0_class_accuracy"] = tuple(round(value, 4) for value in mine.tolist())
    classes = evaluation.confusion.shape[-1]
    if rounds_left > 1 or classes > MATRICES_IN_FULL:
        return found
    found["confusion"] = _matrix(evaluation.confusion[0].tolist())
    if rounds_left == 0 and not alone and len(clients) <= MATRICES_IN_FULL:
        matrices = map(_matrix, evaluation.confusion[1:].tolist())
        found["client_confusion"] = dict(zip(clients, matrices, strict=True))
    return found


def _matrix(rows: list[list[float]]) -> Matrix:
    return tuple(map(tuple, rows))
