"""Batches whose samples lie side by side in memory: [M, ..., B], behind a tensor that says [M, B, ...].

The threads of a warp take neighbouring samples, so they read and write neighbouring numbers whatever a sample's sides.
To PyTorch such a tensor is one like any other, with other strides.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

ROW = 64  # samples that kernels take together, where a batch is a multiple of it


def empty(models: int, batch: int, *sample: int, device: torch.device) -> Tensor:
    """[M, B, ...] in float32, which is all the kernels know."""
    *within, whole = accumulate((batch, *reversed(sample)), mul)
    return torch.empty_strided((models, batch, *sample), (whole, 1, *reversed(within)), device=device)


def row(batch: int) -> int:
    """How many samples of a batch kernels take together."""
    return ROW if batch % ROW == 0 else batch


def lies_so(x: Tensor) -> bool:
    """Whether each model's samples already lie side by side."""
    return x[0].movedim(0, -1).is_contiguous()


def laid(x: Tensor) -> Tensor:
    """The same numbers, side by side; what models share (stride 0) stays shared."""
    if lies_so(x):
        return x
    if len(x) > 1 and x.stride(0) == 0:
        return laid(x[:1]).expand_as(x)
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def apart(x: Tensor) -> Tensor:
    """The same numbers, side by side, and the models one after another without a gap."""
    found = laid(x)
    alone = len(x) == 1 or found.stride(0) == found[0].numel()
    return found if alone else found.movedim(1, -1).contiguous().movedim(-1, 1)
