"""How non-IID a split is: against scipy, and where the answer is known by arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from fedssd.data.partition import label_distance

pytestmark = pytest.mark.quick
tables = st.integers(2, 5).flatmap(
    lambda classes: st.lists(
        st.lists(st.integers(0, 50), min_size=classes, max_size=classes).filter(any), min_size=1, max_size=5
    )
)


@given(tables)
def test_distances_are_those_of_scipy(rows: list[list[int]]) -> None:
    counts = np.array(rows, dtype=float)
    all_ = counts.sum(0) / counts.sum()
    own = counts / counts.sum(1, keepdims=True)
    shannon = np.mean([jensenshannon(one, all_, base=2) for one in own])
    hellinger = np.mean([math.sqrt(max(0.0, 1 - np.sqrt(one * all_).sum())) for one in own])
    found = label_distance(torch.tensor(rows))
    assert found.jensen_shannon == pytest.approx(shannon, abs=1e-6)
    assert found.hellinger == pytest.approx(hellinger, abs=1e-6)


def test_equal_mixes_are_at_zero_and_one_class_of_ten_each_where_arithmetic_says() -> None:
    assert label_distance(torch.tensor([[3, 6], [1, 2], [0, 0]])) == (0.0, 0.0)
    one_each = label_distance(torch.eye(10, dtype=torch.int64))
    assert one_each.hellinger == pytest.approx(math.sqrt(1 - math.sqrt(0.1)))
