"""Convolutions of stacked models through our own kernels, without the model or the method knowing.

A function mode catches the convolutions of a forward pass and hands them to an autograd function with a vmap rule. In
that rule the models' weights are one stacked tensor, and the kernels of ``triton_conv`` take it from there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedssd.core.net import Net, Outputs
from fedssd.core.tree import Tree

MOST_OUTPUTS, MOST_INNER = 64, 1024  # above these a library's convolution fills the device


def available(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels can run: float32 on CUDA, with Triton at hand (it comes with torch for CUDA)."""
    return device.type == "cuda" and dtype == torch.float32 and importlib.util.find_spec("triton") is not None


class StackedNet(Net):
    """A net whose small convolutions, once stacked by vmap, run in one kernel for all models."""

    def __init__(self, net: Net, precision: str) -> None:
        """``precision`` is ``tf32`` or ``ieee``."""
        self.net, self.has_batch_norm, self._mode = net, net.has_batch_norm, _Catch(precision)

    def __call__(self, weights: Tree, x: Tensor) -> Outputs:
        with self._mode:
            return self.net(weights, x)

    def train(self, weights: Tree, x: Tensor) -> tuple[Outputs, Tree]:
        with self._mode:
            return self.net.train(weights, x)


class _Catch(TorchFunctionMode):
    """Sends suitable convolutions to :class:`_Convolution`."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        self.precision = precision

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.conv2d and not kwargs:
            x, weight, bias, stride, padding, dilation, groups = (*args, *_DEFAULTS[len(args) :])
            plain = _pair(stride) == _pair(dilation) == (1, 1) and groups == 1 and not isinstance(padding, str)
            plain = plain and x.dtype == weight.dtype == torch.float32
            if plain and _small(weight) and _pair(padding)[0] == _pair(padding)[1]:
                return _Convolution.apply(x, weight, bias, _pair(padding)[0], self.precision)
        if func is torch.max_pool2d and _halves(*args, **(kwargs or {})):
            return _Pool.apply(args[0])
        return func(*args, **(kwargs or {}))


_DEFAULTS = (None, None, None, 1, 0, 1, 1)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _small(weight: Tensor) -> bool:
    outputs, inputs, height, width = weight.shape
    inner = max(inputs, outputs) * height * width  # backwards, the outputs are summed over
    return max(inputs, outputs) <= MOST_OUTPUTS and inner <= MOST_INNER and height == width


def _halves(
    x: Tensor, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> bool:
    """Whether a pool takes the largest of 2 × 2 squares that do not overlap."""
    squares = _pair(kernel) == _pair(stride or kernel) == (2, 2) and _pair(padding) == (0, 0)
    return squares and _pair(dilation) == (1, 1) and not ceil_mode and x.dtype == torch.float32 and x.is_cuda


class _Convolution(torch.autograd.Function):
    """One model's convolution; under vmap, the stacked one."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, precision: str) -> Tensor:
        return F.conv2d(x, weight, bias, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.padding, _ = inputs
        ctx.biased = bias is not None
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        pads = [ctx.padding, ctx.padding]
        sizes, wanted = [weight.shape[0]], list(ctx.needs_input_grad[:3])
        found = torch.ops.aten.convolution_backward(
            dy, x, weight, sizes if ctx.biased else None, [1, 1], pads, [1, 1], False, [0, 0], 1, wanted
        )
        return (*found, None, None)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        padding: int,
        precision: str,
    ) -> tuple[Tensor, int]:
        x_dim, weight_dim, bias_dim = in_dims[:3]
        if weight_dim is None and bias_dim is None:  # many batches, one model: one large batch
            folded = x.movedim(x_dim, 0)
            out = _Convolution.apply(folded.flatten(0, 1), weight, bias, padding, precision)
            return out.unflatten(0, folded.shape[:2]), 0  # type: ignore[no-untyped-call]
        size = info.batch_size
        stacked = [_front(part, dim, size) for part, dim in ((x, x_dim), (weight, weight_dim), (bias, bias_dim))]
        return _Stacked.apply(*stacked, padding, precision), 0  # type: ignore[no-untyped-call]


def _front(part: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """The axis of models in front; a part without one is shared, not copied."""
    if part is None:
        return None
    return part.expand(size, *part.shape) if dim is None else part.movedim(dim, 0)


class _Stacked(torch.autograd.Function):
    """M convolutions with M sets of weights: x [M, B, C, H, W], weight [M, O, C, KH, KW], bias [M, O]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, precision: str) -> Tensor:
        from fedssd.engines.vectorised import triton_conv

        ctx.padding, ctx.precision, ctx.biased = padding, precision, bias is not None
        ctx.save_for_backward(x, weight)
        return triton_conv.forward(x, weight, bias, padding, precision)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        from fedssd.engines.vectorised import triton_conv

        x, weight = ctx.saved_tensors
        by_weight, by_bias = triton_conv.weight_gradient(x, dy, weight.shape[-2:], ctx.padding, ctx.precision)
        by_x = triton_conv.input_gradient(weight, dy, ctx.padding, ctx.precision) if ctx.needs_input_grad[0] else None
        return by_x, by_weight, by_bias if ctx.biased else None, None, None


class _Pool(torch.autograd.Function):
    """The largest of every 2 × 2 square; a model more is a batch more."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        from fedssd.engines.vectorised import triton_conv

        return triton_conv.pool(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # type: ignore[override]
        from fedssd.engines.vectorised import triton_conv

        return triton_conv.pool_gradient(*ctx.saved_tensors, dy)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
        return _Pool.apply(x.movedim(in_dims[0], 0)), 0  # type: ignore[no-untyped-call]
