"""What the tests that hold each kernel to PyTorch's float64 share: sizes, fresh random inputs, poisoned outputs.

Without an accelerator Triton's interpreter runs the kernels on small shapes; with one, compiled, on shapes up to the
limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import interpreted  # noqa: F401  # its interpreter
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

# The first product of autograd's own thread, on a card: torch makes the context that it misses, and says so.
no_context = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA context")
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
FP32, TF32 = 1e-5, 2e-3
few = settings(
    max_examples=8 if CUDA else 6, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
models = st.integers(1, 300 if CUDA else 3)
batches = st.integers(1, 257 if CUDA else 3)
channels = st.integers(1, 32 if CUDA else 5)
units = st.integers(1, 257 if CUDA else 40)
classes = st.integers(2, 1000 if CUDA else 30)


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel does not write stays wrong, and is seen."""

    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*args: object, **kwargs: object) -> Tensor:
            made = make(*args, **kwargs)
            return made.fill_(float("nan") if made.is_floating_point() else 7)

        return call

    for place, name in (
        (torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (Tensor, "new_empty"),
    ):  # fmt: skip
        monkeypatch.setattr(place, name, poisoned(getattr(place, name)))


def error(found: Tensor, expected: Tensor, terms: float = 0) -> float:
    """max|error| / max|reference|; the latter at least half of what a sum of so many random terms usually is.

    With a single output such a sum may cancel, and then not even float64's would do.
    """
    assert found.shape == expected.shape
    assert found.isfinite().all()
    size = expected.abs().max().clamp(min=max(1e-30, math.sqrt(terms) / 2))
    return float((found.double() - expected).abs().max() / size)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def exact(*parts: Tensor) -> list[Tensor]:
    return [part.double().detach().requires_grad_() for part in parts]
