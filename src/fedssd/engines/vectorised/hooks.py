"""A method's hooks outside the step, for many clients at once: start, targets, finish, upload."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedssd.core import tree
from fedssd.core.contract import Batch, ClientData, Local, Method, Work, parts_of
from fedssd.core.net import Net
from fedssd.core.plan import Plan
from fedssd.core.tree import Tree
from fedssd.engines.vectorised.cohort import Cohort, Share, by_run
from fedssd.engines.vectorised.layout import alike
from fedssd.engines.vectorised.lift import join, over_models
from fedssd.engines.vectorised.sizing import ModelSize, read_at_once, readers
from fedssd.engines.vectorised.step import Context, numbered

BLOCK = 256  # samples a teacher answers about at once when it answers once a round


def starts(method: Method, cohort: Cohort, context: Context) -> Tree:
    """Where each member's training begins, [M, …]."""

    def start(numbers: Tree, sent: Tree, memory: Tree) -> Tree:
        return numbered(method, numbers).local.start(sent, memory)

    lifted = over_models(start, cohort.width, (False, cohort.one_run))
    return lifted(context.numbers, context.sent, context.memory)


class Teachers:
    """What the frozen teachers say about chunks of batches; once a round for each sample where inputs do not change."""

    def __init__(
        self, method: Method, net: Net, cohort: Cohort, context: Context, budget: int, inside: bool = False
    ) -> None:
        """``inside``: the step itself asks them."""
        self.method, self.net, self.cohort, self.context = method, net, cohort, context
        silent = all(type(part).targets is Local.targets for part in parts_of(method.local))
        self.inside = inside and not silent
        self.silent = silent or self.inside
        self._apart = getattr(net, "channels_last", False)  # a large model: one batch at a time, in its own layout
        self._shares: dict[int, list[Share]] = {}
        self._kept: Tree | None = None
        own = cohort.phase.data == "private"
        if own and not (self.silent or cohort.world.pipeline.random or cohort.schedule.epochs == 1):
            self._kept = self._once(budget)

    def targets(self, plan: Plan, batch: Batch) -> Tree:
        """Targets for batches [S, w, B, …]: leaves [S, w, …]."""
        if self._kept is None:
            return self._ask(batch)
        width = plan.position.shape[1]
        model = torch.arange(width, device=plan.position.device)[:, None]
        return tree.map_tree(lambda leaf: leaf[model, plan.position], self._kept)

    def _ask(self, batch: Batch) -> Tree:
        """One run after another: its members share the message, so its teacher is one model and one large batch."""
        width = batch.y.shape[1]
        if len(self.cohort.jobs) == 1:
            return self._ask_run(self.cohort.jobs[0].sent, slice(0, width), batch)
        if width not in self._shares:  # kept: a list made into a device's tensor waits for the device
            self._shares[width] = by_run(self.cohort, width)
        shares = self._shares[width]
        found = []
        for job, places in shares:
            own = Batch(*(part[:, places] for part in batch[:3]), *(part[places] for part in batch[3:]))
            found.append(self._ask_run(job.sent, places, own))
        back = torch.argsort(torch.cat([share.places for share in shares]))
        return tree.map_tree(lambda *parts: torch.cat(parts, dim=1).index_select(1, back), *found)

    @torch.no_grad()
    def _ask_run(self, sent: Tree, index: Any, batch: Batch) -> Tree:
        def about(numbers: Tree, memory: Tree, x: Tensor, y: Tensor, mask: Tensor, *held: Tensor) -> Tree:
            local = numbered(self.method, numbers).local

            def step(*now: Tensor) -> Tree:
                return local.targets(self.net, sent, memory, Batch(now[0], now[1], now[2], *held))

            if self._apart:
                return tree.stack([step(*now) for now in zip(x, y, mask, strict=True)])
            return vmap(step)(x, y, mask)  # one step's x is [B, …], all steps' [S, B, …]

        numbers, memory = (
            tree.map_tree(lambda leaf: leaf[index], part) for part in (self.context.numbers, self.context.memory)
        )
        x, y, mask = (part.transpose(0, 1) for part in batch[:3])  # [w, S, B, …]
        found = over_models(about, len(y))(numbers, memory, x, y, mask, *batch[3:])
        return tree.map_tree(lambda leaf: leaf.transpose(0, 1), found)

    def _once(self, budget: int) -> Tree | None:
        """Every member's targets for all its samples [M, n, …]; nothing where they do not fit or are not per sample."""
        cohort = self.cohort
        block = min(BLOCK, cohort.rows.shape[1])
        block += block == cohort.world.classes  # so that a target per class is not mistaken for one per sample
        plan = cohort.everything(block)
        if not self._per_sample(plan):
            return None
        found = []
        for step in range(len(plan.position)):
            part = Plan(*(leaf[step : step + 1] for leaf in plan))
            found.append(self._ask(cohort.batch_of(part)))
            if tree.size_in_bytes(found[-1]) * len(plan.position) > budget:
                return None
        return tree.map_tree(lambda *parts: torch.cat(parts, dim=2)[0], *found)

    def _per_sample(self, plan: Plan) -> bool:
        """Whether a sample's targets are the same in other company: half a block says of each what the whole says."""
        half = plan.position.shape[2] // 2
        whole, alone = (
            tree.leaves(self._ask(self.cohort.batch_of(Plan(*(leaf[:1, :, :count] for leaf in plan)))))
            for count in (2 * half, half)
        )
        return half > 0 and all(
            a.ndim > 2
            and a.shape[2] == 2 * half
            and a[:, :, :half].shape == b.shape
            and torch.allclose(a[:, :, :half], b)
            for a, b in zip(whole, alone, strict=True)
        )


