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
from fedssd.engines.vectorised import cpu_pool

MOST_OUTPUTS, MOST_INNER = 64, 1024  # above these a library's convolution fills the device


def available(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels can run: float32, a CUDA device of 2020 or later, and Triton, which comes with torch."""
    if device.type != "cuda" or dtype != torch.float32 or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


class StackedNet(Net):
    """A net whose small convolutions, once stacked by vmap, run in one kernel for all models."""

    def __init__(self, net: Net, precision: str | None) -> None:
        """``precision`` of convolutions is ``tf32`` or ``ieee``; without one only pools are ours, as on the CPU."""
        self.net, self.has_batch_norm, self._mode = net, net.has_batch_norm, _Catch(precision)

    def __call__(self, weights: Tree, x: Tensor) -> Outputs:
        with self._mode:
            return self.net(weights, x)

    def train(self, weights: Tree, x: Tensor) -> tuple[Outputs, Tree]:
        with self._mode:
            return self.net.train(weights, x)


class _Catch(TorchFunctionMode):
    """Sends suitable convolutions to :class:`_Convolution`."""

    def __init__(self, precision: str | None) -> None:
        super().__init__()
        self.precision = precision

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.conv2d and not kwargs and self.precision is not None:
            given: list[Any] = [*args, *_DEFAULTS[len(args) :]]
            x, weight, bias, stride, padding, dilation, groups = given
            plain = _pair(stride) == _pair(dilation) == (1, 1) and groups == 1 and not isinstance(padding, str)
            plain = plain and x.dtype == weight.dtype == torch.float32
            if plain and _small(weight) and _pair(padding)[0] == _pair(padding)[1]:
                return _apply(_Convolution, x, weight, bias, _pair(padding)[0], self.precision)
        if func in _POOLS and _halves(*args, **(kwargs or {})):
            return _apply(_Pool, args[0])
        return func(*args, **(kwargs or {}))


_POOLS = (
    torch.max_pool2d,
    F.max_pool2d,
    getattr(F, "_max_pool2d", None),
)  # by the layer, by its function, by its inner function
_DEFAULTS = (None, None, None, 1, 0, 1, 1)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _small(weight: Tensor) -> bool:
    outputs, inputs, height, width = weight.shape
    inner = max(inputs, outputs) * height * width  # backwards, the outputs are summed over
    return max(inputs, outputs) <= MOST_OUTPUTS and inner <= MOST_INNER and height == width


def _halves(
    x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> bool:  # fmt: skip
    """Whether a pool takes the largest of 2 × 2 squares that do not overlap."""
    squares = _pair(kernel_size) == _pair(stride or kernel_size) == (2, 2) and _pair(padding) == (0, 0)
    plain = _pair(dilation) == (1, 1) and not (ceil_mode or return_indices)
    return squares and plain and (x.dtype == torch.float32 or not x.is_cuda)


def _apply(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    found: Tensor = function.apply(*args)  # type: ignore[no-untyped-call]
    return found


class _Convolution(torch.autograd.Function):
    """One model's convolution; under vmap, the stacked one."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, precision: str) -> Tensor:
        from fedssd.engines.vectorised import triton_conv

        own = bias[None] if bias is not None else None
        return triton_conv.forward(x[None], weight[None], own, padding, precision)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        x, weight, bias, ctx.padding, ctx.precision = inputs
        ctx.biased = bias is not None
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        found = _gradients(ctx, x[None], weight[None], dy[None])
        return (*(part[0] if part is not None else None for part in found), None, None)

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
            out = _apply(_Convolution, folded.flatten(0, 1), weight, bias, padding, precision)
            return out.view(*folded.shape[:2], *out.shape[1:]), 0
        size = info.batch_size
        stacked = [_front(part, dim, size) for part, dim in ((x, x_dim), (weight, weight_dim), (bias, bias_dim))]
        return _apply(_Stacked, *stacked, padding, precision), 0


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
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return (*_gradients(ctx, x, weight, dy), None, None)


def _gradients(ctx: Any, x: Tensor, weight: Tensor, dy: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """By x (where wanted), weight and bias, all stacked."""
    from fedssd.engines.vectorised import triton_conv

    by_weight, by_bias = triton_conv.weight_gradient(x, dy, weight.shape[-2:], ctx.padding, ctx.precision)
    by_x = triton_conv.input_gradient(weight, dy, ctx.padding, ctx.precision) if ctx.needs_input_grad[0] else None
    return by_x, by_weight, by_bias if ctx.biased else None


class _Pool(torch.autograd.Function):
    """The largest of every 2 × 2 square; a model more is a batch more."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        found: Tensor = _pools(x).pool(x)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        x, out = ctx.saved_tensors
        found: Tensor = _pools(x).pool_gradient(x, out, dy)
        return found

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:  # noqa: ARG004
        return _apply(_Pool, x.movedim(in_dims[0], 0)), 0


def _pools(x: Tensor) -> Any:
    if not x.is_cuda:
        return cpu_pool
    from fedssd.engines.vectorised import triton_conv

    return triton_conv
