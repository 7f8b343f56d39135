"""The kernels as differentiable layers: one model's layer, and under vmap the stacked one.

Each layer is a pair of autograd functions. The first sees one model and has a vmap rule; in that rule the models'
weights are one stacked tensor, and the second, which knows only stacked tensors, takes it from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedssd.engines.kernels import cpu_pool
from fedssd.engines.kernels.aside import Result, aside, join

Lone = Callable[[], bool]
"""Whether weight and bias are used here and nowhere else, so that their gradients may be made aside."""


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, lone: Lone, relu: bool, pool: bool
) -> Tensor:  # fmt: skip
    """One model's convolution, with what follows it."""
    found: Tensor = _apply(_Convolution, x, weight, bias, (padding, relu, pool, lone))[0]
    return found


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, precision: str, lone: Lone, relu: bool) -> Tensor:
    """One model's linear layer, with what follows it."""
    found: Tensor = _apply(_Linear, x, weight, bias, (relu, precision, lone))
    return found


def pieces(buffer: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """A buffer [M, P] cut along its parameters; the pieces' gradients, some made aside, are put together again."""
    found: tuple[Tensor, ...] = _apply(_Pieces, buffer, sizes)
    return found


def largest(x: Tensor) -> Tensor:
    """The largest of every 2 × 2 square."""
    found: Tensor = _apply(_Pool, x)
    return found


def entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Each sample's cross-entropy."""
    found: Tensor = _apply(_Entropy, logits, y)[0]
    return found


def weighted_square(
    logits: Tensor, teacher: Tensor, weight: Tensor, scale: Tensor, inside: bool, mean: bool
) -> Tensor:  # fmt: skip
    """Each sample's weighted square; gradients flow into the logits alone."""
    found: Tensor = _apply(_WeightedSquare, logits, teacher, weight, scale, (inside, mean))
    return found


def distillation_weights(logits: Tensor, y: Tensor, credibility: Tensor, floor: Tensor, exponent: Tensor) -> Tensor:
    """FedSSD's weights of each sample and class; no gradient flows through them."""
    found: Tensor = _apply(_DistillationWeights, logits, y, credibility, floor, exponent)
    return found


def shares(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Each sample's mean weight, and the share of classes where it is above zero."""
    found: tuple[Tensor, Tensor] = _apply(_Shares, weight)
    return found


def cosine(a: Tensor, b: Tensor, eps: float) -> Tensor:
    """The cosine between rows; gradients flow into the first alone."""
    found: Tensor = _apply(_Cosine, a, b, eps)
    return found


def mean_loss(mask: Tensor, *terms: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of the first two terms over the samples that count, and the sums of all."""
    found: tuple[Tensor, Tensor] = _apply(_MeanLoss, mask, *(term.expand_as(mask) for term in terms))
    return found


def confusion_counts(logits: Tensor, y: Tensor) -> Tensor:
    """What every model [M] calls the samples of each class; nothing flows back."""
    from fedssd.engines.kernels import loss

    return loss.confusion_counts(logits, y)


def _apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    return function.apply(*args)  # type: ignore[no-untyped-call]


def _front(part: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """The axis of models in front; a part without one is shared, not copied."""
    if part is None:
        return None
    return part.expand(size, *part.shape) if dim is None else part.movedim(dim, 0)


def _alone(*parts: Tensor | None) -> list[Tensor | None]:
    return [part[None] if part is not None else None for part in parts]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, layer: tuple[int, bool, bool, Lone]
    ) -> tuple[Tensor, Tensor]:
        from fedssd.engines.kernels import convolution

        x, weight, bias = _alone(x, weight, bias)  # type: ignore[assignment]
        out, chosen = convolution.forward(x, weight, bias, convolution.Layer(*layer[:3]))
        return out[0], chosen[0] if layer[2] else out[0].detach().view(out.shape[1:])

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
        if in_dims[1] is None and in_dims[2] is None:  # many batches, one model: one large batch
            folded = x.movedim(in_dims[0], 0)
            found = _apply(_Convolution, folded.flatten(0, 1), weight, bias, layer)
            out, chosen = (part.view(*folded.shape[:2], *part.shape[1:]) for part in found)
            return (out, chosen), (0, 0)
        stacked = [_front(part, dim, info.batch_size) for part, dim in zip((x, weight, bias), in_dims, strict=False)]
        return _apply(_Convolutions, *stacked, layer), (0, 0)


class _Convolutions(torch.autograd.Function):
    """M convolutions with M sets of weights: x [M, B, C, H, W], weight [M, O, C, K, K], bias [M, O]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: tuple[int, bool, bool, Lone]
    ) -> tuple[Tensor, Tensor]:
        from fedssd.engines.kernels import convolution

        ctx.layer, ctx.biased = layer, bias is not None
        out, chosen = convolution.forward(x, weight, bias, convolution.Layer(*layer[:3]))
        said = chosen if layer[2] else out.detach()
        ctx.mark_non_differentiable(said)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, said)
        return out, said

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, chosen = ctx.saved_tensors
        return (*_convolution_gradients(ctx, x, weight, chosen, dy), None)


def _convolution_gradients(
    ctx: Any, x: Tensor, weight: Tensor, chosen: Tensor, dy: Tensor
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """By x (where wanted), weight and bias, all stacked."""
    from fedssd.engines.kernels import convolution

    layer = convolution.Layer(*ctx.layer[:3])
    by_weight, by_bias = _maybe_aside(
        ctx.layer[-1], lambda: convolution.weight_gradient(x, dy, chosen, weight.shape[-1], layer), x, dy, chosen
    )
    by_x = None
    if ctx.needs_input_grad[0]:
        by_x = convolution.input_gradient(weight, dy, chosen, layer, x.shape[-2:])
    return by_x, by_weight, by_bias if ctx.biased else None


def _maybe_aside(lone: Lone, work: Callable[[], Result], *reads: Tensor | None) -> Result:
    return aside(work, *reads) if lone() else work()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, layer: tuple[bool, str, Lone]) -> Tensor:
        from fedssd.engines.kernels import linear

        x, weight, bias = _alone(x, weight, bias)  # type: ignore[assignment]
        return linear.forward(x, weight, bias, *layer[:2])[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.layer = inputs
        ctx.biased = bias is not None
        ctx.save_for_backward(x, weight, output)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, out = (part[None] for part in ctx.saved_tensors)
        found = _linear_gradients(ctx, x, weight, out, dy[None])
        return (*(part[0] if part is not None else None for part in found), None)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, weight: Tensor, bias: Tensor | None, layer: tuple[Any, ...]
    ) -> tuple[Tensor, int]:
        if in_dims[1] is None and in_dims[2] is None:
            folded = x.movedim(in_dims[0], 0)
            out = _apply(_Linear, folded.flatten(0, 1), weight, bias, layer)
            return out.view(*folded.shape[:2], -1), 0
        stacked = [_front(part, dim, info.batch_size) for part, dim in zip((x, weight, bias), in_dims, strict=False)]
        return _apply(_Linears, *stacked, layer), 0


class _Linears(torch.autograd.Function):
    """M linear layers with M sets of weights: x [M, B, I], weight [M, O, I], bias [M, O]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: tuple[bool, str, Lone]) -> Tensor:
        from fedssd.engines.kernels import linear

        ctx.layer, ctx.biased = layer, bias is not None
        out = linear.forward(x, weight, bias, *layer[:2])
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        return (*_linear_gradients(ctx, x, weight, out, dy), None)


def _linear_gradients(
    ctx: Any, x: Tensor, weight: Tensor, out: Tensor, dy: Tensor
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    from fedssd.engines.kernels import linear

    relu, precision, lone = ctx.layer
    gate, dy = (out if relu else None), dy.contiguous()
    by_weight, by_bias = _maybe_aside(
        lone, lambda: linear.weight_gradient(x, dy, gate, precision), x, dy, gate
    )  # fmt: skip
    by_x = linear.input_gradient(weight, dy, gate, precision) if ctx.needs_input_grad[0] else None
    return by_x, by_weight, by_bias if ctx.biased else None


class _Pieces(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, buffer: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        return buffer.split_with_sizes(sizes, dim=1)

    @staticmethod
    def backward(_ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        join()
        return torch.cat(slopes, dim=1), None


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
        return _apply(_Pool, x.movedim(in_dims[0], 0)), 0


def _pools(x: Tensor) -> Any:
    if not x.is_cuda:
        return cpu_pool
    from fedssd.engines.kernels import pool

    return pool


def _stacked(info: Any, in_dims: tuple[Any, ...], parts: tuple[Any, ...]) -> list[Any]:
    return [
        _front(part, dim, info.batch_size) if isinstance(part, Tensor) else part
        for part, dim in zip(parts, in_dims, strict=True)
    ]


def _one(function: Callable[..., Any], *parts: Any) -> Any:
    """A function of stacked tensors for a single model, whose tensors have no axis of models."""
    found = function(*(part[None] if isinstance(part, Tensor) else part for part in parts))
    return tuple(part[0] for part in found) if isinstance(found, tuple) else found[0]


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        from fedssd.engines.kernels import loss

        return loss.entropy(logits, y) if logits.ndim == 3 else _one(loss.entropy, logits, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # no zeros for what has no gradient
        ctx.save_for_backward(inputs[1], output[1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor, None]:
        from fedssd.engines.kernels import loss

        y, probability = ctx.saved_tensors
        if probability.ndim == 2:
            return _one(loss.entropy_gradient, probability, y, slope), None
        return loss.entropy_gradient(probability, y, slope), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *parts: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return _apply(_Entropy, *_stacked(info, in_dims, parts)), (0, 0)


class _WeightedSquare(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor, teacher: Tensor, weight: Tensor, scale: Tensor, how: tuple[bool, bool]) -> Tensor:
        from fedssd.engines.kernels import loss

        parts = (logits, teacher, weight, scale, *how)
        return loss.weighted_square(*parts) if logits.ndim == 3 else _one(loss.weighted_square, *parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        *parts, ctx.how = inputs
        ctx.save_for_backward(*parts)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        from fedssd.engines.kernels import loss

        parts = (*ctx.saved_tensors, slope, *ctx.how)
        by_logits = (
            loss.weighted_square_gradient(*parts) if slope.ndim == 2 else _one(loss.weighted_square_gradient, *parts)
        )
        return by_logits, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *parts: Any) -> tuple[Tensor, int]:
        return _apply(_WeightedSquare, *_stacked(info, in_dims, parts)), 0


class _DistillationWeights(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor, y: Tensor, credibility: Tensor, floor: Tensor, exponent: Tensor) -> Tensor:
        from fedssd.engines.kernels import loss

        parts = (logits, y, credibility, floor, exponent)
        return loss.distillation_weights(*parts) if logits.ndim == 3 else _one(loss.distillation_weights, *parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *parts: Any) -> tuple[Tensor, int]:
        return _apply(_DistillationWeights, *_stacked(info, in_dims, parts)), 0


class _Shares(torch.autograd.Function):
    @staticmethod
    def forward(weight: Tensor) -> tuple[Tensor, Tensor]:
        from fedssd.engines.kernels import loss

        return loss.shares(weight) if weight.ndim == 3 else _one(loss.shares, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:  # noqa: ARG004
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *parts: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return _apply(_Shares, *_stacked(info, in_dims, parts)), (0, 0)


class _Cosine(torch.autograd.Function):
    @staticmethod
    def forward(a: Tensor, b: Tensor, eps: float) -> Tensor:
        from fedssd.engines.kernels import loss

        return loss.cosine(a, b, eps) if a.ndim == 3 else _one(loss.cosine, a, b, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        a, b, ctx.eps = inputs
        ctx.save_for_backward(a, b)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        from fedssd.engines.kernels import loss

        parts = (*ctx.saved_tensors, slope, ctx.eps)
        by_a = loss.cosine_gradient(*parts) if slope.ndim == 2 else _one(loss.cosine_gradient, *parts)
        return by_a, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *parts: Any) -> tuple[Tensor, int]:
        return _apply(_Cosine, *_stacked(info, in_dims, parts)), 0


class _MeanLoss(torch.autograd.Function):
    @staticmethod
    def forward(mask: Tensor, *terms: Tensor) -> tuple[Tensor, Tensor]:
        from fedssd.engines.kernels import loss

        return loss.mean_loss(mask, *terms) if mask.ndim == 2 else _one(loss.mean_loss, mask, *terms)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.others = len(inputs) - 3
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        from fedssd.engines.kernels import loss

        mask, sums = ctx.saved_tensors
        each = (
            loss.mean_loss_gradient(mask, sums, slope)
            if mask.ndim == 2
            else _one(loss.mean_loss_gradient, mask, sums, slope)
        )
        return (None, each, each, *[None] * ctx.others)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *parts: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return _apply(_MeanLoss, *_stacked(info, in_dims, parts)), (0, 0)
