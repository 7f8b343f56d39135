"""In which precision a device calculates."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

PRECISIONS = ("fp32", "tf32", "bf16", "fp64")
_switching = threading.RLock()


@contextmanager
def arithmetic(device: torch.device, precision: str, benchmark: bool) -> Iterator[None]:
    """TF32 on or off, and whether cuDNN tries its kernels out, for the time of a call; the CPU reads none of this.

    The switches are the process's, so engines on a device that train from several threads take turns. Streams, graphs
    and our kernels go to the current device, which is made the one that holds the data.
    """
    if device.type != "cuda":
        yield
        return
    switches: tuple[tuple[Any, str, Any], ...] = (
        (torch.backends.cuda.matmul, "fp32_precision", "tf32" if precision in ("tf32", "bf16") else "ieee"),
        (torch.backends.cudnn.conv, "fp32_precision", "tf32" if precision in ("tf32", "bf16") else "ieee"),  # type: ignore[attr-defined]
        (torch.backends.cudnn, "benchmark", benchmark and not torch.are_deterministic_algorithms_enabled()),
    )
    with _switching, nullcontext() if device.index is None else torch.cuda.device(device):
        before = [getattr(place, name) for place, name, _ in switches]
        for place, name, value in switches:
            setattr(place, name, value)
        try:
            yield
        finally:
            for (place, name, _), value in zip(switches, before, strict=True):
                setattr(place, name, value)
