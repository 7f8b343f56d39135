"""The held-out check: a round that leaves the model far worse on the server's own samples is not taken as it is.

It sees what no look at single replies can: a model that has been spoiled. Without samples of the server's own, the loss
on the test set, where it is measured anyway, is read to one end only: to stop a run that has failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch.nn import functional as F

from fedssd.core.contract import Auxiliary, ServerState
from fedssd.core.guard import Seen
from fedssd.core.net import Net
from fedssd.core.tree import Tree

WORSE = 30.0  # times the loss of guessing: 40.8 = 17.7 ln K is the most that an honest run was seen to come to
IN_A_ROW = 3  # rounds that end a run as failed


class Health(NamedTuple):
    """How a run has fared so far."""

    best: float = math.inf  # the lowest loss yet
    failures: int = 0  # rounds in a row, up to the last one, that were rolled back or measured far too bad
    now: float = math.inf  # the loss of the model as it is, on the server's own samples; infinite while unknown

    @property
    def failed(self) -> bool:
        """Whether the run should end here."""
        return self.failures >= IN_A_ROW


class Checked(NamedTuple):
    """A round after the check: who is in it, by place in the cohort; nobody where it was rolled back."""

    state: ServerState
    places: list[int]
    health: Health
    whole: float  # the loss with everybody in it


Close = Callable[[Sequence[int]], ServerState]  # the round closed with some places of the cohort only
Loss = Callable[[Tree], float]  # of a global model on the server's samples


def checked(before: ServerState, cohort: int, close: Close, loss: Loss, health: Health, classes: int) -> Checked:
    """Close a round, without those who spoil it.

    While the loss is beyond the limit, the client whose absence lowers it most is left out, up to half of the cohort.
    If that does not help, the server stays as it was before the round.
    """
    everybody = list(range(cohort))
    if not cohort:
        return Checked(close(everybody), everybody, health, health.now)
    if health.best == math.inf:
        began = _finite(loss(before.weights))
        health = health._replace(best=began, now=began)
    state, places = close(everybody), everybody
    now = whole = _finite(loss(state.weights))
    while too_bad(now, health, classes) and 2 * (cohort - len(places) + 1) <= cohort:
        tried = []
        for place in places:
            rest = [other for other in places if other != place]
            one = close(rest)
            tried.append((_finite(loss(one.weights)), place, one))
        now, out, state = min(tried, key=lambda found: found[:2])
        places = [place for place in places if place != out]
    if too_bad(now, health, classes):
        kept = before._replace(round=before.round + 1)
        return Checked(kept, [], health._replace(failures=health.failures + 1), whole)
    return Checked(state, places, Health(min(health.best, now), 0, now), whole)


def measured(loss: float, health: Health, classes: int) -> Health:
    """Take in a loss of the test set, where the server has no samples of its own: it ranks no model."""
    if too_bad(loss, health, classes):
        return unmeasured(health)._replace(failures=health.failures + 1)
    return Health(min(health.best, loss), now=0.0)


def unmeasured(health: Health) -> Health:
    """The same of a run whose model has changed since, with nobody looking."""
    return health._replace(now=math.inf)


def too_bad(loss: float, health: Health, classes: int) -> bool:
    """Whether a loss is beyond what a run comes back from: far above guessing and above the best yet."""
    guessing = math.log(classes)
    worst = max(guessing, health.best) if health.best < math.inf else guessing
    return not loss <= WORSE * worst


def cross_entropy(net: Net, weights: Tree, auxiliary: Auxiliary) -> float:
    """The mean loss of a global model on the server's samples, in double precision; infinite where it is no number."""
    total = 0.0
    with torch.no_grad():
        for x, y in zip(torch.split(auxiliary.x, 250), torch.split(auxiliary.y, 250), strict=True):
            total += float(F.cross_entropy(net(weights, x).logits.double(), y, reduction="sum"))
    return _finite(total / len(auxiliary.y))


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


class Safety(NamedTuple):
    """What guard and check remember of a run's rounds: its clients' updates, by model, and how it has fared."""

    seen: Mapping[str, Seen] = {}
    health: Health = Health()

    @property
    def good(self) -> float | None:
        """The loss by which to choose among good models; None of a model that may not be in good order."""
        return None if self.health.failures or self.health.now == math.inf else self.health.now

    def to_tree(self) -> Tree:
        """Give every number as a tensor: what a checkpoint keeps."""
        seen = {name: torch.tensor(one, dtype=torch.float64) for name, one in self.seen.items()}
        return {"seen": seen, "health": torch.tensor(self.health, dtype=torch.float64)}

    @staticmethod
    def from_tree(held: Tree) -> Safety:
        """Read what :meth:`to_tree` gave; a run from before there was any has seen nothing."""
        if not held:
            return Safety()
        best, failures, now = held["health"].tolist()
        return Safety(
            {name: Seen(*one.tolist()) for name, one in held["seen"].items()}, Health(best, int(failures), now)
        )
