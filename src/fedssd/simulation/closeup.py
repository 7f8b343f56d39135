"""What is recorded of single models: client 0 class by class, and at the end of a run who was called what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedssd.core.engine import Evaluation
from fedssd.simulation.fields import Matrix

MATRICES_IN_FULL = 20  # classes, and clients, up to which confusion matrices are recorded


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
