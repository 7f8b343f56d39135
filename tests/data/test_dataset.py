"""A dataset: what it refuses, what names its content, how a test set is taken from it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedssd.data.dataset import Dataset, stratified_split
from fedssd.errors import UserError


def dataset_of(**changes: Any) -> Dataset:
    parts: dict[str, Any] = {
        "name": "made",
        "x_train": torch.arange(12.0).reshape(6, 2),
        "y_train": torch.tensor([0, 1, 2, 0, 1, 2]),
        "x_test": torch.zeros(3, 2),
        "y_test": torch.tensor([0, 1, 2]),
        "classes": ("a", "b", "c"),
    }
    return Dataset(**{**parts, **changes})


def with_value(value: float) -> torch.Tensor:
    samples = torch.zeros(6, 2)
    samples[4, 1] = samples[5, 0] = value
    return samples


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_train": with_value(float("nan"))}, "2 NaN or infinite values, the first in row 4"),
        ({"x_train": with_value(float("inf"))}, "2 NaN or infinite values, the first in row 4"),
        ({"y_train": torch.tensor([0, 1, 2, 3, 1, 2])}, "0…2, got 3 in row 3"),
        ({"y_test": torch.tensor([0, -1, 2])}, "got -1 in row 1 of the test set"),
        ({"y_train": torch.tensor([0, 1, 2])}, "each of 6 samples"),
        ({"y_train": torch.zeros(6)}, "int64"),
        ({"y_train": torch.tensor([0, 1, 1, 0, 1, 1])}, "none of class 'c'"),
        ({"x_train": torch.zeros(0, 2), "y_train": torch.zeros(0).long()}, "not empty"),
        ({"x_test": torch.zeros(0, 2), "y_test": torch.zeros(0).long()}, "the test set"),
        ({"x_test": torch.zeros(3, 4)}, "one shape"),
        ({"x_train": torch.zeros(6, 2, dtype=torch.int32)}, "uint8, int64 or float32"),
        ({"classes": ("a",)}, "at least 2 classes"),
    ],
)
def test_a_dataset_refuses_what_training_would_choke_on(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        dataset_of(**changes)
    assert "\n" not in str(caught.value)


def test_the_fingerprint_follows_content_and_not_the_name() -> None:
    base = dataset_of()
    assert base.fingerprint == dataset_of(name="other").fingerprint
    changed = [
        dataset_of(x_train=base.x_train + 1e-6),
        dataset_of(classes=("a", "b", "d")),
        dataset_of(y_test=torch.tensor([0, 1, 1])),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in changed)}) == 4
    assert len(base.fingerprint) == 16
    assert (base.shape, base.num_classes) == ((2,), 3)


def test_the_test_split_takes_a_fifth_of_each_class() -> None:
    labels = torch.tensor([0] * 50 + [1] * 7 + [2] * 2 + [3])
    train, test = stratified_split(labels, 4)
    assert torch.bincount(labels[test], minlength=4).tolist() == [10, 1, 1, 0]
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(60))
