"""What a round's line says of single models: client 0 class by class, and at the end of a run who was called what."""

from __future__ import annotations

from collections.abc import Sequence

from fedssd.core.engine import Evaluation
from fedssd.simulation.events import Line

MATRICES_IN_FULL = 20  # classes, and clients, up to which confusion matrices are recorded


def close_up(evaluation: Evaluation, clients: Sequence[int], rounds_left: int) -> Line:
    """Client 0's accuracy by class wherever it took part; confusion matrices of the last two rounds.

    The clients of the last round started from the global model of the round before, so that matrix is kept too.
    """
    line: Line = {}
    alone = len(evaluation.loss) == 1  # only the global model was evaluated
    if not alone and 0 in clients:
        mine = evaluation.class_accuracy[1 + clients.index(0)]
        line["client_0"] = {"class_acc": [round(value, 4) for value in mine.tolist()]}
    classes = evaluation.confusion.shape[-1]
    if rounds_left > 1 or classes > MATRICES_IN_FULL:
        return line
    line["confusion"] = {"global": evaluation.confusion[0].tolist()}
    if rounds_left == 0 and not alone and len(clients) <= MATRICES_IN_FULL:
        matrices = evaluation.confusion[1:].tolist()
        line["confusion"]["local"] = {str(c): matrix for c, matrix in zip(clients, matrices, strict=True)}
    return line
