"""A compiled step, as one large model takes it on an accelerator, is the reference engine's: teachers inside."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor, nn

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Method
from fedssd.core.engine import Job, World
from fedssd.core.net import Net, weights_of
from fedssd.core.plan import Schedule
from fedssd.core.round import ClientStore, Rounds
from fedssd.data.augment import Augmentation
from fedssd.engines.reference import ReferenceEngine
from fedssd.engines.vectorised import VectorisedEngine
from fedssd.methods.registry import build_local

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the CPU by a C++ compiler"),
    pytest.mark.filterwarnings("ignore"),  # the compiler's own
]


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(torch.relu(self.norm(self.conv(x))).flatten(1))
        return found


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("name", ["fedssd", "moon"])
def test_a_compiled_round_is_the_references(name: str, width: int) -> None:
    torch.manual_seed(0)
    x, y = torch.randint(0, 256, (16, 1, 6, 6), dtype=torch.uint8), torch.randint(0, 3, (16,))
    world = World(x, y, x, y, 3, Augmentation(pad=1, flip=True, mean=(0.5,), std=(0.2,)), dtype=torch.float64)
    net, method, schedule = Net(Normed()), Method(build_local(name)), Schedule(2, 4, drop_partial=True)
    weights = tree.map_tree(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, weights_of(Normed()))
    auxiliary = Auxiliary(world.pipeline.test(x, world.dtype), y)
    rounds = Rounds(net)
    sent = rounds.open(method, rounds.first_state(method, weights), auxiliary)
    memories = ClientStore(2).get([0, 1], method.local.memory(sent))
    job = Job(method, sent, 0, 0, [0, 1], [torch.arange(7), torch.arange(7, 16)], memories)
    (expected,) = ReferenceEngine(net, world, schedule).train([job])
    (found,) = VectorisedEngine(net, world, schedule, width=width, compile=True, precision="fp64").train([job])
    for part in ("local", "figures", "memories"):
        for ours, theirs in zip(tree.leaves(getattr(found, part)), tree.leaves(getattr(expected, part)), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
