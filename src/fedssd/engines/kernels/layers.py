"""Convolution, linear layer and pool, with what follows them, and the parameters they are given.

A function sees one model and has a vmap rule; in that rule the models' tensors are one stacked tensor each, which is
what the kernels know. Layers with weights are pairs of autograd functions. Of these the first is that function,
and the second, which knows only stacked tensors, takes it from its rule.

What follows a layer may work in place, as it may on torch's own: the output is kept for the way back only where ReLU is
part of the layer, and is never a view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedssd.engines.kernels import cpu_pool, strides
from fedssd.engines.kernels.functorch import apply, front, transformed
from fedssd.engines.kernels.streams import Branch, Result, branch

SMALL = 32  # samples below which a batch does not fill a warp, whose threads take neighbouring samples
Lone = Callable[[], bool]
"""Whether weight and bias are used here and nowhere else, so that their gradients may be made aside."""


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, precision: str, lone: Lone, relu: bool, pool: bool
) -> Tensor:  # fmt: skip
    """One model's convolution, with what follows it."""
    found: Tensor = apply(_Convolution, x, weight, bias, (padding, relu, pool, precision, lone, branch()))[0]
    return found


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, precision: str, lone: Lone, relu: bool) -> Tensor:
    """One model's linear layer, with what follows it."""
    found: Tensor = apply(_Linear, x, weight, bias, (relu, precision, lone, branch()))
    return found


def pieces(buffer: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """A buffer [M, P] cut along its parameters; the pieces' gradients, some made aside, are put together again."""
    found: tuple[Tensor, ...] = apply(_Pieces, buffer, sizes, branch())
    return found


def largest(x: Tensor) -> Tensor:
    """The largest of every 2 × 2 square."""
    found: Tensor = apply(_Pool, x)
    return found


def _as_one_batch(x: Tensor, in_dims: tuple[Any, ...]) -> bool:
    """Whether many batches for one model go as one large batch.

    Small ones do, and all of them inside another vmap, which knows functions of one model only.
    """
    shared = in_dims[1] is None and in_dims[2] is None
    return shared and (transformed() or x.movedim(in_dims[0], 0).shape[1] < SMALL)


def _in_turn(layer: tuple[Any, ...], weight_dim: int | None, bias: Tensor | None, bias_dim: int | None) -> Any:
    """The layer, but its gradients not made aside where models share a weight: they are summed up at once."""
    *kind, _, second = layer
    shared = weight_dim is None or (bias is not None and bias_dim is None)
    return (*kind, lambda: False, second) if shared else layer


def _alone(*parts: Tensor | None) -> list[Tensor | None]:
    return [part[None] if part is not None else None for part in parts]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, layer: tuple[int, bool, bool, str, Lone, Branch]
    ) -> tuple[Tensor, Tensor]:
        from fedssd.engines.kernels import convolution
        from fedssd.engines.kernels.layer import ConvForm

        x, weight, bias = _alone(x, weight, bias)  # type: ignore[assignment]
        out, chosen = convolution.forward(x, weight, bias, ConvForm(*layer[:4]))
        said = _said(out, chosen, layer)
        return out.squeeze_(0), said[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, bias, ctx.layer = inputs
        ctx.biased = bias is not None
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # no zeros for what has no gradient
        ctx.save_for_backward(x, weight, output[1])

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, chosen = (part[None] for part in ctx.saved_tensors)
        found = _convolution_gradients(ctx, x, weight, chosen, dy[None])
        return (*(part[0] if part is not None else None for part in found), None)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, weight: Tensor, bias: Tensor | None, layer: tuple[Any, ...]
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        if _as_one_batch(x, in_dims):
            folded = x.movedim(in_dims[0], 0)
            found = apply(_Convolution, folded.flatten(0, 1), weight, bias, layer)
            out, chosen = (part.view(*folded.shape[:2], *part.shape[1:]) for part in found)
            return (out, chosen), (0, 0)
        stacked = [front(part, dim, info.batch_size) for part, dim in zip((x, weight, bias), in_dims, strict=False)]
        return apply(_Convolutions, *stacked, _in_turn(layer, in_dims[1], bias, in_dims[2])), (0, 0)


class _Convolutions(torch.autograd.Function):
    """M convolutions with M sets of weights: x [M, B, C, H, W], weight [M, O, C, K, K], bias [M, O]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: tuple[int, bool, bool, str, Lone, Branch]
    ) -> tuple[Tensor, Tensor]:
        from fedssd.engines.kernels import convolution
        from fedssd.engines.kernels.layer import ConvForm

        ctx.layer, ctx.biased = layer, bias is not None
        x = strides.laid(x)  # once, for both ways
        out, chosen = convolution.forward(x, weight, bias, ConvForm(*layer[:4]))
        said = _said(out, chosen, layer)
        ctx.mark_non_differentiable(said)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, said)
        return out, said

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, chosen = ctx.saved_tensors
        return (*_convolution_gradients(ctx, x, weight, chosen, dy), None)


def _said(out: Tensor, chosen: Tensor, layer: tuple[int, bool, bool, str, Lone, Branch]) -> Tensor:
    """What the way back must know of the output: what the pool chose, what ReLU let through, or nothing."""
    _, relu, pool, *_ = layer
    return chosen if pool else out.detach() if relu else out.new_empty(*out.shape[:2], 0)


def _convolution_gradients(
    ctx: Any, x: Tensor, weight: Tensor, chosen: Tensor, dy: Tensor
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """By x (where wanted), weight and bias, all stacked."""
    from fedssd.engines.kernels import convolution
    from fedssd.engines.kernels.layer import ConvForm

    layer, dy = ConvForm(*ctx.layer[:4]), strides.apart(dy)
    chosen = chosen if layer.relu or layer.pool else dy  # which then nobody reads
    by_weight, by_bias = _maybe_aside(
        ctx.layer, lambda: convolution.weight_gradient(x, dy, chosen, weight.shape[-1], layer), x, dy, chosen
    )
    by_x = None
    if ctx.needs_input_grad[0]:
        by_x = convolution.input_gradient(weight, dy, chosen, layer, x.shape[-2:])
    return by_x, by_weight, by_bias if ctx.biased else None


def _maybe_aside(layer: tuple[Any, ...], work: Callable[[], Result], *reads: Tensor | None) -> Result:
    *_, lone, second = layer
    found: Result = second.run(work, *reads) if lone() else work()
    return found


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, layer: tuple[bool, str, Lone, Branch]) -> Tensor:
        from fedssd.engines.kernels import linear

        x, weight, bias = _alone(x, weight, bias)  # type: ignore[assignment]
        return linear.forward(x, weight, bias, *layer[:2]).squeeze_(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.layer = inputs
        ctx.biased = bias is not None
        ctx.save_for_backward(x, weight, output if ctx.layer[0] else None)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gate = ctx.saved_tensors
        found = _linear_gradients(ctx, x[None], weight[None], None if gate is None else gate[None], dy[None])
        return (*(part[0] if part is not None else None for part in found), None)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, weight: Tensor, bias: Tensor | None, layer: tuple[Any, ...]
    ) -> tuple[Tensor, int]:
        if _as_one_batch(x, in_dims):
            folded = x.movedim(in_dims[0], 0)
            out = apply(_Linear, folded.flatten(0, 1), weight, bias, layer)
            return out.view(*folded.shape[:2], -1), 0
        stacked = [front(part, dim, info.batch_size) for part, dim in zip((x, weight, bias), in_dims, strict=False)]
        return apply(_Linears, *stacked, _in_turn(layer, in_dims[1], bias, in_dims[2])), 0


class _Linears(torch.autograd.Function):
    """M linear layers with M sets of weights: x [M, B, I], weight [M, O, I], bias [M, O]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: tuple[bool, str, Lone, Branch]
    ) -> Tensor:
        from fedssd.engines.kernels import linear

        ctx.layer, ctx.biased = layer, bias is not None
        out = linear.forward(x, weight, bias, *layer[:2])
        ctx.save_for_backward(x, weight, out if layer[0] else None)
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gate = ctx.saved_tensors
        return (*_linear_gradients(ctx, x, weight, gate, dy), None)


