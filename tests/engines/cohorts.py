"""A tiny model, ragged clients and a few rounds of them, which two engines play and must agree about in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Local, Method, Server
from fedssd.core.engine import Engine, Job, World
from fedssd.core.net import Net, Outputs, weights_of
from fedssd.core.plan import Schedule
from fedssd.core.randomness import sample_cohort
from fedssd.core.round import ClientStore, Rounds
from fedssd.core.solver import SGD
from fedssd.data.augment import Augmentation, pipeline
from fedssd.engines.reference import ReferenceEngine
from fedssd.engines.vectorised import VectorisedEngine
from fedssd.methods.registry import LOCALS

SIZES = [18, 5, 16, 11, 3, 25]  # ragged, two of them below one batch of 8
CLASSES, ROUNDS, COHORT = 4, 5, 4


class Tiny(nn.Module):
    def __init__(self, channels: int, side: int, batch_norm: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3) if batch_norm else nn.Identity()
        self.pool = nn.MaxPool2d(side // 2)
        self.hidden, self.out = nn.Linear(12, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Outputs:
        features = torch.relu(self.hidden(self.pool(torch.relu(self.norm(self.conv(x)))).flatten(1)))
        return Outputs(self.out(features), features)


class Setting:
    """Random data, a tiny model and a partition."""

    def __init__(self, batch_norm: bool = False, images: bool = False) -> None:
        draw = torch.Generator().manual_seed(7)
        count = sum(SIZES)
        if images:
            shape, flow = (3, 32, 32), pipeline("moon", "cifar10", (3, 32, 32))
            x = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=draw)
        else:
            shape, flow = (1, 4, 4), Augmentation()
            x = torch.randn(count, *shape, dtype=torch.float64, generator=draw)
        y = torch.randint(0, CLASSES, (count,), generator=draw)
        self.world = World(x, y, x[:37], y[:37], CLASSES, flow, torch.float64)
        module = Tiny(shape[0], shape[-1], batch_norm).double()
        drawn = tree.map_tree(lambda w: 0.3 * torch.randn(w.shape, dtype=w.dtype, generator=draw), weights_of(module))
        if batch_norm:
            drawn["buffers"]["norm.running_var"] = drawn["buffers"]["norm.running_var"].abs() + 0.5
        self.net, self.weights = Net(module), drawn
        self.schedule = Schedule(epochs=2, batch=8, drop_partial=batch_norm)
        self.rows = list(torch.randperm(count, generator=draw).split(SIZES))
        self.auxiliary = Auxiliary(flow.test(x[:20], torch.float64), y[:20])

    def to(self, device: str) -> None:
        """Data and weights go to a device."""
        w = self.world
        moved = (part.to(device) for part in (w.x, w.y, w.test_x, w.test_y))
        self.world = World(*moved, w.classes, w.pipeline, w.dtype)
        self.weights = tree.map_tree(lambda leaf: leaf.to(device), self.weights)
        self.rows = [rows.to(device) for rows in self.rows]
        self.auxiliary = Auxiliary(self.auxiliary.x.to(device), self.auxiliary.y.to(device))

    def engines(self, **options: Any) -> tuple[Engine, Engine]:
        parts = self.net, self.world, self.schedule
        return ReferenceEngine(*parts), VectorisedEngine(*parts, precision="fp64", **options)

    @property
    def rounds(self) -> Rounds:
        return Rounds(self.net)

    def play(self, engine: Engine, methods: Sequence[Method], rounds: int = ROUNDS) -> list[Any]:
        """Some rounds of several runs, four of six clients a round; everything that came back."""
        states = [self.rounds.first_state(method, self.weights) for method in methods]
        stores = [ClientStore(len(SIZES)) for _ in methods]
        found: list[Any] = []
        for round_ in range(rounds):
            jobs = [self.job(method, states[r], stores[r], r + 3, round_) for r, method in enumerate(methods)]
            for run, trained in enumerate(engine.train(jobs)):
                stores[run].put(jobs[run].clients, trained.memories)
                states[run] = self.rounds.close(methods[run], states[run], trained, len(SIZES), self.auxiliary)
                found.append(trained)
        return [*found, states, engine.evaluate(tree.stack([state.weights for state in states]))]

    def job(self, method: Method, state: Any, store: ClientStore, seed: int, round_: int) -> Job:
        clients = sample_cohort(seed, round_, len(SIZES), COHORT)
        sent = self.rounds.open(method, state, self.auxiliary)
        memories = store.get(clients, self.rounds.first_memory(method, state, sent))
        public = self.auxiliary.x if method.local.needs_public else None
        return Job(method, sent, seed, round_, clients, [self.rows[client] for client in clients], memories, public)


def local_named(spec: str, factor: float = 1.0) -> Local:
    parts = []
    for name in spec.split("+"):
        kind = LOCALS[name]
        parts.append(replace(kind(), **({kind.strength: 0.1 * factor} if kind.strength else {})))
    return sum(parts[1:], parts[0])  # type: ignore[arg-type]


def several(spec: str, runs: int, server: type[Server] = Server) -> list[Method]:
    """Runs that differ in every number."""
    return [
        Method(local_named(spec, 1.0 + r), server(), SGD(0.05 / (r + 1), 0.9 - 0.2 * r, 1e-3 * r)) for r in range(runs)
    ]


def first_jobs(setting: Setting, methods: Sequence[Method], round_: int = 0) -> list[Job]:
    stores = [ClientStore(len(SIZES)) for _ in methods]
    return [
        setting.job(method, setting.rounds.first_state(method, setting.weights), store, 3, round_)
        for method, store in zip(methods, stores, strict=True)
    ]


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors(part)


def shape_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shape_of(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [type(value), *(shape_of(part) for part in value)]
    return tuple(value.shape) if isinstance(value, Tensor) else value


def assert_agree(setting: Setting, methods: Sequence[Method], rounds: int = ROUNDS, **options: Any) -> None:
    expected, found = (setting.play(engine, methods, rounds) for engine in setting.engines(**options))
    assert shape_of(found) == shape_of(expected)
    for a, b in zip(tensors(expected), tensors(found), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-10)
