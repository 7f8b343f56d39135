"""Numbers and sums of methods, and means over a client's data."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.contract import ClientData, Local, Method, Sum, mean_over, numbers_of, parts_of, with_numbers
from fedssd.core.solver import SGD
from fedssd.methods.fedprox import FedProx
from fedssd.methods.fedssd import FedSSD
from fedssd.methods.moon import MOON


@pytest.mark.quick
def test_numbers_go_out_and_come_back() -> None:
    method = Method(FedSSD(m_max=0.5) + FedProx(mu=0.25), solver=SGD(0.1, 0.8, 1e-4))
    numbers = numbers_of(method)
    assert numbers["solver"] == {"lr": 0.1, "momentum": 0.8, "weight_decay": 1e-4}
    assert numbers["local"]["parts"]["0"] == {"m_max": 0.5, "floor": 0.1, "exponent": 0.5}
    assert numbers["local"]["parts"]["1"] == {"mu": 0.25}
    assert with_numbers(method, numbers) == method


@pytest.mark.quick
def test_numbers_may_be_tensors() -> None:
    doubled = tree.map_tree(lambda number: torch.tensor(2 * number), numbers_of(Method(MOON(mu=3.0))))
    changed = with_numbers(Method(MOON(mu=3.0)), doubled)
    assert float(changed.local.mu) == 6.0  # type: ignore[attr-defined]
    assert float(changed.solver.lr) == pytest.approx(0.02)
    back = numbers_of(changed)
    assert float(back["local"]["temperature"]) == 1.0


@pytest.mark.quick
def test_sums_are_flat_and_refuse_twins() -> None:
    total = FedSSD() + FedProx() + MOON()
    assert [part.name for part in parts_of(total)] == ["fedssd", "fedprox", "moon"]
    assert isinstance(total, Sum)
    assert parts_of(Local()) == (Local(),)
    with pytest.raises(ValueError, match="fedprox \\+ fedprox"):
        FedProx() + FedProx(mu=1.0)
    method = Method(total)
    assert (method.needs_auxiliary, method.needs_head, method.reads_data) == (True, True, False)
    assert replace(method, local=FedProx()).needs_auxiliary is False


@pytest.mark.quick
@pytest.mark.parametrize("chunk", [1, 3, 4, 11, 32])
def test_mean_over_equals_the_plain_mean(chunk: int) -> None:
    """Also for chunks that do not divide the eleven samples; padding does not count."""
    x, y = torch.randn(11, 2, dtype=torch.float64), torch.arange(11)
    data = ClientData(x, y, torch.ones(11, dtype=torch.float64), lambda stored: 2 * stored)
    found = mean_over(data, lambda one, label: {"s": one * label, "n": {"q": one.square().sum()}}, chunk)
    torch.testing.assert_close(found["s"], sum(2 * x[i] * i for i in range(11)) / 11, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(found["n"]["q"], (2 * x).square().sum() / 11, rtol=1e-13, atol=0)
    padded = ClientData(
        F.pad(x, (0, 0, 0, 5), value=99.0), F.pad(y, (0, 5)), F.pad(data.mask, (0, 5)), lambda stored: 2 * stored
    )
    again = mean_over(padded, lambda one, label: {"s": one * label, "n": {"q": one.square().sum()}}, chunk)
    torch.testing.assert_close(again["s"], found["s"], rtol=1e-13, atol=1e-15)
