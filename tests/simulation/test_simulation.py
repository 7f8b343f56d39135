"""A simulation by hand, round by round, is the run that fedssd.run makes of the same arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fedssd
from fedssd.core import tree

pytestmark = pytest.mark.quick
X, Y = torch.randn(60, 5, generator=torch.Generator().manual_seed(3)), torch.arange(60) % 3
SHORT: dict[str, Any] = {"method": "fedssd", "rounds": 2, "epochs": 1, "batch": 8, "fedssd.m_max": 1.0}
OWN: dict[str, Any] = {"clients": [(X[:20], Y[:20]), (X[20:45], Y[20:45])], "test": (X[45:], Y[45:])}


def linear() -> nn.Linear:
    torch.manual_seed(5)
    return nn.Linear(5, 3)


@pytest.mark.parametrize(
    "own",
    [
        {**OWN, "model": linear(), "auxiliary": (X[::7], Y[::7])},
        {**OWN, "model": "mlp", "auxiliary": 3},
        {"model": "mlp", "clients": 3, "auxiliary": 4},
    ],
    ids=["all of it", "data", "numbers"],
)
def test_own_data_are_taken_as_run_takes_them(own: dict[str, Any]) -> None:
    keys = SHORT if "test" in own else {**SHORT, "data": "digits", "partition": "iid"}
    simulation = fedssd.Simulation(fedssd.Recipe(**keys), **own)
    rounds = list(simulation)
    whole = fedssd.run(**{**keys, **own})
    assert simulation.recipe == whole.recipe
    assert [one.accuracy for one in rounds] == [one.accuracy for one in whole.rounds]
    pairs = zip(tree.leaves(simulation.weights), tree.leaves(whole.weights), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"clients": OWN["clients"]}, "Simulation was given its own clients and no test set"),
        ({"test": OWN["test"]}, "Simulation was given a test set and no clients of its own"),
        ({"model": nn.Linear}, "model expects a name or an nn.Module"),
        ({**OWN, "auxiliary": (X[:4, :2], Y[:4])}, "auxiliary: expected samples like those of the clients"),
    ],
)
def test_what_does_not_fit_is_refused(own: dict[str, Any], said: str) -> None:
    with pytest.raises(fedssd.UserError, match=said):
        fedssd.Simulation(fedssd.Recipe(**SHORT), **own)