def work_of(method: Method, cohort: Cohort, context: Context) -> Work:
    """What each member did in a phase."""
    steps = torch.tensor(cohort.steps, dtype=cohort.world.dtype, device=cohort.world.device)
    length = vmap(lambda numbers, taken: numbered(method, numbers).solver.length(taken))(context.numbers, steps)
    return Work(context.samples, steps, length)


def close(
    method: Method, net: Net, cohort: Cohort, context: Context, weights: Tree, work: Work, size: ModelSize
) -> tuple[Tree, Tree, Tree]:
    """After local training: uploads, memories and reports; those who read their data as many at a time as fit, and
    beside others who have about as much."""
    device, parts = cohort.world.device, [slice(0, cohort.width)]
    if method.reads_data:
        parts = alike([member.samples for member in cohort.members], readers(size, device))
    found = [
        _close_part(
            method, net, cohort, context, weights, work, part, read_at_once(size, part.stop - part.start, device)
        )
        for part in parts
    ]
    got, memories, reports = (join([part[place] for part in found]) for place in range(3))
    return got, memories, reports


@torch.no_grad()
def _close_part(
    method: Method,
    net: Net,
    cohort: Cohort,
    context: Context,
    weights: Tree,
    work: Work,
    part: slice,
    samples: int,
) -> tuple[Tree, Tree, Tree]:
    def close_one(
        sent: Tree,
        public: Tensor | None,
        numbers: Tree,
        own: Tree,
        memory: Tree,
        x: Tensor,
        y: Tensor,
        mask: Tensor,
        done: Work,
    ) -> tuple[Tree, Tree, Tree]:
        local = numbered(method, numbers).local
        stored = data._replace(x=x, y=y, mask=mask, public=public, at_once=samples) if data is not None else None
        new, report = local.finish(net, own, sent, memory, stored, done)
        return local.upload(net, own, sent, new), new, report

    def cut(stacked: Tree) -> Tree:
        return tree.map_tree(lambda leaf: leaf[part], stacked)

    data: ClientData | None = cohort.data(part) if method.reads_data else None
    none = context.samples[part]  # stands in for the data nobody reads
    x, y, mask = (data.x, data.y, data.mask) if data is not None else (none, none, none)
    sent = context.sent if cohort.one_run else cut(context.sent)
    public = cohort.public
    if public is not None:
        public = public[0] if cohort.one_run else public[cohort.runs[part]]
    lifted = over_models(close_one, len(none), (cohort.one_run, cohort.one_run))
    found: tuple[Tree, Tree, Tree] = lifted(
        sent,
        public,
        cut(context.numbers),
        cut(weights),
        cut(context.memory),
        x,
        y,
        mask,
        Work(*(column[part] for column in work)),
    )
    return found
