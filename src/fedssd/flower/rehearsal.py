"""One step of local training at the server, on its own samples: it shows what a client will be sent and will send."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedssd.core.engine import Job, World
from fedssd.core.plan import Schedule
from fedssd.core.tree import Tree
from fedssd.engines import ReferenceEngine
from fedssd.flower.messages import Reply
from fedssd.simulation.setup import Federation

FEW = 2  # samples: batch norm needs two


class Rehearsal(NamedTuple):
    """What a round of this method moves and keeps, with the shapes of the real thing."""

    sent: Tree
    memory: Tree  # what a client keeps between rounds
    reply: Reply
    public: Tensor | None  # the public set, where the method needs one


def rehearse(federation: Federation) -> Rehearsal:
    """Run every hook of the method once, so that what a reply must look like is known before one arrives."""
    data, method, rounds = federation.dataset, federation.method, federation.rounds
    state = rounds.first_state(method, federation.weights)
    sent = rounds.open(method, state, federation.auxiliary)
    net, weights = rounds.nets[rounds.form], federation.models[rounds.form]
    x, y = data.x_train[:FEW], data.y_train[:FEW]
    world = World(x, y, x[:0], y[:0], data.num_classes, federation.pipeline, federation.dtype)
    engine = ReferenceEngine(net, world, Schedule(1, FEW))
    memory = method.local.memory({"weights": weights, **sent})
    rows = torch.arange(len(y))
    public = federation.auxiliary.x if method.local.needs_public and federation.auxiliary else None
    job = Job(method, sent, federation.recipe.seed, 0, [0], [rows], {}, public)
    done = engine.train_client(job, 0, rows, memory)
    reply = Reply(0, 1, False, done.got, done.report, len(rows), done.figures)
    return Rehearsal(sent, done.memory, reply, public)
