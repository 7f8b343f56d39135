"""What a method sends and keeps: read off one round of a real model rather than stated."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fedssd.core import tree
from fedssd.core.engine import Job, Trained
from fedssd.core.round import traffic
from fedssd.data.dataset import Dataset
from fedssd.engines.reference import ReferenceEngine
from fedssd.methods.custom import blaming
from fedssd.recipe import Recipe
from fedssd.simulation.setup import Brought, assemble
from fedssd.simulation.simulation import Run, close_job, open_job, start

CLASSES, SHAPE, PER_CLASS = 10, (3, 32, 32), 2
MODEL = f"the paper's CNN on CIFAR-10's shape, K = {CLASSES}"
NUMBER = 4  # bytes


class Amount(NamedTuple):
    """So many whole models, and so many numbers beyond."""

    models: int
    numbers: int

    def __str__(self) -> str:
        beyond = f"{self.numbers:,} number{'s' if self.numbers != 1 else ''}"
        if not self.models:
            return beyond if self.numbers else "–"
        return f"{self.models} + {beyond}" if self.numbers else str(self.models)


class Footprint(NamedTuple):
    """What travels for a client in a round, and what stays between rounds."""

    down: Amount
    up: Amount
    client: Amount
    server: Amount


class Traffic(NamedTuple):
    """Bytes for a client and round."""

    down: int
    up: int


def footprint(local: str = "fedavg", server: str = "fedavg") -> Footprint:
    """What a round of a method sends and leaves behind, in models and numbers."""
    run, job, trained = _second_round(local, server)
    model = tree.size_in_bytes(run.federation.weights)
    up, down = traffic(job.sent, trained)
    kept = tree.size_in_bytes(run.state.local) + tree.size_in_bytes(run.state.server)

    def amount(size: int, shared_by: int = 1) -> Amount:
        models, rest = divmod(size // shared_by, model)
        return Amount(models, -(-rest // NUMBER))

    clients = len(job.clients)
    return Footprint(
        amount(down, clients), amount(up, clients), amount(tree.size_in_bytes(trained.memories), clients), amount(kept)
    )


def bytes_of(local: str = "fedavg", server: str = "fedavg", auxiliary: int = 1) -> Traffic:
    """What a round of a method sends, in bytes, with so many auxiliary or public samples of each class."""
    _, job, trained = _second_round(local, server, auxiliary)
    up, down = traffic(job.sent, trained)
    return Traffic(down // len(job.clients), up // len(job.clients))


def _second_round(local: str, server: str, auxiliary: int = 1) -> tuple[Run, Job, Trained]:
    """The second round of two clients on random images, with default options: some methods say nothing in the first."""
    recipe = Recipe(
        data="cifar10", partition="iid", clients=2, augment="none", method=local, server=server, rounds=2, epochs=1,
        engine="reference", device="cpu",
    )  # fmt: skip
    public = random_images(auxiliary)
    brought = Brought(dataset=random_images(PER_CLASS), auxiliary=(public.x_train, public.y_train))
    federation = assemble(recipe, brought)
    run = start(federation, torch.device("cpu"))
    world = federation.world(torch.device("cpu"))
    engine = federation.rounds.engine(lambda net: ReferenceEngine(net, world, federation.schedule))
    for number in range(1, recipe.rounds + 1):
        with blaming(f"in round {number}"):
            job = open_job(run)
            (trained,) = engine.train([job])
            run.move_on(close_job(run, job, trained))
    return run, job, trained


def random_images(per_class: int) -> Dataset:
    """Images that speed and sizes do not depend on."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(per_class * CLASSES) % CLASSES
    images = torch.randint(0, 256, (len(labels), *SHAPE), dtype=torch.uint8, generator=draw)
    names = tuple(str(label) for label in range(CLASSES))
    return Dataset("random images", images, labels, images[:CLASSES], labels[:CLASSES], names)
