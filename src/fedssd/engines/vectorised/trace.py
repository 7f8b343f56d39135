"""A step recorded once as a list of tensor operations: no vmap, no autograd and no Python of the model at each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree


def record(function: Callable[..., None], args: tuple[Any, ...], compiled: bool = False) -> Callable[..., None]:
    """A function that works in place, for arguments of these very shapes, as recorded operations.

    Recording runs it once, on copies. Optionally the compiler fuses what was recorded.
    """
    leaves, shape = pytree.tree_flatten(args)

    def on_leaves(*tensors: Tensor) -> None:
        function(*pytree.tree_unflatten(list(tensors), shape))

    recorded: Callable[..., Any] = make_fx(on_leaves)(*(leaf.clone() for leaf in leaves))
    if compiled:
        recorded = torch.compile(recorded, fullgraph=True, dynamic=False)
    return lambda *now: recorded(*pytree.tree_leaves(now))
