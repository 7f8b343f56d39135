"""Between one model's tensors and stacked ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    """An autograd function's ``apply``, which torch leaves without types."""
    return function.apply(*args)  # type: ignore[no-untyped-call]


def front(part: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """The axis of models in front; a part without one is shared, not copied."""
    if part is None:
        return None
    return part.expand(size, *part.shape) if dim is None else part.movedim(dim, 0)


def stacked(info: Any, in_dims: tuple[Any, ...], parts: tuple[Any, ...]) -> list[Any]:
    """What a vmap rule was given, with the axis of models in front of every tensor."""
    return [
        front(part, dim, info.batch_size) if isinstance(part, Tensor) else part
        for part, dim in zip(parts, in_dims, strict=True)
    ]


def one(function: Callable[..., Any], *parts: Any) -> Any:
    """A function of stacked tensors for a single model, whose tensors have no axis of models."""
    found = function(*(part[None] if isinstance(part, Tensor) else part for part in parts))
    # Not views: what follows may work in place.
    return tuple(part.squeeze_(0) for part in found) if isinstance(found, tuple) else found.squeeze_(0)
