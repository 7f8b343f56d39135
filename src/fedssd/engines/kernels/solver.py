# mypy: disable-error-code="no-untyped-def"
"""SGD with momentum and weight decay over one buffer [models, parameters], in place and in one launch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedssd.engines.kernels.launching import launched

BLOCK = 1024


@launched()
def _sgd(
    weights, velocity, gradient, lr, momentum, decay, live, live_model, P, LIVE: tl.constexpr, BLOCK: tl.constexpr
):
    m = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = place < P
    if LIVE:
        known = known & (
            tl.load(live + m * live_model + place * 0) > 0
        )  # as a block: the interpreter cannot mix in a scalar
    place += m.to(tl.int64) * P
    p = tl.load(weights + place, mask=known)
    g = tl.load(gradient + place, mask=known)
    v = tl.load(velocity + place, mask=known)
    v = tl.load(momentum + m) * v + (g + tl.load(decay + m) * p)
    tl.store(velocity + place, v, mask=known)
    tl.store(weights + place, p - tl.load(lr + m) * v, mask=known)


def sgd_(
    params: Tensor, velocity: Tensor, gradient: Tensor, lr: Tensor, momentum: Tensor, decay: Tensor, live: Tensor | None
) -> None:
    """v ← ρ v + g + λ w; w ← w − η v, in place, for the models that are ``live``; numbers are one a model."""
    models, count = params.shape
    _sgd[(triton.cdiv(count, BLOCK), models)](
        params, velocity, gradient.contiguous(), lr, momentum, decay, lr if live is None else live,
        1 if live is None else live.stride(0), count,
        live is not None, BLOCK,
    )  # fmt: skip
