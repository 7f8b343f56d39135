"""The reference engine: a plain loop over clients. The one you read, and the one you trust."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.contract import Batch, ClientData, Work
from fedssd.core.engine import Evaluation, Job, Trained, World
from fedssd.core.net import Net
from fedssd.core.plan import Schedule, plan_phase
from fedssd.core.step import begin, local_step
from fedssd.core.tree import Tree
from fedssd.methods.distillation import confusion_counts

EVALUATION_BATCH = 250  # what the paper's CNN makes of as many images stays in a cache: twice as fast as 1000


class Client(NamedTuple):
    """What one client's local training leaves behind."""

    got: Tree
    local: Tree
    memory: Tree
    report: Tree
    work: Work
    figures: Tree


class ReferenceEngine:
    """One client after another, one step after another, no padding."""

    name = "reference"
    prepared = 0.0  # it takes every step as it comes

    def __init__(self, net: Net, world: World, schedule: Schedule) -> None:
        self.net, self.world, self.schedule = net, world, schedule

    def train(self, jobs: Sequence[Job]) -> list[Trained]:
        """Local training of every job's cohort."""
        return [self._train_cohort(job) for job in jobs]

    def _train_cohort(self, job: Job) -> Trained:
        done = []
        for place, client in enumerate(job.clients):
            memory = tree.row(job.memories, place)
            done.append(self.train_client(job, client, job.rows[place], memory))
        work = Work(*(torch.stack(column) for column in zip(*(one.work for one in done), strict=True)))
        got, local, memories, reports, figures = (
            tree.stack([getattr(one, name) for one in done]) for name in ("got", "local", "memory", "report", "figures")
        )
        return Trained(got, local, memories, reports, work, figures)

    def train_client(self, job: Job, client: int, rows: Tensor, memory: Tree) -> Client:
        """The whole round of one client."""
        method, local = job.method, job.method.local
        weights: Tree = local.start(job.sent, memory)
        held = self._held(rows)
        figures: Tree = {}
        public = 0 if job.public is None else len(job.public)
        taken = length = self._number(0)
        for phase in local.phases(job.sent):
            progress = begin(method, weights, figures)
            steps = plan_phase(phase, self.schedule, job.seed, job.round, client, len(rows), public)
            for position, key in steps:
                batch = self._batch(rows, position, key, job.public, held)
                with torch.no_grad():
                    target = local.targets(self.net, job.sent, memory, batch)
                progress = local_step(method, self.net, progress, job.sent, memory, batch, target)
            weights, figures = progress.weights, progress.figures
            count = self._number(len(steps))
            taken, length = taken + count, length + method.solver.length(count)
        work = Work(self._number(len(rows)), taken, length)
        with torch.no_grad():
            new, report = local.finish(self.net, weights, job.sent, memory, self._data(rows, job.public), work)
            got = local.upload(self.net, weights, job.sent, new)
        return Client(got, weights, new, report, work, figures)

    def work(self, job: Job, samples: int) -> Work:
        """What a client of so many samples does in the round, without doing it."""
        public = 0 if job.public is None else len(job.public)
        taken = length = self._number(0)
        for phase in job.method.local.phases(job.sent):
            count = self._number(phase.schedule(self.schedule).steps(phase.samples(samples, public)))
            taken, length = taken + count, length + job.method.solver.length(count)
        return Work(self._number(samples), taken, length)

    def evaluate(self, models: Tree) -> Evaluation:
        """Every model of a stacked tree on the whole test set."""
        found = [self._evaluate_one(tree.row(models, index)) for index in range(len(tree.leaves(models)[0]))]
        return Evaluation(torch.stack([f.confusion for f in found]), torch.stack([f.loss for f in found]))

    @torch.no_grad()
    def _evaluate_one(self, weights: Tree) -> Evaluation:
        world = self.world
        counts = torch.zeros(world.classes, world.classes, dtype=torch.int64, device=world.device)
        loss = self._number(0)
        for x, y in zip(*(torch.split(part, EVALUATION_BATCH) for part in (world.test_x, world.test_y)), strict=True):
            logits = self.net(weights, world.pipeline.test(x, world.dtype)).logits
            counts += confusion_counts(logits, y, world.classes).to(torch.int64)
            loss += F.cross_entropy(logits, y, reduction="sum")
        return Evaluation(counts, loss / len(world.test_y))

    def _held(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """How many samples a client holds, and how many of each class."""
        y = self.world.y[rows]
        counts = torch.bincount(y[y >= 0], minlength=self.world.classes)
        return self._number(len(rows)), counts.to(self.world.dtype)

    def _batch(
        self, rows: Tensor, position: Tensor, key: Tensor, public: Tensor | None, held: tuple[Tensor, Tensor]
    ) -> Batch:
        world = self.world
        position = position.to(rows.device)
        index = rows[position.clamp(max=len(rows) - 1)]
        x, y = world.pipeline.train(world.x, index, key.to(rows.device), world.dtype), world.y[index]
        mask = torch.ones(len(index), dtype=world.dtype, device=world.device)
        if public is not None:  # positions behind the client's own samples are the public set's
            beyond = position >= len(rows)
            x[beyond] = public[position[beyond] - len(rows)]
            y = torch.where(beyond, len(rows) - 1 - position, y)
        return Batch(x, y, mask, *held)

    def _data(self, rows: Tensor, public: Tensor | None) -> ClientData:
        world = self.world
        mask = torch.ones(len(rows), dtype=world.dtype, device=world.device)
        return ClientData(
            world.x[rows], world.y[rows], mask, lambda stored: world.pipeline.test(stored, world.dtype), public
        )

    def _number(self, value: float) -> Tensor:
        return torch.tensor(float(value), dtype=self.world.dtype, device=self.world.device)
