"""The squares of gradients taken sample by sample, without a gradient for each sample where the model allows that.

A layer's weights have a gradient from each sample. Of a linear layer it is the slope of the output times the input, so
the squares sum up to one product of squares; of a convolution it is one small product a sample. Such a layer gets a tap
on its output, whose gradient by the weights is not the sum over samples but the sum of their squares: then one gradient
of a batch answers for all its samples. Models with anything else in them, which might also let samples see each other,
are differentiated sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedssd.core import tree
from fedssd.core.contract import ClientData, chunks, mean_over
from fedssd.core.net import Net
from fedssd.core.tree import Tree

Loss = Callable[[Tensor, Tensor], Tensor]  # logits [B, K] and labels [B] -> [B]


def mean_squared_gradient(net: Net, weights: Tree, data: ClientData, loss: Loss) -> Tree:
    """The mean over a client's samples of the squared gradient of each one's loss, one number per parameter."""
    try:
        return _by_taps(net, weights, data, loss)
    except _NotTappedError:
        return _one_by_one(net, weights, data, loss)


def _one_by_one(net: Net, weights: Tree, data: ClientData, loss: Loss) -> Tree:
    def squared(x: Tensor, y: Tensor) -> Tree:
        def of(params: Tree) -> Tensor:
            logits = net({"params": params, "buffers": weights["buffers"]}, x[None]).logits
            return loss(logits, y[None])[0]

        return tree.map_tree(torch.square, torch.func.grad(of)(weights["params"]))

    return mean_over(data, squared)


def _by_taps(net: Net, weights: Tree, data: ClientData, loss: Loss) -> Tree:
    total = tree.zeros_like(weights["params"])
    for x, y, mask in chunks(data):

        def of(params: Tree, x: Tensor = x, y: Tensor = y, mask: Tensor = mask) -> Tensor:
            taps = _Taps(params, len(x))
            with taps:
                logits = net({"params": params, "buffers": weights["buffers"]}, x).logits
            taps.check()
            return (loss(logits, y) * mask).sum()

        total = tree.map_tree(torch.add, total, torch.func.grad(of)(weights["params"]))
    return tree.map_tree(lambda sums: sums / data.mask.sum().to(sums.dtype), total)


class _NotTappedError(Exception):
    """The model has more than layers with a tap, and what keeps samples apart."""


# Sample by sample: the first axis stays what it is.
_APART = frozenset(
    [
        torch.relu, torch.relu_, F.relu, F.relu_, Tensor.relu, Tensor.relu_, torch.tanh, F.tanh, Tensor.tanh,
        torch.sigmoid, F.sigmoid, Tensor.sigmoid, F.gelu, F.silu, F.leaky_relu, F.elu,
        torch.max_pool2d, F.max_pool2d, getattr(F, "_max_pool2d", F.max_pool2d), F.avg_pool2d, F.adaptive_avg_pool2d,
    ]
)  # fmt: skip
_FLATTENED = frozenset([torch.flatten, Tensor.flatten])


class _Taps(TorchFunctionMode):
    """Puts a tap on every convolution and linear layer of a forward pass, where each parameter must be used once."""

    def __init__(self, params: Tree, samples: int) -> None:
        super().__init__()
        self._left, self._samples = {id(leaf) for leaf in tree.leaves(params)}, samples

    def check(self) -> None:
        """Whether every parameter was met."""
        if self._left:
            raise _NotTappedError

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _APART or getattr(func, "__name__", "") == "__get__":
            return func(*args, **kwargs)
        if func in _FLATTENED and args[1:] in ((1,), (1, -1)) and not kwargs:
            return func(*args)
        if func is F.linear and not kwargs and args[0].ndim == 2:
            return self._tapped(_LinearTap, func, args, ())
        if func is F.conv2d and not kwargs and args[0].ndim == 4:
            layout = (*args[3:], *(1, 0, 1, 1)[len(args) - 3 :]) if len(args) > 3 else (1, 0, 1, 1)
            if not isinstance(layout[1], str) and layout[3] == 1:
                return self._tapped(_ConvolutionTap, func, args, layout[:3])
        raise _NotTappedError

    def _tapped(self, tap: Any, func: Callable[..., Tensor], args: tuple[Any, ...], layout: tuple[Any, ...]) -> Tensor:
        x, weight, bias = (*args, None)[:3]
        if len(x) != self._samples:
            raise _NotTappedError
        for leaf in (weight, bias):
            if leaf is not None:
                if id(leaf) not in self._left:  # used before, or no parameter
                    raise _NotTappedError
                self._left.remove(id(leaf))
        out = func(x, weight.detach(), None if bias is None else bias.detach(), *args[3:])
        found: Tensor = tap.apply(out, x.detach(), weight, bias, layout)
        return found


class _Tap(torch.autograd.Function):
    """The output as it is; its gradient by the weights is the sum over samples of their gradients' squares."""

    generate_vmap_rule = True

    @staticmethod
    def forward(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, layout: Any) -> Tensor:  # noqa: ARG004
        return out.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        _, x, weight, bias, ctx.layout = inputs
        ctx.save_for_backward(x)
        ctx.shape, ctx.biased = weight.shape, bias is not None


class _LinearTap(_Tap):
    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        squares = slope.square()  # [B, O]
        by_weight = squares.T @ ctx.saved_tensors[0].square()
        return slope, None, by_weight, squares.sum(0) if ctx.biased else None, None


class _ConvolutionTap(_Tap):
    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        (x,), (stride, padding, dilation) = ctx.saved_tensors, ctx.layout
        patches = F.unfold(x, ctx.shape[-2:], dilation, padding, stride)  # [B, C·K·K, P]
        lines = slope.flatten(2)  # [B, O, P]
        by_weight = (lines @ patches.transpose(1, 2)).square().sum(0).reshape(ctx.shape)
        return slope, None, by_weight, lines.sum(2).square().sum(0) if ctx.biased else None, None
