"""A tiny federation every test may run: ragged clients, one below the batch size, a different cohort each round."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, settings
from run_folders import real_runs, write_run  # noqa: F401  # fixtures
from torch import Tensor, nn
from user_methods import write_method  # noqa: F401  # fixture
from witness import Task

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Closing, Local, Method, Server, ServerState, Work
from fedssd.core.engine import Engine, Job, Trained, World
from fedssd.core.mixed import MixedRounds
from fedssd.core.net import Net, weights_of
from fedssd.core.plan import Schedule, plan_client
from fedssd.core.round import Rounds
from fedssd.core.solver import SGD
from fedssd.core.tree import Tree
from fedssd.engines import build_engine
from fedssd.methods.registry import LOCALS

torch.set_num_threads(1)
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines are shared
settings.load_profile("untimed")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    # Started in the background, where programs inherit deaf ears for Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports a kernel

SIZES = (13, 9, 3, 17, 8, 6)  # the third is below the batch size, the last never takes part
COHORTS = [[0, 1, 3], [1, 2, 4], [0, 2, 4]]  # round 2 meets client 0 with a memory from round 0
CLASSES, WIDTH = 4, 5
SHARING = [name for name, kind in LOCALS.items() if kind.shares_weights]  # the others: test_distillation_systems.py
Distance = Callable[[Tree, Tree], float]


class TinyModel(nn.Module):
    """5 → 7 → 4, with or without batch norm; features are the hidden layer."""

    def __init__(self, batch_norm: bool) -> None:
        super().__init__()
        self.hidden = nn.Linear(WIDTH, 7)
        self.norm = nn.BatchNorm1d(7) if batch_norm else nn.Identity()
        self.head = nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.norm(self.hidden(x)))
        return self.head(features), features


class Plain:
    """The pipeline that does nothing."""

    random = False

    def train(self, images: Tensor, index: Tensor, key: Tensor, dtype: torch.dtype) -> Tensor:
        return images[index].to(dtype)

    def test(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        return images.to(dtype)


class Round(NamedTuple):
    """One round of ours: what went down, what came back, where the server and the clients stand afterwards."""

    job: Job
    trained: Trained
    state: ServerState
    memories: dict[int, Tree]  # of every client, as the store has them

    @property
    def sent(self) -> Tree:
        return self.job.sent


@dataclass(frozen=True)
class Scene:
    """A task for the witness and the same task for our engine."""

    task: Task
    model: nn.Module
    schedule: Schedule
    seed: int
    others: tuple[nn.Module, ...] = ()  # further models, which clients take turns with

    def rounds(self) -> tuple[Rounds, Tree]:
        """The rounds of the one model and its weights, or of all and theirs by name."""
        if not self.others:
            return Rounds(Net(self.model)), weights_of(self.model)
        models = {f"model{place}": model for place, model in enumerate((self.model, *self.others))}
        nets = {name: Net(model) for name, model in models.items()}
        return MixedRounds(nets, tuple(nets)), {name: weights_of(model) for name, model in models.items()}

    def ours(self, local: Local, server: Server | None = None, engine: str = "reference") -> list[Round]:
        """Every round of the task."""
        task = self.task
        method = Method(local, server or Server(), SGD(task.lr, task.momentum, task.weight_decay))
        rounds, weights = self.rounds()
        world = World(task.x, task.y, task.x, task.y, task.classes, Plain(), torch.float64)
        runner = engine_of(engine, rounds, world, self.schedule)
        auxiliary = Auxiliary(task.auxiliary_x, task.auxiliary_y)
        state, store, found = rounds.first_state(method, weights), rounds.new_store(len(task.clients)), []
        everybody = list(range(len(task.clients)))
        for cohort in task.cohorts:
            sent = rounds.open(method, state, auxiliary)
            first = rounds.first_memory(method, state, sent)
            rows = [task.clients[client] for client in cohort]
            public = auxiliary.x if local.needs_public else None
            job = Job(method, sent, self.seed, state.round, cohort, rows, store.get(cohort, first), public)
            (trained,) = runner.train([job])
            state = rounds.close(method, state, trained, len(task.clients), auxiliary, cohort)
            store.put(cohort, trained.memories)
            found.append(Round(job, trained, state, one_by_one(rounds, store.get(everybody, first), everybody)))
        return found

    def but(self, **changes: Any) -> Scene:
        """The same scene with other entries in its task."""
        return replace(self, task=replace(self.task, **changes))


def engine_of(name: str, rounds: Rounds, world: World, schedule: Schedule) -> Engine:
    """An engine for all models there are."""
    return rounds.engine(lambda net: build_engine(name, net, world, schedule, "fp64", 0, lambda text: None))


def one_by_one(rounds: Rounds, memories: Tree, clients: list[int]) -> dict[int, Tree]:
    """Each client's own memory out of stacked ones."""
    if not isinstance(rounds, MixedRounds):
        return {client: tree.row(memories, place) for place, client in enumerate(clients)}
    held = rounds.places(clients)
    found = {clients[p]: tree.row(memories[name], row) for name in held for row, p in enumerate(held[name])}
    return dict(sorted(found.items()))


