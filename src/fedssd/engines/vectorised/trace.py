"""A step recorded once as a list of tensor operations: no vmap, no autograd and no Python of the model at each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree


def record(function: Callable[..., Any], args: tuple[Any, ...], compiled: bool = False) -> Callable[..., Any]:
    """``function`` for arguments of these very shapes, as recorded operations; optionally fused by the compiler."""
    leaves, shape = pytree.tree_flatten(args)
    out_shape: list[Any] = []

    def on_leaves(*tensors: Tensor) -> list[Tensor]:
        found, spec = pytree.tree_flatten(function(*pytree.tree_unflatten(list(tensors), shape)))
        out_shape.append(spec)
        return found

    recorded: Callable[..., Any] = make_fx(on_leaves)(*leaves)
    if compiled:
        recorded = torch.compile(recorded, fullgraph=True, dynamic=False)

    def replay(*now: Any) -> Any:
        return pytree.tree_unflatten(recorded(*pytree.tree_leaves(now)), out_shape[0])

    return replay
