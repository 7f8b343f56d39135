"""One pass of models on the device: who they are, and the batches each of them sees."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedssd.core import tree
from fedssd.core.contract import Batch, ClientData
from fedssd.core.engine import Job, World
from fedssd.core.plan import Phase, Plan, Schedule, batches, orders
from fedssd.core.tree import Tree
from fedssd.data.augment import Augmentation
from fedssd.engines.kernels.net import Draws
from fedssd.engines.vectorised.layout import Member
from fedssd.engines.vectorised.lift import join, take
from fedssd.engines.vectorised.step import Context, method_numbers

SORTED_AT_ONCE = 1 << 25  # sort keys; several 64-bit copies of them live at a time


class Cohort:
    """The members of a pass, their rows and their orders in one phase of the round, as tensors."""

    def __init__(
        self,
        jobs: Sequence[Job],
        members: Sequence[Member],
        world: World,
        schedule: Schedule,
        phase: Phase,
        kernels: bool = False,
    ) -> None:
        self.jobs, self.members, self.world, self.kernels = jobs, members, world, kernels
        self.phase, self.schedule = phase, phase.schedule(schedule)
        self.round = jobs[0].round
        self.public = None if jobs[0].public is None else torch.stack([public_of(job) for job in jobs])  # [R, P, …]
        counts = [phase.samples(member.samples, public_size(jobs[0])) for member in members]
        self.batch = max(self.schedule.batch_size(count) for count in counts)
        self.rows = pad_sequence([member.rows for member in members], batch_first=True).to(world.device)  # [M, n]
        self.samples = self._integers(member.samples for member in members)
        self.counts = self._counts()  # [M, K]
        self.clients = self._integers(member.client for member in members)
        self.seeds = self._integers(jobs[member.run].seed for member in members)
        self.visited = self._integers(counts)
        self.per_epoch = self._integers(self.schedule.steps_per_epoch(count) for count in counts)
        self.runs = self._integers(member.run for member in members)
        self.steps = [self.schedule.steps(count) for count in counts]
        with self._drawing():
            self.order = self._orders(max(counts))  # [M, E, n]

    @property
    def width(self) -> int:
        return len(self.members)

    @property
    def one_run(self) -> bool:
        """Whether all members hear the same message, which then needs no copies."""
        return len(self.jobs) == 1

    def _drawing(self) -> AbstractContextManager[object]:
        return Draws() if self.kernels else nullcontext()

    def _integers(self, values: object) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self.world.device)  # type: ignore[call-overload]

    def _counts(self) -> Tensor:
        """How many samples of each class every member holds."""
        y = self.world.y[self.rows]
        own = (torch.arange(y.shape[1], device=y.device) < self.samples[:, None]) & (y >= 0)
        counts = torch.zeros(len(y), self.world.classes, dtype=self.world.dtype, device=y.device)
        return counts.scatter_add_(1, y.clamp(min=0), own.to(counts.dtype))

    def _orders(self, longest: int) -> Tensor:
        at_once = max(1, SORTED_AT_ONCE // (longest * self.schedule.epochs))
        parts = zip(*(torch.split(part, at_once) for part in (self.seeds, self.clients, self.visited)), strict=True)
        purpose = self.phase.purpose
        return torch.cat([orders(self.schedule, s, self.round, c, n, longest, purpose) for s, c, n in parts])

    def plan(self, first: int, last: int, width: int) -> Plan:
        """Steps ``first`` … ``last − 1`` of the first ``width`` models, step first: [S, w, B]."""
        head = [part[:width] for part in (self.order, self.seeds, self.clients, self.visited, self.per_epoch)]
        order, seeds, clients, visited, per_epoch = head
        steps = torch.arange(first, last, device=self.world.device)
        with self._drawing():
            found = batches(self.schedule, order, seeds, self.round, clients, visited, per_epoch, steps, self.batch)
        if self.phase.data == "public":
            found = found._replace(position=found.position + self.samples[:width, None, None])
        return Plan(*(part.transpose(0, 1) for part in found))

    def everything(self, block: int) -> Plan:
        """Each sample once, in stored order, in blocks: [S, M, block]."""
        steps = -(-self.rows.shape[1] // block)
        position = torch.arange(steps * block, device=self.world.device).view(steps, 1, block)
        mask = position < self.samples[:, None]
        position = torch.where(mask, position, 0)
        return Plan(position, torch.zeros_like(position), mask)

    @property
    def looked_up(self) -> bool:
        """Whether a kernel makes a step's batch from stored bytes, so that a chunk need hold no images."""
        if not self.kernels or self.phase.data != "private":
            return False
        from fedssd.engines.kernels import augment

        pipeline = self.world.pipeline
        return isinstance(pipeline, Augmentation) and augment.covers(pipeline, self.world.x, self.world.dtype)

    def visits(self, plan: Plan) -> tuple[Any, Tensor, Tensor]:
        """Which samples a plan visits and how, their labels, and which count: [S, w, B]."""
        from fedssd.engines.kernels import augment

        model = torch.arange(plan.position.shape[1], device=self.world.device)[:, None]
        index, world = self.rows[model, plan.position].contiguous(), self.world
        assert isinstance(world.pipeline, Augmentation)
        with self._drawing():
            made = augment.visits(world.pipeline, index, plan.key)
        return made, world.y[index], plan.mask.to(world.dtype).contiguous()

    def batch_of(self, plan: Plan) -> Batch:
        """The samples of a plan, ready for the models: [S, w, B, …]; ``samples`` is [w], ``counts`` [w, K]."""
        world, width = self.world, plan.position.shape[1]
        samples, model = self.samples[:width], torch.arange(width, device=world.device)[:, None]
        own = plan.position if self.phase.data == "private" else plan.position.clamp(max=samples[:, None] - 1)
        index = self.rows[model, own]  # [S, w, B]
        x, y = world.pipeline.train(world.x, index, plan.key, world.dtype), world.y[index]
        if self.public is not None and self.phase.data != "private":
            place = plan.position - samples[:, None]  # behind the client's own samples: the public set's
            beyond = place >= 0
            found = self.public[self.runs[:width, None], place.clamp(min=0)]
            x = torch.where(beyond.view(*beyond.shape, *[1] * (x.ndim - beyond.ndim)), found, x)
            y = torch.where(beyond, -1 - place, y)
        return Batch(x, y, plan.mask.to(world.dtype), samples.to(world.dtype), self.counts[:width])

    def data(self, part: slice) -> ClientData:
        """All samples of some members as stored, padded, for methods that measure something on them: [m, n, …]."""
        world = self.world
        longest = int(max(member.samples for member in self.members[part]))
        rows = self.rows[part, :longest]
        mask = torch.arange(longest, device=world.device) < self.samples[part, None]
        return ClientData(
            world.x[rows], world.y[rows], mask.to(world.dtype), lambda stored: world.pipeline.test(stored, world.dtype)
        )

    def context(self) -> Context:
        """Numbers, message and memories of every member."""
        place = self._integers(self._offsets()[m.run] + m.place for m in self.members)
        memory = take(join([job.memories for job in self.jobs]), place)
        sent = self.jobs[0].sent if self.one_run else take(tree.stack([job.sent for job in self.jobs]), self.runs)
        return Context(self._numbers(), sent, memory, self.samples.to(self.world.dtype), self.counts)

    def _offsets(self) -> list[int]:
        ends = [0]
        for job in self.jobs:
            ends.append(ends[-1] + len(job.clients))
        return ends

    def _numbers(self) -> Tree:
        def per_member(*values: float | Tensor) -> Tensor:
            found = [torch.as_tensor(value, dtype=self.world.dtype, device=self.world.device) for value in values]
            return torch.stack(found)[self.runs]

        return tree.map_tree(per_member, *(method_numbers(job.method) for job in self.jobs))


def public_of(job: Job) -> Tensor:
    """The public set of a job whose method needs one."""
    if job.public is None:
        raise ValueError(f"method {job.method.local.name!r} trains on a public set, and there is none")
    return job.public


def public_size(job: Job) -> int:
    """How many samples the public set has."""
    return 0 if job.public is None else len(job.public)


class Share(NamedTuple):
    """The members of one run within a pass."""

    job: Job
    places: Tensor  # their positions in the pass, ascending


def by_run(cohort: Cohort, width: int) -> list[Share]:
    """The first ``width`` members, run by run: those of one run hear the same message."""
    places: dict[int, list[int]] = {}
    for position, member in enumerate(cohort.members[:width]):
        places.setdefault(member.run, []).append(position)
    device = cohort.world.device
    return [Share(cohort.jobs[run], torch.tensor(found, device=device)) for run, found in sorted(places.items())]
