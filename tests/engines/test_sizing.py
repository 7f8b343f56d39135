"""How much goes at once, by arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedssd.core.contract import ClientData, mean_over
from fedssd.engines.vectorised import sizing
from fedssd.engines.vectorised.sizing import ModelSize, read_at_once, readers

pytestmark = pytest.mark.quick
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
CNN = ModelSize(
    parameters=100, state=400, sample=800, stored=50
)  # a sample's own gradient: 3 · 400 + 800 = 2,000 bytes


def test_per_sample_gradients_fit_into_an_eighth_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "free_bytes", lambda device: 80_000_000)
    assert readers(CNN, CUDA) == 80_000_000 // (4 * 32 * 2000)
    assert read_at_once(CNN, 10, CUDA) == 10_000_000 // (10 * 2000)
    assert read_at_once(CNN, 1, CUDA) == 1024  # more would not be faster
    assert read_at_once(CNN, 10_000, CUDA) == 32  # fewer clients at once, rather: readers() sees to it
    assert read_at_once(CNN, 1, CPU) == 32


@pytest.mark.parametrize("at_once", [1, 4, 7, 100])
def test_a_mean_takes_as_many_samples_at_a_time_as_the_data_says(at_once: int) -> None:
    sizes: list[int] = []

    def prepare(stored: Tensor) -> Tensor:
        sizes.append(len(stored))
        return stored

    x = torch.arange(7.0)
    data = ClientData(x, x.long(), torch.ones(7), prepare, at_once=at_once)
    found: Any = mean_over(data, lambda one, label: one * label)
    assert float(found) == sum(n * n for n in range(7)) / 7
    assert sizes == [min(at_once, 7 - first) for first in range(0, 7, at_once)]


def test_blocks_of_an_evaluation_come_from_a_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "free_bytes", lambda device: 800_000_000)
    # a sample of one model takes half of 800 bytes, in a quarter of what is free: 500,000 of them
    widths = (1, 30, 31, 244, 245, 488, 489, 3906, 3907, 7812, 7813, 10**6)
    for kernels in (True, False):
        found = [sizing.evaluation_block(CNN, width, CUDA, kernels) for width in widths]
        assert found == [16384, 16384, 2048, 2048, 1024, 1024, 512, 128, 64, 64, 64, 64]
    assert sizing.evaluation_block(CNN, 100, CPU, kernels=False) == (256 << 20) // (100 * 800)
