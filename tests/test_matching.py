"""PFNM and FedMA: the laws of matching, their witnesses, and the models and pairs they refuse."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import witness_matching
from conftest import CLASSES, WIDTH, just, make_scene
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedssd
from fedssd.cli import main
from fedssd.core import tree
from fedssd.core.contract import Local, Server
from fedssd.core.net import Net, weights_of
from fedssd.errors import UserError
from fedssd.methods.servers.fedma import FedMA
from fedssd.methods.servers.matching import chain, match, reordered
from fedssd.methods.servers.pfnm import PFNM
from fedssd.models import CNN, MLP, ResNet, SmallCNN, initial_weights

HALVES = {"pfnm": PFNM, "fedma": FedMA}
MODELS = {
    "mlp": (MLP, (1, 4, 4), False),
    "mlp with head": (MLP, (1, 4, 4), True),
    "cnn": (CNN, (3, 20, 20), False),
    "small cnn with head": (SmallCNN, (1, 8, 8), True),
}


class Deep(nn.Module):
    """5 → 4 → 3 → 4, small enough to try every permutation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(WIDTH, 4), nn.Linear(4, 3), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.head(features), features


class Rows(nn.Module):
    """Two convolutions over a row of five numbers, then 4 → 4."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, (1, 3), padding=(0, 1)), nn.Conv2d(3, 4, (1, 2))
        self.hidden, self.head = nn.Linear(4 * 4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.tanh(self.conv2(torch.tanh(self.conv1(x[:, None, None, :]))))
        features = torch.tanh(self.hidden(x.flatten(1)))
        return self.head(features), features


@pytest.fixture(params=[Deep, Rows], ids=["mlp", "cnn"])
def scene(request: pytest.FixtureRequest) -> Any:
    """Five rounds with steps so large that clients' units come apart."""
    draw = torch.Generator().manual_seed(5)
    model = request.param().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    cohorts = [[0, 1, 3], [1, 2, 4], [0, 2, 4], [0, 1, 2], [1, 3, 4]]
    return replace(make_scene(), model=model).but(lr=0.5, weight_decay=0.01, cohorts=cohorts)


