"""A module as a pure function of its weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedssd.core import tree
from fedssd.core.net import Net, load_weights, weights_of


@pytest.mark.quick
@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.Dropout2d(0.1), nn.AlphaDropout(0.1), nn.RReLU()])
def test_net_refuses_layers_that_draw(layer: nn.Module) -> None:
    with pytest.raises(ValueError, match=f"'1' \\({type(layer).__name__}\\)"):
        Net(nn.Sequential(nn.Linear(2, 2), layer))
    with pytest.raises(ValueError, match=type(layer).__name__):
        Net(layer)


@pytest.mark.quick
def test_net_takes_dropout_that_never_drops() -> None:
    assert Net(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))).has_batch_norm is False


@pytest.mark.quick
def test_net_equals_the_module_in_both_modes_and_changes_neither() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    x = torch.randn(6, 3, dtype=torch.float64)
    weights = weights_of(module)
    assert set(weights["buffers"]) == {"1.running_mean", "1.running_var"}
    before = tree.map_tree(torch.clone, weights)
    net = Net(module)
    out, buffers = net.train(weights, x)
    plain = net(weights, x)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(before), tree.leaves(weights), strict=True))
    torch.testing.assert_close(plain.logits, module.eval()(x), rtol=0, atol=0)
    assert torch.equal(plain.logits, plain.features)
    torch.testing.assert_close(out.logits, module.train()(x), rtol=0, atol=0)
    for name, value in buffers.items():
        torch.testing.assert_close(value, module.get_buffer(name), rtol=0, atol=0)


@pytest.mark.quick
def test_weights_go_back_into_a_module() -> None:
    one, other = (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double() for _ in range(2))
    load_weights(other, weights_of(one))
    x = torch.randn(2, 3, dtype=torch.float64)
    assert torch.equal(one.eval()(x), other.eval()(x))