def _linear_gradients(
    ctx: Any, x: Tensor, weight: Tensor, gate: Tensor | None, dy: Tensor
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """By x (where wanted), weight and bias, all stacked; ``gate`` is the layer's output where ReLU follows."""
    from fedssd.engines.kernels import linear

    precision = ctx.layer[1]
    dy = dy.contiguous()
    by_weight, by_bias = _maybe_aside(
        ctx.layer, lambda: linear.weight_gradient(x, dy, gate, precision), x, dy, gate
    )  # fmt: skip
    by_x = linear.input_gradient(x, weight, dy, gate, precision) if ctx.needs_input_grad[0] else None
    return by_x, by_weight, by_bias if ctx.biased else None


class _Pieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, buffer: Tensor, sizes: list[int], second: Branch) -> tuple[Tensor, ...]:
        ctx.second = second
        return buffer.split_with_sizes(sizes, dim=1)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        ctx.second.join()
        return torch.cat(slopes, dim=1), None, None


class _Pool(torch.autograd.Function):
    """A model more is a batch more."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        found: Tensor = _pools(x).pool(x)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        found: Tensor = _pools(x).pool_gradient(x, dy)
        return found

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:  # noqa: ARG004
        return apply(_Pool, x.movedim(in_dims[0], 0)), 0


def _pools(x: Tensor) -> Any:
    if not x.is_cuda:
        return cpu_pool
    from fedssd.engines.kernels import pool

    return pool
