"""From one model to many: vmap where there are several, a plain call where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedssd.core import tree
from fedssd.core.net import Net, Outputs
from fedssd.core.tree import Tree


def over_models(function: Callable[..., Any], width: int, shared: tuple[bool, ...] = ()) -> Callable[..., Any]:
    """``function`` for stacked arguments [width, …]; a ``shared`` argument is the same for every model.

    A single model is called without vmap: large models run best in their own memory layout.
    """
    if width > 1:
        return lambda *args: vmap(function, in_dims=_dims(args, shared))(*args)

    def alone(*args: Any) -> Any:
        flags = (*shared, *[False] * (len(args) - len(shared)))
        single = (a if flag else _each(lambda leaf: leaf.squeeze(0), a) for a, flag in zip(args, flags, strict=True))
        return _each(lambda leaf: leaf.unsqueeze(0), function(*single))

    return alone


def _dims(args: tuple[Any, ...], shared: tuple[bool, ...]) -> tuple[int | None, ...]:
    flags = (*shared, *[False] * (len(args) - len(shared)))
    # An argument without tensors (a method without memory) has no axis to map over.
    return tuple(None if flag or not _count(arg) else 0 for arg, flag in zip(args, flags, strict=True))


def _count(value: Any) -> int:
    counted: list[Tensor] = []
    _each(counted.append, value)
    return len(counted)


def _each(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply to every tensor of nested dictionaries and tuples."""
    if isinstance(value, dict):
        return {name: _each(function, branch) for name, branch in value.items()}
    if isinstance(value, tuple):
        parts = [_each(function, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return function(value) if isinstance(value, Tensor) else value


class TunedNet(Net):
    """A net as the device likes it: layers in bfloat16 on float32 weights, or images in channels-last layout.

    Its answers come back in the weights' type. The loss and the method's own terms stay in full precision: squares of
    differences of bfloat16 logits would be noise.
    """

    def __init__(self, net: Net, dtype: torch.dtype, device: torch.device, bf16: bool, channels_last: bool) -> None:
        self.net, self.dtype, self.device_type = net, dtype, device.type
        self.bf16, self.channels_last = bf16, channels_last
        self.has_batch_norm = net.has_batch_norm

    def __call__(self, weights: Tree, x: Tensor) -> Outputs:
        with self._tuned():
            return self._cast(self.net(weights, self._images(x)))

    def train(self, weights: Tree, x: Tensor) -> tuple[Outputs, Tree]:
        with self._tuned():
            out, buffers = self.net.train(weights, self._images(x))
            return self._cast(out), buffers

    def _tuned(self) -> torch.autocast:
        # Without its cache, which would hold the cast weights of one step for the next.
        return torch.autocast(self.device_type, torch.bfloat16, enabled=self.bf16, cache_enabled=False)

    def _images(self, x: Tensor) -> Tensor:
        last = self.channels_last and x.ndim == 4
        return x.contiguous(memory_format=torch.channels_last) if last else x

    def _cast(self, out: Outputs) -> Outputs:
        return Outputs(out.logits.to(self.dtype), out.features.to(self.dtype))


def take(stacked: Tree, index: Tensor) -> Tree:
    """Rows of a stacked tree."""
    return tree.map_tree(lambda leaf: leaf.index_select(0, index), stacked)


def join(trees: list[Tree]) -> Tree:
    """Stacked trees behind one another."""
    if len(trees) == 1:
        return trees[0]
    return tree.map_tree(lambda *parts: torch.cat(parts), *trees)
