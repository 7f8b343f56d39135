"""The vectorised engine gives what the reference engine gives: every method, every shape of cohort, in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from cohorts import CLASSES, COHORT, Setting, assert_agree, first_jobs, several, tensors
from torch import Tensor, nn

from fedssd.core import tree
from fedssd.core.contract import Batch, Local, Method, Server
from fedssd.core.net import Net, Outputs, weights_of
from fedssd.core.tree import Tree
from fedssd.engines.vectorised import VectorisedEngine
from fedssd.engines.vectorised.layout import fitted, ladder
from fedssd.methods.registry import LOCALS, SERVERS

METHODS = [*LOCALS, "fedssd+fedprox+moon", "fedprox+scaffold"]  # the last has no teachers


@pytest.mark.parametrize(
    "batch_norm", [pytest.param(False, id="plain"), pytest.param(True, id="batch-norm", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("spec", METHODS)
def test_three_runs_at_once_agree_with_the_reference(spec: str, batch_norm: bool) -> None:
    assert_agree(Setting(batch_norm), several(spec, 3))


@pytest.mark.parametrize("spec", METHODS)
def test_one_run_in_several_passes_agrees_with_the_reference(spec: str) -> None:
    assert_agree(Setting(), several(spec, 1), width=3)


@pytest.mark.slow
@pytest.mark.parametrize("server", [name for name in SERVERS if name != "fedavg"])
def test_every_server_half_agrees_in_several_passes(server: str) -> None:
    assert_agree(Setting(), several("fedssd", 2, SERVERS[server]), width=5)


@pytest.mark.parametrize("spec", ["fedavg", "moon", "fedssd"])
def test_augmented_images_agree_with_the_reference(spec: str) -> None:
    setting = Setting(images=True)
    assert setting.world.pipeline.random
    assert_agree(setting, several(spec, 1))


@pytest.mark.parametrize("most", [1, 2, 6])
def test_a_batch_that_shrinks_where_it_suits_the_cohort(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VectorisedEngine, "_widths", lambda self, jobs, cohort: [*fitted(tuple(cohort.steps), most)])
    assert_agree(Setting(), several("fedssd", 3))


def test_widths_follow_the_cohort_where_it_stays_the_same() -> None:
    setting = Setting()
    engine = VectorisedEngine(setting.net, setting.world, setting.schedule, precision="fp64", graphs=True)
    jobs = first_jobs(setting, several("fedavg", 2))
    steps = (9, 9, 4, 4, 2, 2, 1, 1)
    whole, part = (SimpleNamespace(width=width, steps=steps[:width]) for width in (2 * COHORT, 5))
    steady = [replace(job, steady=True) for job in jobs]
    assert engine._widths(steady, whole) == [*fitted(steps)] == [8, 6, 4, 2]  # type: ignore[arg-type]
    assert engine._widths(jobs, whole) == ladder(8) == [8, 7, 6, 4, 3, 2]  # type: ignore[arg-type]
    assert engine._widths([jobs[0], steady[1]], whole) == ladder(8)  # type: ignore[arg-type]
    assert engine._widths(steady, part) == ladder(5)  # type: ignore[arg-type]  # one pass of several


def test_one_model_at_a_time_agrees_with_the_reference() -> None:
    assert_agree(Setting(batch_norm=True), several("fedcurv", 1), width=1)


@pytest.mark.parametrize("server", ["fedavg", "fedma"])
def test_a_recorded_step_agrees_with_the_reference(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedssd.engines.vectorised.program.RECORD_AFTER", 0)
    assert_agree(Setting(), several("fedssd", 2, SERVERS[server]))


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
