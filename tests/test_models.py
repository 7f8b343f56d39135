"""The models: how many parameters, how they start, what they give back."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedssd.core import tree
from fedssd.core.net import Net, weights_of
from fedssd.errors import UserError
from fedssd.models import MODELS, build_model, initial_weights
from fedssd.models.networks import ResNet

SHAPES = {"cnn": (3, 32, 32), "cnn-small": (1, 8, 8), "mlp": (12,), "resnet50": (3, 8, 8)}


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.quick
def test_the_papers_cnn_has_62006_parameters() -> None:
    """456 + 2,416 + 48,120 + 10,164 + 850."""
    expected = (3 * 25 + 1) * 6 + (6 * 25 + 1) * 16 + (400 + 1) * 120 + (120 + 1) * 84 + (84 + 1) * 10
    assert expected == 62_006
    assert count(build_model("cnn", (3, 32, 32), 10)) == expected


def bottlenecks(classes: int) -> int:
    """ResNet-50's parameters by arithmetic: three convolutions a block, two numbers a batch-norm channel."""
    total, inputs = 3 * 9 * 64 + 2 * 64, 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            total += inputs * width + 9 * width * width + width * 4 * width + 2 * (width + width + 4 * width)
            if block == 0:
                total += inputs * 4 * width + 2 * 4 * width
            inputs = 4 * width
    return total + (inputs + 1) * classes


@pytest.mark.quick
def test_resnet50_has_23705252_parameters() -> None:
    with torch.device("meta"):
        model = build_model("resnet50", (3, 32, 32), 100)
    assert bottlenecks(100) == 23_705_252
    assert count(model) == 23_705_252


@pytest.mark.quick
@pytest.mark.parametrize(("name", "width"), [("cnn", 84), ("cnn-small", 64), ("mlp", 64), ("resnet50", 2048)])
def test_the_projection_head_adds_two_layers(name: str, width: int) -> None:
    """n → n and n → 256, and the classifier reads 256 numbers instead of n."""
    with torch.device("meta"):
        plain, projected = build_model(name, SHAPES[name], 10), build_model(name, SHAPES[name], 10, head=True)
    added = (width + 1) * width + (width + 1) * 256 + (256 - width) * 10
    assert count(projected) - count(plain) == added


@pytest.mark.quick
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize(("name", "width"), [("cnn", 84), ("cnn-small", 64), ("mlp", 64)])
def test_models_give_logits_and_features(name: str, width: int, head: bool) -> None:
    model = build_model(name, SHAPES[name], 7, head)
    net, weights = Net(model), initial_weights(model, 0)
    with torch.no_grad():
        out = net(weights, torch.randn(3, *SHAPES[name]))
    assert out.logits.shape == (3, 7)
    assert out.features.shape == (3, 256 if head else width)


def test_a_small_resnet_runs_and_halves_three_times() -> None:
    model = ResNet((3, 16, 16), 5, stages=(1, 1, 1, 1), width=4)
    net, weights = Net(model), initial_weights(model, 0)
    assert net.has_batch_norm
    with torch.no_grad():
        out, buffers = net.train(weights, torch.randn(2, 3, 16, 16))
    assert out.logits.shape == (2, 5)
    assert out.features.shape == (2, 4 * 8 * 4)
    assert float((buffers["bn1.running_mean"] - weights["buffers"]["bn1.running_mean"]).abs().max()) > 0


@pytest.mark.quick
@pytest.mark.parametrize("name", ["cnn", "cnn-small", "mlp"])
def test_initial_weights_have_pytorchs_bounds_and_spread(name: str) -> None:
    """U(−b, b) with b = 1/√fan_in: within the bound, standard deviation b/√3, mean 0 (four standard errors)."""
    model = build_model(name, SHAPES[name], 10)
    weights = initial_weights(model, 0)["params"]
    for path, layer in model.named_modules():
        if not isinstance(layer, nn.Conv2d | nn.Linear):
            continue
        bound = 1 / math.sqrt(layer.weight[0].numel())
        for kind in ("weight", "bias"):
            assert float(weights[f"{path}.{kind}"].abs().max()) <= bound
        values = weights[f"{path}.weight"].double()
        error = bound / math.sqrt(3 * values.numel())
        assert abs(float(values.mean())) < 4 * error
        assert float(values.std()) == pytest.approx(bound / math.sqrt(3), rel=4 / math.sqrt(values.numel()))
        assert float(values.abs().max()) > bound * (1 - 20 / values.numel())


def test_convolutions_without_bias_start_normal_with_variance_two_over_fan_out() -> None:
    model = ResNet((3, 8, 8), 5, stages=(1, 1, 1, 1), width=16)
    weights = initial_weights(model, 0)["params"]
    checked = 0
    for path, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d):
            values = weights[f"{path}.weight"].double()
            expected = math.sqrt(2 / (layer.out_channels * layer.kernel_size[0] * layer.kernel_size[1]))
            assert float(values.std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * values.numel()))
            assert abs(float(values.mean())) < 4.5 * expected / math.sqrt(values.numel())
            checked += 1
        elif isinstance(layer, nn.BatchNorm2d):
            assert bool((weights[f"{path}.weight"] == 1).all())
            assert bool((weights[f"{path}.bias"] == 0).all())
    assert checked == 1 + 4 * 4


@pytest.mark.quick
@pytest.mark.parametrize("name", ["cnn", "cnn-small", "mlp"])
def test_the_seed_alone_decides_the_weights(name: str) -> None:
    torch.manual_seed(1)
    one = build_model(name, SHAPES[name], 10)
    torch.manual_seed(2)
    other = build_model(name, SHAPES[name], 10)
    first, again, another = initial_weights(one, 5), initial_weights(other, 5), initial_weights(one, 6)
    for a, b, c in zip(*(tree.leaves(weights) for weights in (first, again, another)), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


@pytest.mark.quick
def test_no_two_layers_share_their_draws() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    weights = initial_weights(model, 0)["params"]
    assert not torch.equal(weights["0.weight"], weights["1.weight"])
    assert not torch.equal(weights["0.weight"][0], weights["0.bias"])


@pytest.mark.quick
def test_initial_weights_leave_the_module_alone() -> None:
    model = build_model("mlp", (4,), 3)
    before = weights_of(model)
    initial_weights(model, 1)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(before), tree.leaves(weights_of(model)), strict=True))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "shape", "match"),
    [("cmn", (3, 32, 32), "did you mean 'cnn'"), ("cnn", (1, 8, 8), "16×16"), ("resnet50", (12,), "8×8")],
)
def test_a_model_that_does_not_fit_is_refused(name: str, shape: tuple[int, ...], match: str) -> None:
    with pytest.raises(UserError, match=match):
        build_model(name, shape, 10)


@pytest.mark.quick
def test_the_table_of_models_is_covered_here() -> None:
    assert set(MODELS) == set(SHAPES)
