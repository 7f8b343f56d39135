"""What is measured on the test set after a round: the global model, and the clients' models that went into it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fedssd.core import tree
from fedssd.core.engine import Engine, Evaluation, Job
from fedssd.core.mixed import Mixed
from fedssd.core.net import Net
from fedssd.core.round import Trained
from fedssd.core.tree import Tree


def evaluate_round(
    engine: Engine,
    net: Net | Mixed,
    weights: Sequence[Tree],
    jobs: Sequence[Job],
    trained: Sequence[Trained],
    population: int,
    local: bool,
) -> list[Evaluation]:
    """For each run the global model first and, where wanted, its clients' models behind it, in the cohort's order.

    Where no weights are shared, the mean over the round's clients stands in for the global model. Where models differ
    and are shared, every client of the population counts with the global model of its own kind.
    """
    if isinstance(net, Mixed):
        found = zip(weights, jobs, trained, strict=True)
        return [_evaluate_mixed(engine, net, w, job, one, population, local) for w, job, one in found]
    shared = jobs[0].method.local.shares_weights
    models = []
    for own, one in zip(weights, trained, strict=True):
        alone = tree.map_tree(lambda leaf: leaf[None], own)
        models.append(one.local if not shared else _join([alone, one.local]) if local else alone)
    each = _split(engine.evaluate(_join(models)), len(jobs))
    return list(each) if shared else [_mean_first(one, [1.0] * len(one.loss), one) for one in each]


def _evaluate_mixed(
    engine: Engine, net: Mixed, weights: Tree, job: Job, trained: Trained, population: int, local: bool
) -> Evaluation:
    """One run. The clients' models come back by model, and are put into the cohort's order."""
    clients = None
    if local or not job.method.local.shares_weights:
        places = net.places(job.clients)
        back = torch.argsort(torch.tensor([place for name in trained.local for place in places[name]]))
        clients = Evaluation(*(part[back.to(part.device)] for part in engine.evaluate(trained.local)))
    if not job.method.local.shares_weights:
        assert clients is not None
        return _mean_first(clients, [1.0] * len(clients.loss), clients)
    holders = net.places(range(population))
    kinds = engine.evaluate({name: tree.map_tree(lambda leaf: leaf[None], weights[name]) for name in holders})
    return _mean_first(kinds, [float(len(held)) for held in holders.values()], clients)


def _mean_first(found: Evaluation, counts: Sequence[float], behind: Evaluation | None) -> Evaluation:
    """A weighted mean before the rest: all saw the same test set, so added counts have the mean of the shares."""
    weight = torch.tensor(counts, device=found.loss.device)
    confusion = torch.einsum("m,mij->ij", weight.to(torch.float64), found.confusion.to(torch.float64)).to(torch.int64)
    loss = (weight.to(found.loss.dtype) * found.loss).sum() / weight.sum()
    if behind is None:
        return Evaluation(confusion[None], loss[None])
    return Evaluation(torch.cat([confusion[None], behind.confusion]), torch.cat([loss[None], behind.loss]))


def _join(models: Sequence[Tree]) -> Tree:
    return tree.map_tree(lambda *parts: torch.cat(parts), *models)


def _split(found: Evaluation, runs: int) -> Iterator[Evaluation]:
    size = len(found.loss) // runs
    return (Evaluation(c, v) for c, v in zip(*(torch.split(part, size) for part in found), strict=True))
