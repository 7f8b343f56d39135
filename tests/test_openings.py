"""Halves that choose where a gradient is taken, know their classes, or optimise at the server: against witnesses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import witness_openings
from conftest import make_scene
from test_rivals import furthest, ours
from torch import Tensor, nn

from fedssd.core import tree
from fedssd.core.contract import Local, Method, Server
from fedssd.core.tree import Tree
from fedssd.methods.fedlc import FedLC
from fedssd.methods.fedprox import FedProx
from fedssd.methods.fedrs import FedRS
from fedssd.methods.fedsam import FedSAM
from fedssd.methods.scaffold import Scaffold
from fedssd.methods.servers.fedavgm import FedAvgM
from fedssd.methods.servers.fednova import FedNova
from fedssd.methods.servers.fedopt import FedAdagrad, FedAdam, FedYogi

TOLERANCE = 1e-12
ENGINES = ("reference", "vectorised")


@dataclass(frozen=True)
class Proximal(Local):
    """FedProx by its exact step: after the solver, w ← (w + η μ w_g)/(1 + η μ)."""

    name: ClassVar[str] = "proximal"

    mu: float = 0.3

    def settle(self, params: Tree, before: Tree, lr: Tensor | float, sent: Tree, memory: Tree) -> Tree:
        pull = lr * self.mu
        return tree.map_tree(lambda w, w_g: (w + pull * w_g) / (1 + pull), params, sent["weights"]["params"])


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "batch-norm"])
def scene(request: pytest.FixtureRequest) -> Any:
    return make_scene(batch_norm=request.param)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("rho", [0.05, 0.5])
def test_fedsam_equals_its_witness(scene: Any, engine: str, rho: float) -> None:
    expected = witness_openings.averaged(scene.model, scene.task, rho=rho)
    assert furthest(ours(scene, FedSAM(rho), engine=engine), expected) <= TOLERANCE


@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_fedlc_equals_its_witness(scene: Any, engine: str, tau: float) -> None:
    expected = witness_openings.averaged(scene.model, scene.task, witness_openings.fedlc(tau))
    assert furthest(ours(scene, FedLC(tau), engine=engine), expected) <= TOLERANCE


@pytest.mark.parametrize("alpha", [0.5, 0.9])
def test_fedrs_equals_its_witness(scene: Any, engine: str, alpha: float) -> None:
    expected = witness_openings.averaged(scene.model, scene.task, witness_openings.fedrs(alpha))
    assert furthest(ours(scene, FedRS(1 - alpha), engine=engine), expected) <= TOLERANCE


def test_a_step_may_be_settled(scene: Any, engine: str) -> None:
    def settle(model: nn.Module, began: list[Tensor]) -> None:
        pull = scene.task.lr * 0.3
        for parameter, first in zip(model.parameters(), began, strict=True):
            parameter.copy_((parameter + pull * first) / (1 + pull))

    expected = witness_openings.averaged(scene.model, scene.task, settle=settle)
    assert furthest(ours(scene, Proximal(), engine=engine), expected) <= TOLERANCE
    together = ours(scene, Proximal() + FedProx(0.0), engine=engine)  # a part at strength 0 adds nothing
    assert furthest(together, expected) <= TOLERANCE


@pytest.mark.parametrize(
    ("server", "numbers"),
    [
        (FedAvgM(0.7, 0.6), ("fedavgm", 0.7, 0.6, 0.0, 0.0)),
        (FedAdam(0.02, 0.8, 0.95, 1e-2), ("fedadam", 0.02, 0.8, 0.95, 1e-2)),
        (FedYogi(0.02, 0.8, 0.95, 1e-2), ("fedyogi", 0.02, 0.8, 0.95, 1e-2)),
        (FedAdagrad(0.02, 0.8, 0.95, 1e-2), ("fedadagrad", 0.02, 0.8, 0.95, 1e-2)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_server_optimisers_equal_their_witness(scene: Any, server: Server, numbers: tuple[Any, ...]) -> None:
    expected = witness_openings.optimised(scene.model, scene.task, witness_openings.Optimiser(*numbers))
    assert furthest(ours(scene, server=server), expected) <= TOLERANCE


def test_a_server_that_does_not_remember_is_fedavg(scene: Any) -> None:
    plain, still = ours(scene), ours(scene, server=FedAvgM(1.0, 0.0))
    assert max(float((plain[name] - still[name]).abs().max()) for name in plain) <= TOLERANCE


def test_what_a_sum_cannot_have_twice() -> None:
    @dataclass(frozen=True)
    class Other(FedSAM):
        name: ClassVar[str] = "other"

    with pytest.raises(ValueError, match="fedsam and other each have a point of their own: a sum takes one"):
        FedSAM() + Other()


@pytest.mark.parametrize(("local", "server"), [(Proximal(), FedNova()), (Proximal() + Scaffold(), Server())])
def test_who_reads_the_solver_s_length_refuses_other_moves(local: Local, server: Server) -> None:
    with pytest.raises(ValueError, match="divides by the length that the solver walked, and 'proximal' moves"):
        Method(local, server)


def test_uphill_is_nowhere_where_it_is_flat() -> None:
    zero = {"w": torch.zeros(3)}
    assert torch.equal(FedSAM().point({"w": torch.ones(3)}, zero, {}, {})["w"], torch.ones(3))
