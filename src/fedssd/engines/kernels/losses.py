"""Cross-entropy, FedSSD's terms, cosines and the mean over a batch; each sees one model or, under vmap, all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedssd.engines.kernels.functorch import apply, one, stacked


def entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Each sample's cross-entropy."""
    found: Tensor = apply(_Entropy, logits, y)[0]
    return found


def weighted_square(
    logits: Tensor, teacher: Tensor, weight: Tensor, scale: Tensor, inside: bool, mean: bool
) -> Tensor:  # fmt: skip
    """Each sample's weighted square; gradients flow into the logits alone."""
    found: Tensor = apply(_WeightedSquare, logits, teacher, weight, scale, (inside, mean))
    return found


def distillation_weights(logits: Tensor, y: Tensor, credibility: Tensor, floor: Tensor, exponent: Tensor) -> Tensor:
    """FedSSD's weights of each sample and class; no gradient flows through them."""
    found: Tensor = apply(_DistillationWeights, logits, y, credibility, floor, exponent)
    return found


def shares(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Each sample's mean weight, and the share of classes where it is above zero."""
    found: tuple[Tensor, Tensor] = apply(_Shares, weight)
    return found


def cosine(a: Tensor, b: Tensor, eps: float) -> Tensor:
    """The cosine between rows; gradients flow into the first alone."""
    found: Tensor = apply(_Cosine, a, b, eps)
    return found


def mean_loss(mask: Tensor, *terms: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of the first two terms over the samples that count, and the sums of all."""
    found: tuple[Tensor, Tensor] = apply(_MeanLoss, mask, *(term.expand_as(mask) for term in terms))
    return found


def confusion_counts(logits: Tensor, y: Tensor) -> Tensor:
    """What every model [M] calls the samples of each class; nothing flows back."""
    from fedssd.engines.kernels import loss

    return loss.confusion_counts(logits, y)


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        from fedssd.engines.kernels import loss

        return loss.entropy(logits, y) if logits.ndim == 3 else one(loss.entropy, logits, y)

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
            return one(loss.entropy_gradient, probability, y, slope), None
        return loss.entropy_gradient(probability, y, slope), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *parts: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return apply(_Entropy, *stacked(info, in_dims, parts)), (0, 0)


class _WeightedSquare(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor, teacher: Tensor, weight: Tensor, scale: Tensor, how: tuple[bool, bool]) -> Tensor:
        from fedssd.engines.kernels import loss

        parts = (logits, teacher, weight, scale, *how)
        return loss.weighted_square(*parts) if logits.ndim == 3 else one(loss.weighted_square, *parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        *parts, ctx.how = inputs
        ctx.save_for_backward(*parts)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        from fedssd.engines.kernels import loss

        parts = (*ctx.saved_tensors, slope, *ctx.how)
        by_logits = (
            loss.weighted_square_gradient(*parts) if slope.ndim == 2 else one(loss.weighted_square_gradient, *parts)
        )
        return by_logits, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *parts: Any) -> tuple[Tensor, int]:
        return apply(_WeightedSquare, *stacked(info, in_dims, parts)), 0


class _DistillationWeights(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor, y: Tensor, credibility: Tensor, floor: Tensor, exponent: Tensor) -> Tensor:
        from fedssd.engines.kernels import loss

        parts = (logits, y, credibility, floor, exponent)
        return loss.distillation_weights(*parts) if logits.ndim == 3 else one(loss.distillation_weights, *parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *parts: Any) -> tuple[Tensor, int]:
        return apply(_DistillationWeights, *stacked(info, in_dims, parts)), 0


class _Shares(torch.autograd.Function):
    @staticmethod
    def forward(weight: Tensor) -> tuple[Tensor, Tensor]:
        from fedssd.engines.kernels import loss

        return loss.shares(weight) if weight.ndim == 3 else one(loss.shares, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:  # noqa: ARG004
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *parts: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return apply(_Shares, *stacked(info, in_dims, parts)), (0, 0)


class _Cosine(torch.autograd.Function):
    @staticmethod
    def forward(a: Tensor, b: Tensor, eps: float) -> Tensor:
        from fedssd.engines.kernels import loss

        return loss.cosine(a, b, eps) if a.ndim == 3 else one(loss.cosine, a, b, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        a, b, ctx.eps = inputs
        ctx.save_for_backward(a, b)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        from fedssd.engines.kernels import loss

        parts = (*ctx.saved_tensors, slope, ctx.eps)
        by_a = loss.cosine_gradient(*parts) if slope.ndim == 2 else one(loss.cosine_gradient, *parts)
        return by_a, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *parts: Any) -> tuple[Tensor, int]:
        return apply(_Cosine, *stacked(info, in_dims, parts)), 0


class _MeanLoss(torch.autograd.Function):
    @staticmethod
    def forward(mask: Tensor, *terms: Tensor) -> tuple[Tensor, Tensor]:
        from fedssd.engines.kernels import loss

        return loss.mean_loss(mask, *terms) if mask.ndim == 2 else one(loss.mean_loss, mask, *terms)

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
            else one(loss.mean_loss_gradient, mask, sums, slope)
        )
        return (None, each, each, *[None] * ctx.others)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *parts: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        return apply(_MeanLoss, *stacked(info, in_dims, parts)), (0, 0)
