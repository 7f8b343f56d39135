"""Trees of tensors."""

from __future__ import annotations

import pytest
import torch

from fedssd.core import tree

SAMPLE = {"a": torch.tensor([1.0, 2.0]), "b": {"c": torch.tensor([[3.0]]), "d": {}}}


@pytest.mark.quick
def test_map_keeps_the_shape_and_pairs_the_leaves() -> None:
    found = tree.map_tree(lambda x, y: x + 10 * y, SAMPLE, SAMPLE)
    assert found["a"].tolist() == [11.0, 22.0]
    assert found["b"]["c"].tolist() == [[33.0]]
    assert found["b"]["d"] == {}


@pytest.mark.quick
def test_leaves_line_subtract_and_zeros() -> None:
    assert [leaf.flatten().tolist() for leaf in tree.leaves(SAMPLE)] == [[1.0, 2.0], [3.0]]
    assert tree.line(SAMPLE).tolist() == [1.0, 2.0, 3.0]
    assert tree.line({}).tolist() == []
    assert all(float(leaf.abs().sum()) == 0 for leaf in tree.leaves(tree.subtract(SAMPLE, SAMPLE)))
    assert all(float(leaf.abs().sum()) == 0 for leaf in tree.leaves(tree.zeros_like(SAMPLE)))


@pytest.mark.quick
def test_stack_and_row_are_inverse() -> None:
    other = tree.map_tree(lambda leaf: leaf + 1, SAMPLE)
    stacked = tree.stack([SAMPLE, other])
    assert stacked["a"].shape == (2, 2)
    for index, expected in enumerate((SAMPLE, other)):
        for a, b in zip(tree.leaves(tree.row(stacked, index)), tree.leaves(expected), strict=True):
            assert torch.equal(a, b)


@pytest.mark.quick
def test_weighted_mean_by_hand() -> None:
    stacked = {"a": torch.tensor([[1.0, 2.0], [5.0, 10.0]])}
    assert tree.weighted_mean(torch.tensor([0.25, 0.75]), stacked)["a"].tolist() == [4.0, 8.0]


@pytest.mark.quick
def test_flatten_and_unflatten_are_inverse_up_to_empty_branches() -> None:
    flat = tree.flatten(SAMPLE)
    assert list(flat) == ["a", "b/c"]
    back = tree.unflatten(flat)
    assert torch.equal(back["b"]["c"], SAMPLE["b"]["c"])
    assert "d" not in back["b"]


@pytest.mark.quick
def test_size_in_bytes_counts_elements_times_width() -> None:
    mixed = {"a": torch.zeros(3), "b": {"c": torch.zeros(2, 2, dtype=torch.float64)}, "e": {}}
    assert tree.size_in_bytes(mixed) == 3 * 4 + 4 * 8


@pytest.mark.quick
def test_cast_leaves_integers_and_masks_alone() -> None:
    found = tree.cast({"w": torch.ones(2), "table": torch.tensor([1]), "mask": torch.tensor([True])}, torch.float64)
    assert [leaf.dtype for leaf in tree.leaves(found)] == [torch.float64, torch.int64, torch.bool]
