"""Faults on purpose: replies that are lost, late, NaN, flipped, scaled or overstated, all of it a function of the seed.

Written ``drop=0.1,nan=2,flip=2x10,scale=1x100,silent=1,slow=2x4,claim=1x9,deadline=3``, with ``+`` for the commas where
a comma already means something else. A client's own training and memory are sound; what goes wrong is what it sends.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Work, uploads_weights
from fedssd.core.engine import Job, Trained
from fedssd.core.randomness import Purpose, permutation, uniform
from fedssd.core.tree import Tree
from fedssd.errors import UserError, nearest

EXAMPLE = "drop=0.1,nan=2,flip=2x10"


class Group(NamedTuple):
    """So many clients of the population, and by how much."""

    clients: int = 0
    factor: float = 1.0


NOBODY = Group()


@dataclass(frozen=True)
class Faults:
    """What goes wrong in a run. Groups take their clients in this order from one shuffled list, so they never meet."""

    nan: Group = NOBODY  # everything they send is NaN
    flip: Group = NOBODY  # they send w − factor · (w_i − w)
    scale: Group = NOBODY  # they send w + factor · (w_i − w)
    silent: Group = NOBODY  # they never reply
    slow: Group = NOBODY  # they take factor times as long as their steps would
    drop: float = 0.0  # the chance that any reply is lost
    deadline: float = math.inf  # in units of the cohort's median time, which goes by steps
    claim: Group = NOBODY  # they claim factor times as many samples as they have

    def __bool__(self) -> bool:
        return self != Faults()

    def members(self, seed: int, population: int) -> dict[str, list[int]]:
        """Who is in which group, for the whole run."""
        order = permutation(population, seed, Purpose.FAULTY_CLIENTS).tolist()
        found, first = {}, 0
        for name in GROUPS:
            last = first + getattr(self, name).clients
            found[name], first = sorted(order[first:last]), last
        return found

    def lost(self, job: Job, steps: Tensor, population: int) -> dict[int, str]:
        """The places in the cohort whose reply does not arrive in time, and why."""
        groups = self.members(job.seed, population)
        chances = uniform(job.seed, Purpose.LOST_REPLIES, job.round, torch.tensor(job.clients)).tolist()
        found = {p: "no reply: silent" for p, client in enumerate(job.clients) if client in groups["silent"]}
        for place, chance in enumerate(chances):
            if chance < self.drop:
                found.setdefault(place, "no reply: lost")
        if self.deadline < math.inf:
            taken = steps.tolist()
            middle = median(taken)
            for place, client in enumerate(job.clients):
                time = taken[place] / middle * (self.slow.factor if client in groups["slow"] else 1.0)
                if time > self.deadline:
                    found.setdefault(place, f"late: {time:.3g} times the median time, deadline {self.deadline:g}")
        return dict(sorted(found.items()))

    def corrupted(self, job: Job, trained: Trained, population: int) -> Trained:
        """What the cohort's faulty members send in place of their update and report; the others' stay to the bit."""
        groups = self.members(job.seed, population)
        if groups["claim"]:
            trained = trained._replace(work=self._claimed(job, trained.work, groups["claim"]))
        factors = {"nan": math.nan, "flip": -self.flip.factor, "scale": self.scale.factor}
        by_client = {client: factor for name, factor in factors.items() for client in groups[name]}
        factor = torch.tensor([by_client.get(client, 1.0) for client in job.clients], dtype=torch.float64)
        if bool((factor == 1).all()):
            return trained
        zeros = [
            tree.map_tree(lambda leaf: leaf.new_zeros(leaf.shape[1:]), part) for part in (trained.got, trained.reports)
        ]
        centre = job.sent["weights"] if uploads_weights(job.method.local) else zeros[0]
        return trained._replace(
            got=_scaled(trained.got, centre, factor), reports=_scaled(trained.reports, zeros[1], factor)
        )

    def _claimed(self, job: Job, work: Work, liars: list[int]) -> Work:
        times = [self.claim.factor if client in liars else 1.0 for client in job.clients]
        return work._replace(samples=work.samples * torch.tensor(times, dtype=work.samples.dtype).to(work.samples))


GROUPS = ("nan", "flip", "scale", "silent", "slow", "claim")
WITH_FACTOR = ("flip", "scale", "slow", "claim")
KINDS = (*GROUPS, "drop", "deadline")


def _scaled(stacked: Tree, centre: Tree, factor: Tensor) -> Tree:
    """centre + factor · (leaf − centre) for every client whose factor is not 1."""

    def moved(leaf: Tensor, middle: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        by = factor.to(leaf).view(-1, *[1] * middle.dim())
        return torch.where(by == 1, leaf, middle + by * (leaf - middle))

    return tree.map_tree(moved, stacked, centre)


def parse_faults(text: str, clients: int) -> Faults:
    """The faults a recipe describes, checked against its number of clients."""
    given: dict[str, Group | float] = {}
    for word in filter(None, (part.strip() for part in re.split("[,+]", text))):
        name, equals, value = (part.strip() for part in word.partition("="))
        if name not in KINDS:
            raise UserError(f"faults: unknown kind {name!r}: {nearest(name, KINDS)}")
        if not equals or name in given:
            raise UserError(f"faults expects each kind once, as in {EXAMPLE}, got {text!r}")
        given[name] = _group(name, value) if name in GROUPS else _number(name, value)
    faults = Faults(**given)  # type: ignore[arg-type]
    if not 0 <= faults.drop <= 1:
        raise UserError(f"faults: drop expects a chance from 0 to 1, got {faults.drop:g}")
    if faults.slow.clients and faults.deadline == math.inf:
        raise UserError("faults: slow clients matter only with a deadline: add one, such as deadline=2")
    count = sum(getattr(faults, name).clients for name in GROUPS)
    if count > clients:
        raise UserError(f"faults: {text!r} names {count} clients, and there are {clients}")
    return faults


def _group(name: str, value: str) -> Group:
    """``2`` or, for the kinds with a factor, ``2x10``."""
    count, times, factor = value.replace("×", "x").partition("x")
    unfit = times and name not in WITH_FACTOR
    if not (count.isascii() and count.isdecimal() and len(count) < 10) or int(count) < 1 or unfit:
        form = "such as 2x10" if name in WITH_FACTOR else "such as 2"
        raise UserError(f"faults: {name} expects a number of clients {form}, got {value!r}")
    if not times and name != "flip" and name in WITH_FACTOR:
        raise UserError(f"faults: {name} expects a factor too, such as {count}x10, got {value!r}")
    return Group(int(count), _number(name, factor) if times else 1.0)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0) or (value == 0 and name == "deadline"):
        raise UserError(f"faults: {name} expects a number that is not negative, got {text!r}")
    return value
