"""SGD: its steps, and how far they walk."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedssd.core.solver import SGD


@given(steps=st.integers(0, 60), momentum=st.sampled_from([0.0, 0.3, 0.9, 0.99]), lr=st.sampled_from([0.01, 0.5]))
@settings(max_examples=40, deadline=None)
def test_length_equals_simulating_the_weight_of_every_gradient(steps: int, momentum: float, lr: float) -> None:
    """Feed a gradient of 1 at every step: the distance walked is η‖a‖₁."""
    weight = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0
        weight -= lr * velocity
    found = SGD(lr, momentum).length(torch.tensor(float(steps), dtype=torch.float64))
    assert float(found) == pytest.approx(-weight, rel=1e-11, abs=1e-13)


@given(
    lr=st.sampled_from([0.01, 0.3]),
    momentum=st.sampled_from([0.0, 0.9]),
    decay=st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20, deadline=None)
def test_sgd_equals_torchs(lr: float, momentum: float, decay: float, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    start, *gradients = torch.randn(6, 4, generator=source, dtype=torch.float64)
    parameter = nn.Parameter(start.clone())
    theirs = torch.optim.SGD([parameter], lr=lr, momentum=momentum, weight_decay=decay)
    solver, params = SGD(lr, momentum, decay), {"w": start}
    velocity = solver.init(params)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        theirs.step()
        params, velocity = solver.step(params, velocity, {"w": gradient})
    torch.testing.assert_close(params["w"], parameter.detach(), rtol=1e-14, atol=1e-14)
