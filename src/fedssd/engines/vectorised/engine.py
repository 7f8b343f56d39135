"""The vectorised engine: all clients of a round, of one or several runs, as one batch of models."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fedssd.core import tree
from fedssd.core.contract import Work
from fedssd.core.engine import Evaluation, Job, Trained, World
from fedssd.core.net import Net
from fedssd.core.plan import Plan, Schedule
from fedssd.core.tree import Tree
from fedssd.data.augment import Augmentation
from fedssd.engines.kernels import available, too_large
from fedssd.engines.kernels.functorch import strange
from fedssd.engines.kernels.launching import rehearse
from fedssd.engines.kernels.net import StackedNet
from fedssd.engines.vectorised import sizing
from fedssd.engines.vectorised.cohort import Cohort, public_size
from fedssd.engines.vectorised.evaluate import evaluate
from fedssd.engines.vectorised.fit import first_line, misfit
from fedssd.engines.vectorised.flat import Flat, FlatByType
from fedssd.engines.vectorised.hooks import Teachers, close, starts, work_of
from fedssd.engines.vectorised.layout import (
    CHEAP_RUNGS,
    RUNGS,
    Member,
    fitted,
    groups,
    idle,
    ladder,
    members_of,
    rungs,
    same_program,
    static_part,
)
from fedssd.engines.vectorised.lift import TunedNet, join, take
from fedssd.engines.vectorised.precision import PRECISIONS, arithmetic
from fedssd.engines.vectorised.program import Chunk, LookUp, Program
from fedssd.engines.vectorised.step import Context, Step

STEPS_LOOKED_UP = 128  # steps of a chunk that holds places of images in their stead
KEPT_PROGRAMS = 8  # each holds its buffers and graphs; the oldest goes first


def _silent(_: str) -> None:
    pass


class VectorisedEngine:
    """Models side by side: stacked weights, one program a step, fewer models as clients finish."""

    name = "vectorised"

    def __init__(
        self,
        net: Net,
        world: World,
        schedule: Schedule,
        *,
        width: int | None = None,
        precision: str = "fp32",
        graphs: bool | None = None,
        compile: bool | None = None,
        kernels: bool | None = None,
        notice: Callable[[str], None] = _silent,
    ) -> None:
        _check(precision, world, width)
        self.world, self.schedule, self.width, self.notice = world, schedule, width, notice
        self.precision = precision
        self.graphs = world.device.type == "cuda" if graphs is None else graphs
        self.compile = compile
        # The compiler cannot see through our kernels: a compiled batch of small models goes without them.
        self.kernels = available(world.device, world.dtype) and not compile if kernels is None else kernels
        if strange():
            notice(f"vectorised: {strange()}, so small layers run through PyTorch, several times slower")
            self.kernels = False
        self._tried = not self.kernels
        if kernels is None and world.device.type == "cuda" and importlib.util.find_spec("triton") is None:
            notice("vectorised: Triton is missing, so small layers run through PyTorch, several times slower")
        self._plain = net
        self._programs: dict[Any, Program] = {}
        self._size: sizing.ModelSize | None = None
        self._evaluated_at_once = len(world.test_y)  # at most; fewer once memory ran out
        self._evaluated: set[tuple[int, int, int]] = set()  # models, models and samples at once
        self.prepared = 0.0  # seconds that went into compiling and capturing steps

    def train(self, jobs: Sequence[Job]) -> list[Trained]:
        """Local training of every job's cohort; jobs share a method but for its numbers, a model and a round."""
        same_program(jobs)
        sizes = list(dict.fromkeys(map(public_size, jobs)))
        if len(sizes) > 1:  # what is said about public sets of different sizes does not stack
            return self._by_public_size(jobs, sizes)
        self._try_kernels(jobs[0])
        self._choose_width(jobs[0])
        with arithmetic(self.world.device, self.precision, benchmark=self._alone(1)):
            members = members_of(jobs, self.schedule)
            done: list[Trained] = []
            order: list[Member] = []
            for group in groups(members, self.schedule, self._plain.has_batch_norm):
                while group:
                    taken = group[: self.width]
                    part = self._attempt(jobs, taken)
                    if part is None:  # out of memory: the width is now half
                        continue
                    done.append(part)
                    order += taken
                    group = group[len(taken) :]
            return self._sort_out(jobs, order, done)

    def _by_public_size(self, jobs: Sequence[Job], sizes: list[int]) -> list[Trained]:
        found: dict[int, Trained] = {}
        for size in sizes:
            places = [place for place, job in enumerate(jobs) if public_size(job) == size]
            found.update(zip(places, self.train([jobs[place] for place in places]), strict=True))
        return [found[place] for place in range(len(jobs))]

    def evaluate(self, models: Tree) -> Evaluation:
        """Every model of a stacked tree on the whole test set."""
        size = self._footprint(tree.row(models, 0))
        with arithmetic(self.world.device, self.precision, benchmark=False):
            width = sizing.default_width(size, 1, self.world.device)
            width = min(width, len(tree.leaves(models)[0]))
            block = sizing.evaluation_block(size, width, self.world.device, self.kernels)
            block = min(block, self._evaluated_at_once)
            while True:
                try:
                    self._rehearse_evaluation(models, width, block)
                    return evaluate(self._net(width), self.world, models, width, block, self.kernels)
                except torch.OutOfMemoryError:
                    if block == 1:
                        raise
                torch.cuda.empty_cache()
                block = self._evaluated_at_once = block // 2
                self.notice(f"vectorised: out of memory in evaluation, going on with {block} samples at a time")

    def _rehearse_evaluation(self, models: Tree, width: int, block: int) -> None:
        """Compile what an evaluation of this size asks of the kernels, the first time it is made."""
        size = (len(tree.leaves(models)[0]), width, block)
        if self.kernels and self.world.device.type == "cuda" and size not in self._evaluated:
            rehearse(lambda: evaluate(self._net(width), self.world, models, width, block, self.kernels))
            self._evaluated.add(size)

    def _has_prepared(self, seconds: float) -> None:
        self.prepared += seconds

    def _choose_width(self, job: Job) -> None:
        size = self._footprint(job.method.local.start(job.sent, tree.row(job.memories, 0)))
        if self.width is not None:
            return
        self.width = sizing.default_width(size, self.schedule.batch, self.world.device)
        self.notice(f"vectorised: up to {self.width} models of {size.parameters:,} parameters at once")

    def _footprint(self, weights: Tree) -> sizing.ModelSize:
        if self._size is None:
            some = self.world.pipeline.test(self.world.x[:2], self.world.dtype)
            self._size = sizing.footprint(self._plain, weights, some)
        return self._size

    def _try_kernels(self, job: Job) -> None:
        """Let the kernels answer once beside PyTorch; a model they do not fit goes without them."""
        if self._tried:
            return
        self._tried = True
        weights = job.method.local.start(job.sent, tree.row(job.memories, 0))
        some = self.world.pipeline.test(self.world.x[:2], self.world.dtype)
        why = misfit(self._plain, weights, some)
        if not why:
            return
        self.kernels = False
        self.notice(f"vectorised: our kernels do not fit this model ({why}), going on with PyTorch's layers")

    def _net(self, width: int) -> Net:
        """The net as a batch of ``width`` models runs it."""
        world, bf16, alone = self.world, self.precision == "bf16", self._alone(width)
        net = self._plain
        if not alone and self.kernels:
            net = StackedNet(net, "ieee" if self.precision == "fp32" else "tf32")
        elif world.device.type == "cpu" and not strange():
            net = StackedNet(net, None)
        return TunedNet(net, world.dtype, world.device, bf16, alone) if alone or bf16 else net

    def _alone(self, width: int) -> bool:
        """Whether this is one large model on an accelerator, which wants its own layout and the compiler."""
        large = self._size is not None and self._size.parameters >= sizing.LARGE_MODEL
        return width == 1 and large and self.world.device.type == "cuda"

    def _compiles(self, width: int) -> bool:
        """Whether a step of so many models is compiled."""
        return self._alone(width) if self.compile is None else self.compile

    def _attempt(self, jobs: Sequence[Job], members: Sequence[Member]) -> Trained | None:
        """One pass, or nothing when the device is too small for it: the next try has fewer programs kept, half the
        models, or no kernels."""
        try:
            return self._pass(jobs, members)
        except torch.OutOfMemoryError:
            others = len(self._programs) > 1
            if len(members) == 1 and not others:
                raise
            if others:
                said = "out of memory, letting go of the programs of other cohorts"
            else:
                self.width = len(members) // 2
                said = f"out of memory with {len(members)} models at once, going on with {self.width}"
        except Exception as error:
            if not (self.kernels and too_large(error)):
                raise
            self.kernels = False
            said = f"our kernels do not fit this device ({first_line(error)}), going on with PyTorch's layers"
        self._programs.clear()
        torch.cuda.empty_cache()
        self.notice(f"vectorised: {said}")
        return None

    def _pass(self, jobs: Sequence[Job], members: Sequence[Member]) -> Trained:
        """The whole round of some members, phase by phase, longest first."""
        method = jobs[0].method
        weights, done, figures = None, None, None
        for phase in method.local.phases(jobs[0].sent):
            cohort = Cohort(jobs, members, self.world, self.schedule, phase, self.kernels)
            context = cohort.context()
            weights = starts(method, cohort, context) if weights is None else weights
            weights, sums = self._phase(jobs, cohort, context, weights)
            work = work_of(method, cohort, context)
            done = work if done is None else Work(work.samples, done.steps + work.steps, done.length + work.length)
            figures = sums if figures is None else tree.map_tree(torch.add, figures, sums)
        assert done is not None  # there is a phase
        assert self._size is not None
        got, memories, reports = close(method, self._plain, cohort, context, weights, done, self._size)
        return Trained(got, weights, memories, reports, done, figures)

    def _phase(self, jobs: Sequence[Job], cohort: Cohort, context: Context, weights: Tree) -> tuple[Tree, Tree]:
        """Every step of a phase: the models after it, and what its steps summed up."""
        method, net = jobs[0].method, self._net(cohort.width)
        budget = sizing.free_bytes(self.world.device) // 8
        # Inside, where a step's launches cost little; unless the answers stay the same, and are asked for once.
        inside = self._compiles(cohort.width) or (self.kernels and not self._alone(cohort.width))
        asks = inside and self.world.pipeline.random
        teachers = Teachers(method, net, cohort, context, 0 if asks else budget, asks)
        program = self._program(jobs, cohort, context, weights, net, teachers)
        program.load(weights, context)
        for width, start, stop in rungs(cohort.steps, self._widths(jobs, cohort)):
            for first in range(start, stop, program.capacity):
                plan = cohort.plan(first, min(first + program.capacity, stop), width)
                program.run(self._chunk(cohort, plan, teachers, program.look_up is not None), width)
        return program.weights, program.figures

    @staticmethod
    def _chunk(cohort: Cohort, plan: Plan, teachers: Teachers, looked_up: bool) -> Chunk:
        if looked_up:
            return Chunk(*cohort.visits(plan), {})
        batch = cohort.batch_of(plan)
        return Chunk(batch.x, batch.y, batch.mask, {} if teachers.silent else teachers.targets(plan, batch))

    def _widths(self, jobs: Sequence[Job], cohort: Cohort) -> list[int]:
        """The widths the batch shrinks through: few where one is captured or compiled, more where it is but recorded.

        They follow from the cohort alone, so that a resumed run has the same.
        """
        if not (self.graphs or self.compile):
            return ladder(cohort.width, CHEAP_RUNGS)
        one_pass = cohort.width == sum(len(job.clients) for job in jobs)  # several would each want widths of their own
        steady = one_pass and all(job.steady for job in jobs)
        return list(fitted(tuple(cohort.steps))) if steady else ladder(cohort.width, RUNGS)

    def _program(
        self, jobs: Sequence[Job], cohort: Cohort, context: Context, weights: Tree, net: Net, teachers: Teachers
    ) -> Program:
        """The program for these shapes: last round's, or a new one."""
        job, width, device = jobs[0], cohort.width, self.world.device
        masked = idle(cohort.steps, self._widths(jobs, cohort))
        shapes = tuple(
            (name, leaf.shape, leaf.dtype)
            for part in (context.sent, context.memory)
            for name, leaf in tree.flatten(part).items()
        )
        key = (static_part(job), cohort.looked_up, width, cohort.batch, cohort.one_run, masked, shapes)
        if key not in self._programs:
            while len(self._programs) >= KEPT_PROGRAMS:
                del self._programs[next(iter(self._programs))]
            one, alone = tree.row(weights, 0), self._alone(width)
            step = Step(
                job.method, net, Flat(one["params"], alone), FlatByType(one["buffers"]), cohort.one_run, masked,
                asks=teachers.inside, kernels=self.kernels and not alone,
            )  # fmt: skip
            size = self._footprint(one)
            asked = 0 if teachers.silent else -(-width // len(jobs))
            capacity = sizing.chunk_steps(size, width, asked, cohort.batch, device)
            look_up = self._look_up() if cohort.looked_up and teachers.silent and not alone else None
            capacity = STEPS_LOOKED_UP if look_up is not None else capacity
            self._programs[key] = Program(
                step, capacity, self.graphs, device, self._compiles(width), look_up, self._has_prepared
            )
        return self._programs[key]

    def _look_up(self) -> LookUp:
        """How a step's batches are made from stored bytes."""
        from fedssd.engines.kernels import augment

        world = self.world
        assert isinstance(world.pipeline, Augmentation)
        pipeline = world.pipeline
        return lambda made, y, mask, step, width: augment.at_step(pipeline, world.x, made, y, mask, step, width)

    def _sort_out(self, jobs: Sequence[Job], order: Sequence[Member], parts: list[Trained]) -> list[Trained]:
        """From passes in order of length back to jobs in the order of their cohorts."""
        got, local, memories, reports, figures = (
            join([getattr(part, name) for part in parts]) for name in ("got", "local", "memories", "reports", "figures")
        )
        work = Work(*(torch.cat(columns) for columns in zip(*(part.work for part in parts), strict=True)))
        found = []
        for run in range(len(jobs)):
            places = {member.place: index for index, member in enumerate(order) if member.run == run}
            index = torch.tensor([places[place] for place in range(len(places))], device=self.world.device)
            up, own_local, kept, said, sums = (take(part, index) for part in (got, local, memories, reports, figures))
            own = Work(*(column[index] for column in work))
            found.append(Trained(up, own_local, kept, said, own, sums))
        return found


def _check(precision: str, world: World, width: int | None) -> None:
    if precision not in PRECISIONS:
        raise ValueError(f"precision expects one of {', '.join(PRECISIONS)}, got {precision!r}")
    if (precision == "fp64") != (world.dtype == torch.float64):
        raise ValueError(f"precision {precision!r} does not go with data prepared as {world.dtype}")
    if width is not None and width < 1:
        raise ValueError(f"width expects at least 1 model, got {width}")
