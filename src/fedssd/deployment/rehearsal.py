"""One step of local training at the server, on its own samples: it shows what a client will be sent and will send."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fedssd.core.plan import Schedule
from fedssd.core.round import first_state, open_round
from fedssd.core.tree import Tree
from fedssd.engines import ReferenceEngine
from fedssd.engines.base import Job, World
from fedssd.engines.flower.messages import Reply
from fedssd.experiment.federation import Federation

FEW = 2  # samples: batch norm needs two


class Rehearsal(NamedTuple):
    """What a round of this method moves and keeps, with the shapes of the real thing."""

    sent: Tree
    memory: Tree  # what a client keeps between rounds
    reply: Reply


def rehearse(federation: Federation) -> Rehearsal:
    """Run every hook of the method once, so that what a reply must look like is known before one arrives."""
    data, method = federation.dataset, federation.method
    x, y = data.x_train[:FEW], data.y_train[:FEW]
    world = World(x, y, x[:0], y[:0], data.num_classes, federation.pipeline, federation.dtype)
    engine = ReferenceEngine(federation.net, world, Schedule(1, FEW))
    state = first_state(method, federation.weights)
    sent = open_round(federation.net, method, state, federation.auxiliary)
    memory = method.local.memory({"weights": federation.weights, **sent})
    rows = torch.arange(len(y))
    job = Job(method, sent, federation.recipe.seed, 0, [0], [rows], {})
    done = engine.train_client(job, 0, rows, memory)
    return Rehearsal(sent, done.memory, Reply(0, 1, False, done.got, done.report, len(rows), done.figures))
