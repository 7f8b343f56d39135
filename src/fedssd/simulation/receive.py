"""From what the clients trained to what the server half sees: faults on the way, then the guard at the door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fedssd.core import tree
from fedssd.core.contract import uploads_weights
from fedssd.core.engine import Job, Trained
from fedssd.core.faults import Faults, parse_faults
from fedssd.core.guard import Limits, Seen, Verdict, judge
from fedssd.core.round import Rounds, traffic
from fedssd.core.tree import Tree
from fedssd.errors import UserError
from fedssd.recipe import Recipe
from fedssd.simulation.result import Round


class Received(NamedTuple):
    """A round's replies as the server has them."""

    clients: list[int]  # whose updates were accepted, ascending
    trained: Trained  # theirs, in that order
    dropped: dict[int, str]  # every other client of the cohort, and why
    bytes_up: int  # of every reply that arrived, the refused among them
    bytes_down: int
    seen: Mapping[str, Seen]  # what the guard remembers once the round is taken, by model
    rolled_back: bool = False  # the check undid the round, so that nobody was accepted after all

    def without(self, left_out: Mapping[int, str], seen: Mapping[str, Seen]) -> Received:
        """Leave these clients out after all, each with its reason."""
        places = [place for place, client in enumerate(self.clients) if client not in left_out]
        return self._replace(
            clients=[self.clients[place] for place in places],
            trained=self.trained.only(places),
            dropped=dict(sorted({**self.dropped, **left_out}.items())),
            seen=seen,
            rolled_back=not places,
        )


def receive(
    recipe: Recipe, rounds: Rounds, job: Job, trained: Trained, population: int, seen: Mapping[str, Seen]
) -> Received:
    """What is left of a cohort's replies; ``stop`` raises at the first one that is refused."""
    faults = parse_faults(recipe.faults, population) if recipe.faults else None
    late = faults.lost(job, trained.work.steps, population) if faults else {}
    lost = {job.clients[place]: why for place, why in late.items()}  # by the whole cohort, whatever models it has
    parts = [
        _receive(recipe, *part, population, faults, lost, rounds.model_of(part[0].clients[0]), seen)
        for part in rounds.parts(job, trained)
    ]
    clients = sorted(client for part in parts for client in part.clients)
    accepted = [part.trained for part in parts if part.clients]
    return Received(
        clients,
        rounds.joined(job.method, clients, accepted) if clients else parts[0].trained,
        dict(sorted((client, why) for part in parts for client, why in part.dropped.items())),
        sum(part.bytes_up for part in parts),
        sum(part.bytes_down for part in parts),
        {**seen, **{name: now for part in parts for name, now in part.seen.items()}},
    )


def _receive(
    recipe: Recipe,
    job: Job,
    trained: Trained,
    population: int,
    faults: Faults | None,
    lost: dict[int, str],
    model: str,
    seen: Mapping[str, Seen],
) -> Received:
    """The part of it with one model."""
    _, bytes_down = traffic(job.sent, trained)
    if faults:
        trained = faults.corrupted(job, trained, population)
    here = [place for place, client in enumerate(job.clients) if client not in lost]
    trained = trained.only(here)
    bytes_up, _ = traffic(job.sent, trained)
    before = seen.get(model, Seen())
    unjudged = recipe.on_bad_update == "keep" or recipe.privacy_mode == "central"  # there all are bounded, NaN is zero
    refused, now = ({}, before) if unjudged else _judged(recipe, job, trained, before)
    if refused and recipe.on_bad_update == "stop":
        place, why = next(iter(refused.items()))
        raise stopped(job.round, job.clients[here[place]], why)
    kept = [place for place in range(len(here)) if place not in refused]
    dropped = lost | {job.clients[here[place]]: why for place, why in refused.items()}
    return Received(
        [job.clients[here[place]] for place in kept],
        trained.only(kept),
        {client: dropped[client] for client in job.clients if client in dropped},
        bytes_up,
        bytes_down,
        {model: now},
    )


def stopped(round_: int, client: int, why: str) -> UserError:
    """Say who ended a run whose ``on_bad_update`` is stop."""
    return UserError(
        f"stopped in round {round_ + 1}: client {client} is refused ({why}), "
        "and on_bad_update is stop: drop would go on without it"
    )


def _judged(recipe: Recipe, job: Job, trained: Trained, seen: Seen) -> Verdict:
    parts = {"update": trained.got, "report": trained.reports, "memory": trained.memories}
    expected: dict[str, Tree] = {}
    before = tree.row(job.memories, 0)
    if before.keys() == trained.memories.keys():  # FD's clients remember more after their first round
        expected["memory"] = before
    if uploads_weights(job.method.local):
        expected["update"] = job.sent["weights"]
    return judge(parts, trained.work, expected, Limits(recipe.reach, recipe.norm_limit), seen)


def newly_missing(run: str, rounds: list[Round]) -> list[str]:
    """Remarks on the last round, where it is the first without somebody's update or the first without anybody's."""
    notes, (*earlier, last) = [], rounds
    if last.dropped and not any(one.dropped for one in earlier):
        client, why = next(iter(last.dropped.items()))
        notes.append(f"{run}: round {last.number} goes on without client {client} ({why})")
    if last.unchanged == "lost" and not any(one.unchanged for one in earlier):
        notes.append(f"{run}: no reply came in round {last.number}, so the global model stays as it was")
    return notes
