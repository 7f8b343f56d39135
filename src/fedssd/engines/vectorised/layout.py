"""Which models go side by side, in which order, and how the batch shrinks as they finish."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

from torch import Tensor

from fedssd.core.contract import Server
from fedssd.core.engine import Job
from fedssd.core.plan import Schedule

LEAST_ALIKE = 0.75  # of the largest one's samples, for members that are padded to it
RUNGS = 6  # widths a batch may shrink through; each costs one captured graph
CHEAP_RUNGS = 16  # where a width costs no more than a recording
MOST_ENDS = 100  # places to shrink at that are looked at


class Member(NamedTuple):
    """One client of one run: one model of the batch."""

    run: int  # which job
    place: int  # where in the job's cohort
    client: int
    rows: Tensor  # its row numbers into the training data
    samples: int
    steps: int
    batch: int  # the largest batch it ever sees


class Rung(NamedTuple):
    """Steps ``first`` … ``last − 1``, taken by the first ``width`` models."""

    width: int
    first: int
    last: int


def members_of(jobs: Sequence[Job], schedule: Schedule) -> list[Member]:
    """Every client of every job."""
    found = []
    for run, job in enumerate(jobs):
        for place, (client, rows) in enumerate(zip(job.clients, job.rows, strict=True)):
            count = len(rows)
            found.append(Member(run, place, client, rows, count, schedule.steps(count), schedule.batch_size(count)))
    return found


def groups(members: Iterable[Member], schedule: Schedule, batch_norm: bool) -> Iterator[list[Member]]:
    """Members that can share a batch of models, the longest first.

    Padding inside a batch would enter batch norm's statistics, so there clients below one batch go by their size.
    """
    by_batch: dict[int, list[Member]] = {}
    for member in members:
        if (
            batch_norm
            and member.samples > schedule.batch
            and member.samples % schedule.batch
            and not schedule.drop_partial
        ):
            raise ValueError(
                f"client {member.client} has {member.samples} samples, which leaves a partial batch of "
                f"{member.samples % schedule.batch}; a model with batch norm needs drop_partial"
            )
        by_batch.setdefault(member.batch if batch_norm else 0, []).append(member)
    for _, group in sorted(by_batch.items(), reverse=True):
        yield sorted(group, key=lambda member: (-member.steps, -member.samples, member.run, member.place))


def ladder(width: int, most: int = RUNGS) -> list[int]:
    """The widths a batch of ``width`` models may shrink to, the widest first.

    They depend on nothing but the width, so that graphs captured in one round serve the next one's cohort.
    """
    return sorted({-(-width * rung // most) for rung in range(1, most + 1)}, reverse=True)


@lru_cache(maxsize=64)
def fitted(steps: tuple[int, ...], most: int = RUNGS) -> tuple[int, ...]:
    """The widths that waste least on models that are done, for step counts in descending order.

    A batch may shrink wherever some models end. From each such end, with one more rung at a time: how many steps of
    models the rest takes, and through which widths.
    """
    ends = sorted(set(steps) - {0}, reverse=True)
    ends = [0, *reversed(ends[:: len(ends) // MOST_ENDS + 1])]
    left = [sum(count > end for count in steps) for end in ends]
    best: list[tuple[float, list[int]]] = [*[(inf, [])] * (len(ends) - 1), (0, [])]
    for _ in range(most):
        best[:-1] = [
            min(
                (left[here] * (ends[there] - ends[here]) + best[there][0], [left[here], *best[there][1]])
                for there in range(here + 1, len(ends))
            )
            for here in range(len(ends) - 1)
        ]
    return tuple(best[0][1])


def rungs(steps: Sequence[int], widths: Sequence[int]) -> list[Rung]:
    """How a batch shrinks through these widths, for step counts in descending order."""
    found: list[Rung] = []
    first = 0
    for width, narrower in pairwise([*widths, 0]):
        last = steps[narrower]  # from here on the models behind the narrower prefix are done
        if last > first:
            found.append(Rung(width, first, last))
            first = last
    return found


def idle(steps: Sequence[int], widths: Sequence[int]) -> bool:
    """Whether on some rung a model that is done goes along."""
    return any(steps[width - 1] < last for width, _, last in rungs(steps, widths))


def alike(samples: Sequence[int], most: int) -> list[slice]:
    """Members, the largest first, in parts of at most so many that are padded to the largest and waste little on it."""
    found: list[slice] = []
    first = 0
    for place, count in enumerate(samples):
        if place - first == most or count < LEAST_ALIKE * samples[first]:
            found.append(slice(first, place))
            first = place
    return [*found, slice(first, len(samples))]


def same_program(jobs: Sequence[Job]) -> None:
    """Refuse jobs that one batched program cannot serve."""
    if not jobs:
        raise ValueError("expected at least one job")
    first = jobs[0]
    for number, job in enumerate(jobs):
        if not job.clients:
            raise ValueError(f"job {number} has no clients")
        if job.round != first.round:
            raise ValueError(f"jobs of one batch are at one round, got {first.round} and {job.round} (job {number})")
        if static_part(job) != static_part(first):
            raise ValueError(
                f"jobs of one batch share a method and its words and switches, got {first.method.local} with "
                f"{first.method.server} and {job.method.local} with {job.method.server} (job {number}): run them apart"
            )


def static_part(job: Job) -> tuple[Any, ...]:
    """What decides the program of a job: kinds and static fields of the local half and the solver, not their numbers.

    The server half matters only where it holds parameters back: the rest works between rounds, outside the engine.
    """
    local, server, solver = job.method.local, job.method.server, job.method.solver
    return _static(local), _static(solver), _static(server) if holds_back(server) else None


def holds_back(server: Server) -> bool:
    """Whether the server half has a say in a local step."""
    return type(server).hold is not Server.hold


def _static(value: object) -> Any:
    if isinstance(value, float | Tensor):
        return "number"
    if isinstance(value, tuple):
        return tuple(_static(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value), *((field.name, _static(getattr(value, field.name))) for field in fields(value)))
    return value
