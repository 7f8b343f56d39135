"""Layers of many small models, each with its own weights, as kernels of our own; everything else stays PyTorch's.

``net`` puts them under any model without its knowing, ``layers`` and ``losses`` give them gradients and vmap rules,
``streams`` a second stream, ``launching`` compiles them ahead of time, and the other modules hold the kernels. Triton,
which comes with torch's builds for accelerators, is imported only when used.
"""

from __future__ import annotations

import importlib.util

import torch


def available(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels can run: float32, a CUDA device of 2020 or later, and Triton."""
    if device.type != "cuda" or dtype != torch.float32 or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def too_large(error: BaseException) -> bool:
    """Whether a kernel wanted more of a device than it has, such as shared memory."""
    return type(error).__name__ == "OutOfResources"  # Triton's, which is imported only when used
