"""The vectorised engine gives what the reference engine gives: every method, every shape of cohort, in float64."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Batch, Local, Method, Server
from fedssd.core.net import Net, Outputs, weights_of
from fedssd.core.plan import Schedule
from fedssd.core.randomness import sample_cohort
from fedssd.core.round import ClientStore, close_round, first_memory, first_state, open_round
from fedssd.core.solver import SGD
from fedssd.core.tree import Tree
from fedssd.data.augment import Pipeline, pipeline
from fedssd.engines.base import Engine, Job, World
from fedssd.engines.reference import ReferenceEngine
from fedssd.engines.vectorised import VectorisedEngine, choose_engine
from fedssd.engines.vectorised.engine import _arithmetic
from fedssd.methods.registry import LOCALS, SERVERS

SIZES = [30, 5, 24, 17, 3, 41]  # ragged, two of them below one batch of 8
CLASSES, ROUNDS, COHORT = 4, 5, 4
METHODS = [*LOCALS, "fedssd+fedprox+moon"]


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
            shape, flow = (1, 4, 4), Pipeline()
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

    def engines(self, **options: Any) -> tuple[Engine, Engine]:
        parts = self.net, self.world, self.schedule
        return ReferenceEngine(*parts), VectorisedEngine(*parts, precision="fp64", **options)

    def play(self, engine: Engine, methods: Sequence[Method]) -> list[Any]:
        """Five rounds of several runs, four of six clients a round; everything that came back."""
        states = [first_state(method, self.weights) for method in methods]
        stores = [ClientStore(len(SIZES)) for _ in methods]
        found: list[Any] = []
        for round_ in range(ROUNDS):
            jobs = [self.job(method, states[r], stores[r], r + 3, round_) for r, method in enumerate(methods)]
            for run, trained in enumerate(engine.train(jobs)):
                stores[run].put(jobs[run].clients, trained.memories)
                states[run] = close_round(self.net, methods[run], states[run], trained, len(SIZES), self.auxiliary)
                found.append(trained)
        return [*found, states, engine.evaluate(tree.stack([state.weights for state in states]))]

    def job(self, method: Method, state: Any, store: ClientStore, seed: int, round_: int) -> Job:
        clients = sample_cohort(seed, round_, len(SIZES), COHORT)
        sent = open_round(self.net, method, state, self.auxiliary)
        memories = store.get(clients, first_memory(method, state, sent))
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


def assert_agree(setting: Setting, methods: Sequence[Method], **options: Any) -> None:
    reference, vectorised = setting.engines(**options)
    expected, found = setting.play(reference, methods), setting.play(vectorised, methods)
    assert shape_of(found) == shape_of(expected)
    for a, b in zip(tensors(expected), tensors(found), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-10)


@pytest.mark.parametrize("batch_norm", [False, True], ids=["plain", "batch-norm"])
@pytest.mark.parametrize("spec", METHODS)
def test_three_runs_at_once_agree_with_the_reference(spec: str, batch_norm: bool) -> None:
    assert_agree(Setting(batch_norm), several(spec, 3))


@pytest.mark.parametrize("spec", METHODS)
def test_one_run_in_several_passes_agrees_with_the_reference(spec: str) -> None:
    assert_agree(Setting(), several(spec, 1), width=3)


@pytest.mark.parametrize("server", [name for name in SERVERS if name != "fedavg"])
def test_every_server_half_agrees_with_the_reference(server: str) -> None:
    assert_agree(Setting(), several("fedssd", 2, SERVERS[server]), width=5)


@pytest.mark.parametrize("spec", ["fedavg", "moon", "fedssd"])
def test_augmented_images_agree_with_the_reference(spec: str) -> None:
    setting = Setting(images=True)
    assert setting.world.pipeline.random
    assert_agree(setting, several(spec, 1))


def test_one_model_at_a_time_agrees_with_the_reference() -> None:
    assert_agree(Setting(batch_norm=True), several("fedcurv", 1), width=1)


@pytest.mark.parametrize("server", ["fedavg", "fedma"])
def test_a_recorded_step_agrees_with_the_reference(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedssd.engines.vectorised.program.RECORD_AFTER", 0)
    assert_agree(Setting(), several("fedssd", 2, SERVERS[server]))


def first_jobs(setting: Setting, methods: Sequence[Method], round_: int = 0) -> list[Job]:
    stores = [ClientStore(len(SIZES)) for _ in methods]
    return [
        setting.job(method, first_state(method, setting.weights), store, 3, round_)
        for method, store in zip(methods, stores, strict=True)
    ]


class Counting(nn.Module):
    """Buffers of several types, which the forward pass uses and changes, and batch norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm, self.out = nn.Linear(16, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)
        self.register_buffer("seen", torch.tensor(2**53 + 1))  # which no float holds
        self.register_buffer("order", torch.arange(15, -1, -1))
        self.register_buffer("open", torch.arange(6) % 3 > 0)
        self.register_buffer("toggle", torch.zeros(2, 2, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 2
            self.toggle.logical_not_()
        features = torch.relu(self.norm(self.hidden(x.flatten(1)[:, self.order])))
        return self.out(torch.where(self.open, features, 0.0))


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("spec", ["fedavg", "moon"])
def test_buffers_of_other_types_stay_what_they_are(spec: str, width: int) -> None:
    setting = Setting(batch_norm=True)
    module = Counting().double()
    setting.net, setting.weights = Net(module), weights_of(module)
    assert_agree(setting, several(spec, 2), width=width)
    _, engine = setting.engines(width=width)
    jobs = first_jobs(setting, several(spec, 1))
    (trained,) = engine.train(jobs)
    buffers = trained.local["buffers"]
    assert list(buffers) == list(setting.weights["buffers"])
    steps = [setting.schedule.steps(len(rows)) for rows in jobs[0].rows]
    assert buffers["seen"].tolist() == [2**53 + 1 + 2 * count for count in steps]
    assert buffers["toggle"].tolist() == [[[count % 2 == 1] * 2] * 2 for count in steps]
    assert torch.equal(buffers["open"], module.open.expand(COHORT, -1))


def test_jobs_that_do_not_share_a_program_are_refused() -> None:
    setting = Setting()
    _, engine = setting.engines()
    mixed = first_jobs(setting, [*several("fedavg", 1), *several("fedprox", 1)])
    with pytest.raises(ValueError, match="share a method"):
        engine.train(mixed)
    words = [Method(replace(LOCALS["mse"](), reduction=word)) for word in ("sum", "mean")]  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="share a method"):
        engine.train(first_jobs(setting, words))
    rounds = [*first_jobs(setting, several("fedavg", 1)), *first_jobs(setting, several("fedavg", 1), round_=1)]
    with pytest.raises(ValueError, match="one round"):
        engine.train(rounds)


@dataclass(frozen=True)
class PartWay(Server):
    """Holds every step back, by a number and a switch of its own."""

    name: ClassVar[str] = "part-way"
    rest: float = 0.5
    heads: bool = False

    def hold(self, sent: Tree, before: Tree, after: Tree) -> Tree:
        held = tree.map_tree(lambda old, new: old + self.rest * (new - old), before, after)
        return {**held, "out.bias": before["out.bias"]} if self.heads else held


def test_a_server_half_that_holds_back_does_so_by_its_own_numbers() -> None:
    setting = Setting()
    reference, engine = setting.engines()
    runs = [Method(Local(), PartWay(rest, heads)) for rest in (0.5, 0.1) for heads in (False, True)]
    for methods in (runs[:1], runs[1:2], runs[2:3], runs[0::2]):  # one after another, and two numbers side by side
        jobs = first_jobs(setting, methods)
        for a, b in zip(tensors(reference.train(jobs)), tensors(engine.train(jobs)), strict=True):
            torch.testing.assert_close(b, a, rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match=r"heads=False.*heads=True"):
        engine.train(first_jobs(setting, runs[:2]))


def test_running_out_of_memory_halves_the_width_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    setting, said = Setting(), []
    reference, engine = setting.engines(width=4, notice=said.append)
    whole = engine._pass  # type: ignore[attr-defined]

    def small_memory(jobs: Any, members: Any) -> Any:
        if len(members) > 2:
            raise torch.OutOfMemoryError("too many")
        return whole(jobs, members)

    monkeypatch.setattr(engine, "_pass", small_memory)
    jobs = first_jobs(setting, several("fedavg", 1))
    for a, b in zip(tensors(reference.train(jobs)), tensors(engine.train(jobs)), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-10)
    assert said == ["vectorised: out of memory with 4 models at once, going on with 2"]


def test_a_model_with_batch_norm_refuses_partial_batches() -> None:
    setting = Setting(batch_norm=True)
    setting.schedule = replace(setting.schedule, drop_partial=False)
    _, engine = setting.engines()
    with pytest.raises(ValueError, match="drop_partial"):
        engine.train(first_jobs(setting, several("fedavg", 1)))


@pytest.mark.parametrize("options", [{"precision": "fp16"}, {"precision": "fp32"}, {"precision": "fp64", "width": 0}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    setting = Setting()
    with pytest.raises(ValueError, match=r"expects|does not go"):
        VectorisedEngine(setting.net, setting.world, setting.schedule, **options)


@dataclass(frozen=True)
class InCompany(Local):
    """Targets that depend on who else is in the batch, in one of three ways."""

    name: ClassVar[str] = "in-company"
    way: str = "centred"

    def targets(self, net: Net, sent: Tree, memory: Tree, batch: Batch) -> Tree:
        z = net(sent["weights"], batch.x).logits
        mean = (batch.mask @ z) / batch.mask.sum()  # a batch may be padded
        return {"about": {"centred": z - mean, "each to each": z @ z.T, "one for all": mean}[self.way]}

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        about = target["about"]
        if self.way == "each to each":
            return (out.logits @ out.logits.T - about).square() @ batch.mask
        return (out.logits - about).square().sum(-1)


@pytest.mark.parametrize("way", ["centred", "each to each", "one for all"])
def test_targets_that_depend_on_the_batch_are_asked_for_each_batch(way: str) -> None:
    setting = Setting()
    assert not setting.world.pipeline.random  # or teachers would be asked for each batch anyway
    assert_agree(setting, [Method(InCompany(way))])


def test_auto_batches_small_models_and_accelerators() -> None:
    assert choose_engine("cpu", 6_000, 64, 10, 1)[0] == "vectorised"
    assert choose_engine("cpu", 62_006, 3072, 10, 1)[0] == "reference"
    assert choose_engine("cpu", 6_000, 64, 1, 1)[0] == "reference"
    assert choose_engine("cuda", 23_000_000, 3072, 10, 1)[0] == "vectorised"


@pytest.mark.parametrize("shared", [False, True], ids=["nets of their own", "one net"])
def test_two_engines_in_two_threads_do_not_mix(shared: bool) -> None:
    settings = [Setting(), Setting()]
    settings[1].weights = tree.map_tree(lambda leaf: 1.5 * leaf, settings[1].weights)
    if shared:
        settings[1].net = settings[0].net
    work = [(setting, several(spec, 2)) for setting, spec in zip(settings, ("fedssd", "moon"), strict=True)]

    def played(setting: Setting, methods: list[Method]) -> list[Any]:
        return setting.play(setting.engines()[1], methods)

    expected = [played(*one) for one in work]
    between = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # let them come between each other as often as can be
    try:
        with ThreadPoolExecutor(2) as pool:
            found = [future.result() for future in [pool.submit(played, *one) for one in work]]
    finally:
        sys.setswitchinterval(between)
    for a, b in zip(tensors(expected), tensors(found), strict=True):
        assert torch.equal(a, b)


def test_the_device_s_arithmetic_is_one_thread_s_at_a_time() -> None:
    switch, device = torch.backends.cuda.matmul, torch.device("cuda")
    before, within, came = switch.fp32_precision, threading.Event(), threading.Event()

    def first() -> str:
        with _arithmetic(device, "tf32", benchmark=False):
            within.set()
            came.wait(0.2)
            return switch.fp32_precision

    def second() -> str:
        within.wait()
        with _arithmetic(device, "fp32", benchmark=False):
            came.set()
            return switch.fp32_precision

    with ThreadPoolExecutor(2) as pool:
        assert [future.result() for future in [pool.submit(first), pool.submit(second)]] == ["tf32", "ieee"]
    assert switch.fp32_precision == before
