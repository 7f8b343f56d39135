# mypy: disable-error-code="no-untyped-def"
"""What the kernels of a convolution share: what follows it, and how they compare and count."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

MOST = 2**31 - 1  # entries one model's tensor may have: within a model kernels count in 32 bits


class ConvForm(NamedTuple):
    """The form of a convolution: padding, what follows it, and the precision of its products, ``ieee`` or ``tf32``."""

    padding: int = 0
    relu: bool = False
    pool: bool = False
    precision: str = "ieee"


@triton.jit
def larger(a, b):
    """The larger of two numbers, or NaN: a diverged model must not look healthy."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


def own(x: Tensor) -> Tensor:
    """Each model's part in one block; a stride of 0 over the models stays."""
    return x if x[0].is_contiguous() else x.contiguous()