def drawn(name: str, seed: int, clients: int) -> tuple[Net, list[dict[str, Tensor]], Tensor]:
    """A model's net, some unrelated parameters for it, and inputs."""
    kind, shape, head = MODELS[name]
    module = kind(shape, 5, head)
    weights = [initial_weights(module, seed + client)["params"] for client in range(clients)]
    x = torch.randn(6, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Net(module), [tree.map_tree(torch.Tensor.double, one) for one in weights], x


def shuffled(params: dict[str, Tensor], draw: torch.Generator) -> dict[str, Tensor]:
    """The same function with the hidden units of every layer in another order."""
    stacked = tree.map_tree(lambda w: w[None], params)
    layers = chain(params)
    for layer, above in pairwise(layers):
        stacked = reordered(stacked, layer, above, torch.randperm(layer.units, generator=draw)[None])
    return {name: leaf[0] for name, leaf in stacked.items()}


def combined(server: Server, net: Net, params: list[dict[str, Tensor]], share: Tensor | None = None) -> Any:
    share = torch.full((len(params),), 1 / len(params), dtype=torch.float64) if share is None else share
    weights = {"params": params[0], "buffers": {}}
    got = {"params": tree.stack(params), "buffers": {}}
    found, _ = server.combine(net, weights, server.memory(weights), got, just(share))
    return found


def answers(net: Net, params: dict[str, Tensor], x: Tensor) -> Tensor:
    return net({"params": params, "buffers": {}}, x).logits


# ------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize("model", MODELS)
def test_reordering_hidden_units_leaves_the_function_as_it_is(model: str) -> None:
    net, (params,), x = drawn(model, 3, 1)
    other = shuffled(params, torch.Generator().manual_seed(1))
    assert max(float((other[name] - params[name]).abs().max()) for name in params) > 0.1
    torch.testing.assert_close(answers(net, other, x), answers(net, params, x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("model", MODELS)
def test_identical_clients_give_the_client(half: str, model: str) -> None:
    net, (params,), _ = drawn(model, 4, 1)
    share = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    found = combined(HALVES[half](), net, [params] * 3, share)["params"]
    for name in params:
        torch.testing.assert_close(found[name], params[name], rtol=0, atol=1e-14)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("model", MODELS)
def test_permuted_copies_are_recovered(half: str, model: str) -> None:
    """Clients equal up to the order of their hidden units: the first client's model comes out, unit for unit."""
    net, (params,), x = drawn(model, 5, 1)
    draw = torch.Generator().manual_seed(2)
    copies = [shuffled(params, draw) for _ in range(4)]
    found = combined(HALVES[half](), net, copies)["params"]
    for name in params:
        torch.testing.assert_close(found[name], copies[0][name], rtol=0, atol=1e-14)
    plain = tree.weighted_mean(torch.full((4,), 0.25, dtype=torch.float64), tree.stack(copies))
    expected = answers(net, params, x)
    assert float((answers(net, found, x) - expected).abs().max()) <= 1e-12
    assert float((answers(net, plain, x) - expected).abs().max()) > 1e-3  # which the plain mean does not do


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("model", ["mlp", "small cnn with head"])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=5, deadline=None)
def test_the_order_of_a_client_s_units_does_not_matter(half: str, model: str, seed: int) -> None:
    """Whatever the clients learned: reordering the hidden units of any of them gives the same global function."""
    net, params, x = drawn(model, seed, 3)
    draw = torch.Generator().manual_seed(seed)
    share = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    straight = combined(HALVES[half](), net, params, share)["params"]
    other = combined(HALVES[half](), net, [shuffled(one, draw) for one in params], share)["params"]
    torch.testing.assert_close(answers(net, other, x), answers(net, straight, x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("half", HALVES)
def test_units_that_stayed_in_place_give_fedavg(half: str) -> None:
    net, (params,), _ = drawn("mlp", 6, 1)
    draw = torch.Generator().manual_seed(3)
    near = [
        tree.map_tree(lambda w: w + 1e-4 * torch.randn(w.shape, generator=draw, dtype=w.dtype), params)
        for _ in range(3)
    ]
    share = torch.tensor([0.6, 0.1, 0.3], dtype=torch.float64)
    expected = tree.weighted_mean(share, tree.stack(near))
    found = combined(HALVES[half](), net, near, share)["params"]
    assert all(torch.equal(found[name], expected[name]) for name in params)


def test_equal_weighting_and_the_prior_are_what_they_say() -> None:
    net, (params,), _ = drawn("mlp", 7, 1)
    share = torch.tensor([0.9, 0.1], dtype=torch.float64)
    pair = [params, tree.map_tree(lambda w: 1.1 * w, params)]
    for half in (PFNM(weighting="equal"), FedMA(weighting="equal")):
        found = combined(half, net, pair, share)["params"]
        torch.testing.assert_close(found["body.1.weight"], 1.05 * params["body.1.weight"], rtol=1e-12, atol=0)
    found = combined(PFNM(prior=0.5), net, pair, share)["params"]  # 2/(2 + 0.5) of 0.9·w + 0.1·1.1w
    torch.testing.assert_close(found["body.1.weight"], 0.8 * 1.01 * params["body.1.weight"], rtol=1e-12, atol=0)


@given(
    seed=st.integers(0, 10**6),
    clients=st.integers(1, 4),
    units=st.integers(1, 5),
    mean=st.floats(-1, 1),
    prior=st.floats(0.1, 20),
    noise=st.floats(0.1, 5),
)
@settings(max_examples=30, deadline=None)
def test_match_is_the_paper_s_assignment_at_capped_width(
    seed: int, clients: int, units: int, mean: float, prior: float, noise: float
) -> None:
    """Equation 9 in full, by trying every permutation: prior and variances have no say once the width is capped."""
    atoms = torch.randn(clients, units, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = witness_matching.match(list(atoms.numpy()), 20, (mean, prior, noise))
    assert match(atoms, 20).tolist() == expected


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_client_that_is_not_finite_is_in_the_mean_as_in_fedavg(half: str, value: float) -> None:
    """The guard is off: nothing can be matched, and the mean is what a mean with such a client is."""
    net, (params,), _ = drawn("mlp", 8, 1)
    broken = tree.map_tree(lambda leaf: torch.full_like(leaf, value), params)
    found = combined(HALVES[half](), net, [params, broken, params])["params"]
    assert all(not bool(torch.isfinite(leaf).any()) for leaf in found.values())


def test_matching_sees_through_noise() -> None:
    draw = torch.Generator().manual_seed(8)
    one = torch.randn(20, 6, generator=draw, dtype=torch.float64)
    orders = torch.stack([torch.randperm(20, generator=draw) for _ in range(5)])
    atoms = torch.stack(
        [one[order] + 0.02 * torch.randn(20, 6, generator=draw, dtype=torch.float64) for order in orders]
    )
    found = match(atoms, 3)
    for client in range(5):
        assert torch.equal(orders[client][found[client]], orders[0][found[0]])


# ------------------------------------------------------------------------------------------- rounds


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
@pytest.mark.parametrize("weighting", ["samples", "equal"])
@pytest.mark.parametrize(("half", "options"), [("pfnm", {}), ("pfnm", {"prior": 1.0}), ("fedma", {})])
def test_equals_its_witness(scene: Any, half: str, options: dict[str, float], weighting: str, engine: str) -> None:
    ours = scene.ours(Local(), HALVES[half](weighting=weighting, sweeps=2, **options), engine)
    theirs = witness_matching.rounds(half, scene.model, scene.task, weighting, 2, **options)
    for mine, its in zip(ours, theirs, strict=True):
        assert max(float((mine.state.weights["params"][k] - its[k]).abs().max()) for k in its) <= 1e-10


@pytest.mark.parametrize("half", HALVES)
def test_units_move_in_this_scene(scene: Any, half: str) -> None:
    """Else the witness would say nothing about matching: here some round's result is not the plain mean."""
    moved = 0.0
    for one in scene.ours(Local(), HALVES[half]()):
        samples = one.trained.work.samples
        plain = tree.weighted_mean(samples / samples.sum(), one.trained.got)["params"]
        moved = max(moved, *(float((plain[k] - one.state.weights["params"][k]).abs().max()) for k in plain))
    assert moved > 1e-3


def test_fedma_freezes_one_layer_more_each_round_and_begins_again(scene: Any) -> None:
    layers = chain(weights_of(scene.model)["params"])
    for number, one in enumerate(scene.ours(Local(), FedMA())):
        frozen = number % len(layers)
        assert float(one.sent["frozen"]) == frozen
        for depth, layer in enumerate(layers):
            before, local = one.sent["weights"]["params"][layer.weight], one.trained.local["params"][layer.weight]
            assert all(torch.equal(client, before) for client in local) == (depth < frozen)
            assert torch.equal(one.state.weights["params"][layer.weight], before) == (depth < frozen)


# ------------------------------------------------------------------------------------------- refusals


class Ordered(nn.Module):
    """A chain by its shapes, but what a unit says depends on its place."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cumsum(self.hidden(x), dim=1))


class Branches(nn.Module):
    """Two layers that read the same inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(WIDTH, 6), nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.left(x)) + torch.relu(self.right(x)))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.scale, self.head = nn.Linear(WIDTH, 6), nn.LayerNorm(6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.scale(self.hidden(x)))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    ("module", "shape", "said"),
    [
        (ResNet((3, 8, 8), 4, stages=(1,), width=4), (3, 8, 8), "batch norm"),
        (Ordered(), (WIDTH,), "depend on the order"),
        (Branches(), (WIDTH,), "'right' does not read the 6 units before it"),
        (Scaled(), (WIDTH,), "'scale.weight' of shape"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_models_that_cannot_be_matched_are_refused(half: str, module: nn.Module, shape: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"server half '{half}' .*{said}"):
        HALVES[half]().check(Net(module), weights_of(module), torch.randn(2, *shape))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("model", MODELS)
def test_our_chains_are_accepted(half: str, model: str) -> None:
    net, (params,), x = drawn(model, 9, 1)
    HALVES[half]().check(net, {"params": params, "buffers": {}}, x)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "fedssd+scaffold", "--server", "pfnm"], "'scaffold' does not go with server half 'pfnm'"),
        (["--server", "fedma", "--set", "fedma.sweeps=-1"], "fedma.sweeps expects"),
        (["--server", "pfnm", "--set", "pfnm.weighting=some"], "pfnm.weighting expects one of samples, equal"),
    ],
)
def test_the_command_line_refuses_in_one_line(
    words: list[str], said: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words, "--rounds", "1", "--auxiliary", "4", "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_run_with_a_model_that_cannot_be_matched_does_not_start() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))
    with pytest.raises(UserError, match="cannot match units through batch norm"):
        fedssd.run("fedavg", model=module, server="pfnm", data="digits", rounds=1, auxiliary=4)
