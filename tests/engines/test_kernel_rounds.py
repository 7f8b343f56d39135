"""A round with our kernels is the round without, whatever method, model and solver do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from kernel_checks import PLACE, close, needs_kernels
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Batch, Local, Method
from fedssd.core.engine import Job, World
from fedssd.core.net import Net, Outputs, weights_of
from fedssd.core.plan import Schedule
from fedssd.core.round import ClientStore, Rounds
from fedssd.core.solver import SGD
from fedssd.core.tree import Tree
from fedssd.data.augment import Augmentation
from fedssd.engines.kernels import layers, strides
from fedssd.engines.vectorised import VectorisedEngine, sizing
from fedssd.methods.registry import build_local


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool, self.out = nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.pool(torch.relu(self.conv(x))).flatten(1))


AUGMENTED = Augmentation(pad=1, flip=True, mean=(0.5,), std=(0.2,))


def assert_same_round(
    local: Local,
    pipeline: Augmentation = AUGMENTED,
    runs: int = 2,
    width: int = 4,
    solver: SGD | None = None,
    module: type[nn.Module] = Tiny,
    notices: list[str] | None = None,
    samples: int = 12,
) -> None:
    """A round of two clients a run, with kernels and without; nothing is said, unless ``notices`` are wanted."""
    torch.manual_seed(0)
    x, y = torch.randint(0, 256, (samples, 1, 6, 6), dtype=torch.uint8), torch.randint(0, 3, (samples,))
    x, y = x.to(PLACE), y.to(PLACE)
    world = World(x, y, x, y, 3, pipeline)
    net, method = Net(module().to(PLACE)), Method(local, solver=solver or SGD())
    weights = tree.map_tree(lambda leaf: 2 * leaf, weights_of(module().to(PLACE)))
    auxiliary = Auxiliary(world.pipeline.test(x, torch.float32), y)
    rounds = Rounds(net)
    sent = rounds.open(method, rounds.first_state(method, weights), auxiliary)
    rows = list(torch.arange(samples, device=PLACE).split([samples * 5 // 12, samples - samples * 5 // 12]))
    memories = ClientStore(2).get([0, 1], method.local.memory(sent))
    jobs = [Job(method, sent, seed, 0, [0, 1], rows, memories) for seed in range(runs)]
    said: list[str] = [] if notices is None else notices
    plain, ours = (
        VectorisedEngine(net, world, Schedule(2, 4), width=width, kernels=k, notice=said.append) for k in (False, True)
    )
    for expected, found in zip(plain.train(jobs), ours.train(jobs), strict=True):
        close(found.local, expected.local)
        close(found.figures, expected.figures)
    expected_of, found_of = plain.evaluate(found.local), ours.evaluate(found.local)
    close(found_of.loss, expected_of.loss)
    assert torch.equal(found_of.confusion, expected_of.confusion)
    assert ours.kernels == (not said)
    assert not said or notices is not None


@needs_kernels
@pytest.mark.parametrize("name", ["fedavg", "fedssd", pytest.param("moon", marks=pytest.mark.slow)])
def test_a_round_with_kernels_is_the_round_without(name: str) -> None:
    assert_same_round(build_local(name))


@needs_kernels
def test_a_teacher_of_many_batches_takes_them_apart_or_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "SMALL", 0)  # here all batches are small, and above went as one
    assert_same_round(build_local("fedssd"))


@needs_kernels
@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedssd", "moon"])
def test_teachers_that_are_asked_once_about_all_samples(name: str) -> None:
    """Inputs that do not change: a vmap over the models, and in it one over blocks of more samples than a warp has."""
    assert_same_round(build_local(name), Augmentation(mean=(0.5,), std=(0.2,)), samples=60)


@needs_kernels
@pytest.mark.parametrize("block", [pytest.param(8, marks=pytest.mark.slow), 3])
def test_a_test_set_in_blocks_of_whole_rows(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "EVALUATION_BLOCKS", (block,))
    monkeypatch.setattr(strides, "ROW", 4)
    assert_same_round(Local())  # 12 samples: a block of 8, and one of 4 that is filled up; or four that are no row


@needs_kernels
def test_a_solver_with_whole_numbers() -> None:
    assert_same_round(Local(), solver=SGD(lr=1, momentum=0, weight_decay=0))


@needs_kernels
def test_a_model_whose_features_differ_with_kernels_goes_without() -> None:

    class Odd(Tiny):
        def forward(self, x: Tensor) -> Outputs:
            hidden = self.conv(x)
            features = 1.0 * isinstance(hidden, Tensor) * torch.ones_like(x).flatten(1)  # ours is no tensor yet
            return Outputs(super().forward(x), features)

    said: list[str] = []
    assert_same_round(Local(), module=Odd, notices=said)
    assert said == [
        "vectorised: our kernels do not fit this model (it answers otherwise with them), going on with PyTorch's layers"
    ]


@needs_kernels
def test_a_model_that_asks_how_its_images_lie_goes_without() -> None:

    class Strict(Tiny):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.view(-1).view(x.shape))  # only where samples lie one after another

    said: list[str] = []
    assert_same_round(Local(), module=Strict, notices=said)
    assert len(said) == 1
    assert "our kernels do not fit this model (RuntimeError: view size is not compatible" in said[0]


@dataclass(frozen=True)
class Steep(Local):
    """Targets that are gradients: of the sent model's weights on the batch, and of each sample's pixels."""

    name: ClassVar[str] = "steep"

    def targets(self, net: Net, sent: Tree, memory: Tree, batch: Batch) -> Tree:
        weights = sent["weights"]

        def loss(params: Tree, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(net({**weights, "params": params}, x).logits, y, reduction="none").sum()

        slope = torch.func.grad(loss)(weights["params"], batch.x, batch.y)
        one = lambda x, y: loss(weights["params"], x[None], y[None])  # noqa: E731
        pixels = vmap(torch.func.grad(one))(batch.x, batch.y)
        bend = vmap(torch.func.jacrev(lambda x: net(weights, x[None]).logits[0]))(batch.x).flatten(2).sum(-1)  # [B, K]
        return {"slope": slope["out.bias"], "pixels": pixels.flatten(1).norm(dim=1), "bend": bend}

    def penalty(self, out: Outputs, batch: Batch, target: Tree, params: Tree, sent: Tree, memory: Tree) -> Tensor:
        own = torch.func.grad(lambda z: F.cross_entropy(z, batch.y, reduction="none").sum())(out.logits)
        pull = ((out.logits - target["bend"]) * target["slope"]).sum(-1) * target["pixels"]
        return 0.1 * pull + own.square().sum(-1)


@needs_kernels
@pytest.mark.parametrize(
    ("pipeline", "runs", "width"),
    [
        (Augmentation(), 1, 1),
        *(pytest.param(Augmentation(), *both, marks=pytest.mark.slow) for both in ((1, 4), (2, 1), (2, 4))),
        *(pytest.param(AUGMENTED, *both, marks=pytest.mark.slow) for both in ((1, 1), (1, 4), (2, 1), (2, 4))),
    ],
)
def test_hooks_may_differentiate(pipeline: Augmentation, runs: int, width: int) -> None:
    assert_same_round(Steep(), pipeline, runs, width)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", ["fedssd", "fedntd", "moon"])
def test_kernels_that_are_compiled_ahead_change_no_bit(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run rehearses, the second launches at once; the rehearsal must leave no trace in models or figures."""
    import fedssd
    from fedssd.engines.vectorised import engine, fit, program

    keys = {"data": "digits", "model": "cnn-small", "rounds": 2, "epochs": 2, "device": "cuda", "precision": "tf32"}
    ahead = fedssd.run(method, **keys)  # type: ignore[arg-type]
    for place in (engine, fit, program):
        monkeypatch.setattr(place, "rehearse", lambda work: None)
    monkeypatch.setattr(program, "unlaunched", lambda work: work())
    at_once = fedssd.run(method, **keys)  # type: ignore[arg-type]
    for one, other in zip(tree.leaves(ahead.weights), tree.leaves(at_once.weights), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(ahead.rounds, at_once.rounds, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
