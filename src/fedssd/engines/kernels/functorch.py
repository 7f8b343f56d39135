"""Between one model's tensors and stacked ones; and what only private names of torch can say of its transforms.

No other file asks torch for private names of its transforms, so a new torch is a matter of this one: where its answers
are not what they were, :func:`strange` says so, and the engine goes without kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

_private: Any = torch._C._functorch


def transformed() -> bool:
    """Whether this runs inside vmap, grad or another transform."""
    return _private.peek_interpreter_stack() is not None


def differentiating() -> bool:
    """Whether this runs inside a transform that takes a gradient."""
    slopes = (_private.TransformType.Grad, _private.TransformType.Jvp)
    levels = _private.get_interpreter_stack()
    return levels is not None and any(level.key() in slopes for level in levels)


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor of all models that vmap shows one model's part of; any other tensor itself."""
    while _private.is_batchedtensor(tensor):
        tensor = _private.get_unwrapped(tensor)
    return tensor


@cache
def strange() -> str:
    """What this torch answers otherwise than kernels expect, in a few words; empty where it answers as it should."""
    heard: list[tuple[bool, bool, tuple[int, ...]]] = []

    def ask(x: Tensor) -> Tensor:
        heard.append((transformed(), differentiating(), tuple(unwrapped(x).shape)))
        return x.sum()

    try:
        ask(torch.zeros(3))
        torch.func.vmap(ask)(torch.zeros(2, 3))
        torch.func.grad(ask)(torch.zeros(3))
    except Exception as error:  # whatever a name that has gone comes to
        return f"{type(error).__name__} in torch._C._functorch"
    alone, many, slope = heard
    as_ever = alone == (False, False, (3,)) and many == (True, False, (2, 3)) and slope[:2] == (True, True)
    return "" if as_ever else "other answers from torch._C._functorch"


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
