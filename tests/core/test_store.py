"""The store of client memories."""

from __future__ import annotations

import pytest
import torch

from fedssd.core.round import ClientStore


@pytest.mark.quick
def test_the_store_keeps_each_clients_own_memory() -> None:
    store, first = ClientStore(5), {"m": {"a": torch.tensor([-1.0, -1.0])}}
    assert store.get([0, 4], first)["m"]["a"].tolist() == [[-1.0, -1.0]] * 2
    store.put([1, 3], {"m": {"a": torch.tensor([[1.0, 1.0], [3.0, 3.0]])}})
    assert store.get([3, 2, 1], first)["m"]["a"][:, 0].tolist() == [3.0, -1.0, 1.0]
    store.put([3], {"m": {"a": torch.tensor([[7.0, 7.0]])}})
    assert store.get([0, 1, 3], first)["m"]["a"][:, 0].tolist() == [-1.0, 1.0, 7.0]


@pytest.mark.quick
def test_the_store_hands_out_copies() -> None:
    store, first = ClientStore(2), {"a": torch.zeros(1)}
    given_in = torch.ones(1, 1)
    store.get([0], first)["a"] += 5
    store.put([0], {"a": given_in})
    given_in += 5
    store.get([0], first)["a"] += 5
    assert store.get([0, 1], first)["a"].tolist() == [[1.0], [0.0]]
    assert first["a"].tolist() == [0.0]


@pytest.mark.quick
def test_a_method_without_memory_needs_no_store() -> None:
    store = ClientStore(3)
    store.put([0], {"moon": {}})
    assert store.get([0, 1], {"moon": {}}) == {"moon": {}}