class OtherModel(nn.Module):
    """5 → 6 → 6 → 4, another shape than :class:`TinyModel`, with other names for its layers."""

    def __init__(self, batch_norm: bool) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(6) if batch_norm else nn.Identity()
        self.body = nn.Sequential(nn.Linear(WIDTH, 6), norm, nn.Tanh(), nn.Linear(6, 6), nn.Tanh())
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return self.last(features), features


def make_mixed(batch_norm: bool = False) -> Scene:
    """The same scene, its clients with two models in turn; in the last round only the first of them takes part."""
    scene = make_scene(batch_norm)
    draw = torch.Generator().manual_seed(5)
    other = warmed(OtherModel(batch_norm).double(), scene.task.x, scene.task.y, draw)
    return replace(scene, others=(other,))


def make_scene(batch_norm: bool = False, seed: int = 3, batch: int = 4, epochs: int = 2) -> Scene:
    """Four noisy clusters, dealt unevenly; the first global model has already learned a little."""
    draw = torch.Generator().manual_seed(11)
    total = sum(SIZES)
    y = torch.randint(CLASSES, (total,), generator=draw)
    centres = 1.2 * torch.randn(CLASSES, WIDTH, generator=draw, dtype=torch.float64)
    x = centres[y] + 0.8 * torch.randn(total, WIDTH, generator=draw, dtype=torch.float64)
    auxiliary_y = torch.arange(5 * CLASSES) % CLASSES
    noise = 0.8 * torch.randn(len(auxiliary_y), WIDTH, generator=draw, dtype=torch.float64)
    schedule = Schedule(epochs=epochs, batch=batch, drop_partial=batch_norm)
    clients = list(torch.randperm(total, generator=draw).split(list(SIZES)))

    def batches(round_: int, client: int) -> list[Tensor]:
        return [position for position, _ in plan_client(schedule, seed, round_, client, SIZES[client])]

    task = Task(x, y, CLASSES, clients, centres[auxiliary_y] + noise, auxiliary_y, COHORTS, batches)
    return Scene(task, warmed(TinyModel(batch_norm).double(), x, y, draw), schedule, seed)


def warmed(model: nn.Module, x: Tensor, y: Tensor, draw: torch.Generator) -> nn.Module:
    """A teacher must know something before distilling from it means anything: thirty plain steps."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(30):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x)[0], y).backward()
        optimiser.step()
    for parameter in model.parameters():
        parameter.grad = None
    return model


@pytest.fixture(scope="session")
def scenes() -> Callable[..., Scene]:
    """Makes scenes: ``scenes(batch_norm=…, seed=…, batch=…, epochs=…)``."""
    return make_scene


@pytest.fixture(scope="module")
def scene(scenes: Callable[..., Any]) -> Any:
    """The plain one."""
    return scenes()


@pytest.fixture(scope="module")
def fedavg(scene: Any) -> list[Any]:
    """What FedAvg comes to there, round by round."""
    return scene.ours(Local())


def just(share: Tensor, work: Work | None = None) -> Closing:
    """A round's close of which only the shares matter, and perhaps what the clients did."""
    return Closing(share, work or Work(share, share, share), 1.0, 0, {}, None)


def largest_difference(left: Tree, right: Tree) -> float:
    """max |left − right| over two trees with the same keys."""
    left, right = tree.flatten(left), tree.flatten(right)
    assert left.keys() == right.keys()
    return max(float((left[key] - right[key]).abs().max()) for key in left)


@pytest.fixture(scope="session")
def distance() -> Distance:
    """The largest difference between two trees."""
    return largest_difference
