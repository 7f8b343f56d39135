"""A round's line in the record: what was measured, sent, distilled and dropped."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Local, parts_of
from fedssd.core.engine import Evaluation, Job
from fedssd.core.round import Trained
from fedssd.core.tree import Tree
from fedssd.simulation.closeup import close_up
from fedssd.simulation.events import Line
from fedssd.simulation.receive import Received
from fedssd.simulation.setup import Federation

CREDIBILITY_IN_FULL = 20  # classes up to which the whole matrix is recorded; beyond, its diagonal


def round_line(
    federation: Federation, job: Job, received: Received, evaluation: Evaluation | None, seconds: dict[str, float]
) -> Line:
    """A round's record. ``forgetting`` is the new global model's accuracy less the mean of the local models'."""
    line: Line = {"round": job.round + 1}
    if evaluation is not None:
        left = federation.recipe.rounds - line["round"]
        line |= _accuracies(job, received, evaluation) | close_up(evaluation, job.clients, left)
    line |= _credibility(job.sent) | _distillation(federation.method.local, received.trained)
    line |= _drift(job.sent, received.trained)
    line |= {"clients": job.clients, "dropped": {str(client): why for client, why in received.dropped.items()}}
    line |= {} if received.clients else {"unchanged": "refused" if received.bytes_up else "lost"}
    return line | {"bytes_up": received.bytes_up, "bytes_down": received.bytes_down, "seconds": seconds}


def _accuracies(job: Job, received: Received, evaluation: Evaluation) -> Line:
    accuracy, by_class = evaluation.accuracy.tolist(), evaluation.class_accuracy
    loss = float(evaluation.loss[0])
    measured = {"acc": accuracy[0], "loss": loss if math.isfinite(loss) else None, "class_acc": _rounded(by_class[0])}
    line: Line = {"global": measured}
    if len(accuracy) > 1 and received.clients:
        places = [1 + job.clients.index(client) for client in received.clients]
        mean = sum(accuracy[place] for place in places) / len(places)
        per_client = {str(client): accuracy[place] for client, place in zip(received.clients, places, strict=True)}
        line["local"] = {"acc_mean": mean, "acc": per_client, "class_acc": _rounded(by_class[places].mean(0))}
        line["forgetting"] = accuracy[0] - mean
    return line


def _credibility(sent: Tree) -> Line:
    """The credibility matrix that was sent, wherever in a sum of methods it is."""
    for path, leaf in tree.flatten({k: v for k, v in sent.items() if k != "weights"}).items():
        if path.split("/")[-1] == "credibility":
            return {"credibility": _rounded(leaf if len(leaf) <= CREDIBILITY_IN_FULL else leaf.diagonal())}
    return {}


def _distillation(local: Local, trained: Trained) -> Line:
    """How much was distilled, as means over every sample that was trained on this round; for methods with a teacher."""
    if all(type(part).targets is Local.targets for part in parts_of(local)) or not len(trained.work.samples):
        return {}
    sums = {name: float(value.sum()) for name, value in trained.figures.items()}
    count, entropy, penalty = (sums.pop(name) for name in ("count", "entropy", "penalty"))
    found = {**{name: value / count for name, value in sums.items()}, "ratio": penalty / entropy if entropy else 0.0}
    return {"distillation": {name: value if math.isfinite(value) else None for name, value in found.items()}}


def _drift(sent: Tree, trained: Trained) -> Line:
    """How far local training went, ‖w_i − w_g‖ over all parameters, as a mean over the accepted clients.

    Where no weights go down or up, or those of several models, there is no one distance.
    """
    if "weights" not in sent or "params" not in trained.local or not len(trained.work.samples):
        return {}
    pairs = zip(tree.leaves(trained.local["params"]), tree.leaves(sent["weights"]["params"]), strict=True)
    squares = [(local - start).flatten(1).square().sum(1) for local, start in pairs]  # each [C]
    distance = float(torch.stack(squares).sum(0).sqrt().mean())
    return {"drift": distance if math.isfinite(distance) else None}


def _rounded(values: Tensor) -> list[Any]:
    """Four decimals are plenty for a figure in a record, and keep its lines short."""
    return [[round(v, 4) for v in row] if isinstance(row, list) else round(row, 4) for row in values.tolist()]
