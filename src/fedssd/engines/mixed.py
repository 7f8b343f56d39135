"""Different models in one federation: each engine trains the clients that hold its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Method, Work
from fedssd.core.engine import Engine, Evaluation, Job
from fedssd.core.mixed import Mixed
from fedssd.core.round import Trained, sent_to
from fedssd.core.tree import Tree


class MixedEngine:
    """One engine a model, all of one kind."""

    def __init__(self, net: Mixed, engines: Mapping[str, Engine]) -> None:
        self.net, self.engines = net, engines
        self.name = next(iter(engines.values())).name

    @property
    def prepared(self) -> float:
        """Seconds that went into compiling and the like, of all."""
        return sum(engine.prepared for engine in self.engines.values())

    def train(self, jobs: Sequence[Job]) -> list[Trained]:
        """Model by model, the clients that hold it, of all jobs at once."""
        parts: list[dict[str, Trained]] = [{} for _ in jobs]
        for name, engine in self.engines.items():
            runs = [run for run, job in enumerate(jobs) if name in self.net.places(job.clients)]
            found = engine.train([job_of(self.net, jobs[run], name) for run in runs]) if runs else []
            for run, trained in zip(runs, found, strict=True):
                parts[run][name] = trained
        return [joined(self.net, job.method, job.clients, own) for job, own in zip(jobs, parts, strict=True)]

    def evaluate(self, models: Tree) -> Evaluation:
        """Models stacked by name; what was found comes in the order of the names."""
        found = [self.engines[name].evaluate(stacked) for name, stacked in models.items()]
        return Evaluation(torch.cat([one.confusion for one in found]), torch.cat([one.loss for one in found]))


def job_of(net: Mixed, job: Job, name: str) -> Job:
    """The part of a job that is about the clients with one model."""
    places = net.places(job.clients)[name]
    return replace(
        job,
        sent=sent_to(job.sent, name),
        clients=[job.clients[place] for place in places],
        rows=[job.rows[place] for place in places],
        memories=job.memories[name],
    )


def parts_of_round(net: Mixed, job: Job, trained: Trained) -> dict[str, Trained]:
    """What came back, by model: the inverse of :func:`joined`."""
    found = {}
    for name, places in net.places(job.clients).items():
        cut = lambda leaf, held=places: leaf[held]  # noqa: E731
        reports = trained.reports[name] if job.method.local.shares_weights else tree.map_tree(cut, trained.reports)
        work, figures = Work(*map(cut, trained.work)), tree.map_tree(cut, trained.figures)
        found[name] = Trained(trained.got[name], trained.local[name], trained.memories[name], reports, work, figures)
    return found


def joined(net: Mixed, method: Method, clients: Sequence[int], parts: dict[str, Trained]) -> Trained:
    """What has a model's shape stays with its model, the rest goes into the order of the clients."""
    places = net.places(clients)
    back = torch.argsort(torch.tensor([place for name in parts for place in places[name]]))

    def in_order(*columns: Tensor) -> Tensor:
        return torch.cat(columns)[back.to(columns[0].device)]

    got, local, memories, reports = (
        {name: getattr(part, field) for name, part in parts.items()}
        for field in ("got", "local", "memories", "reports")
    )
    work = Work(*(in_order(*columns) for columns in zip(*(part.work for part in parts.values()), strict=True)))
    figures = tree.map_tree(in_order, *(part.figures for part in parts.values()))
    if not method.local.shares_weights:
        reports = tree.map_tree(in_order, *reports.values())
    return Trained(got, local, memories, reports, work, figures)
