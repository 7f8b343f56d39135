"""Samples that are numbers and no images: floats, standardised where they are a table's columns, or whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and deviation of each column; a constant column has deviation 1, so that it becomes zero."""
    mean, deviation = features.mean(0), features.std(0, unbiased=False)
    constant = deviation <= 1e-12 * mean.abs()
    return mean, torch.where(constant | (deviation == 0), 1.0, deviation)


def standardised(features: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Zero mean and unit deviation, where these are the features' own."""
    return ((features - mean) / deviation).to(torch.float32)


def alike(parts: Sequence[Tensor]) -> list[Tensor]:
    """The parts of one dataset: whole numbers beside floats are floats, too."""
    floats = any(part.dtype == torch.float32 for part in parts)
    return [part.to(torch.float32) if floats and part.dtype == torch.int64 else part for part in parts]
