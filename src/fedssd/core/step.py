"""One local step of one client: the only place that differentiates a training loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Batch, Method, overrides
from fedssd.core.net import Net
from fedssd.core.tree import Tree, overridable


class Progress(NamedTuple):
    """What a client carries from step to step."""

    weights: Tree
    velocity: Tree
    figures: Tree  # running sums over samples: cross-entropy, penalty, what the method says it distilled, count


def begin(method: Method, weights: Tree, figures: Tree) -> Progress:
    """The state before the first step."""
    return Progress(weights, method.solver.init(weights["params"]), figures)


class Figures(NamedTuple):
    """Sums over a batch's samples; the run divides by the count at the end of the round."""

    names: tuple[str, ...]
    sums: Tensor  # [F]


def objective(
    method: Method, net: Net, params: Tree, buffers: Tree, sent: Tree, memory: Tree, batch: Batch, target: Tree
) -> tuple[Tensor, tuple[Tree, Figures]]:
    """The loss a client minimises on a batch; beside it the new buffers and the step's figures."""
    out, buffers = net.train({"params": params, "buffers": buffers}, batch.x)
    entropy = _cross_entropy(method, out.logits, batch)  # [B]
    penalty = method.local.penalty(out, batch, target, params, sent, memory)
    distilled = method.local.distilled(batch, target)
    loss, sums = mean_loss(batch.mask, entropy, penalty, *distilled.values())
    return loss, (buffers, Figures(("entropy", "penalty", *distilled, "count"), sums))


def _cross_entropy(method: Method, logits: Tensor, batch: Batch) -> Tensor:
    if not method.local.needs_public:
        return cross_entropy(logits, batch.y)
    return cross_entropy(logits, batch.y.clamp(min=0)) * batch.labelled


@overridable
def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Each sample's cross-entropy; torch's own, for many models at once, goes the long way round."""
    return -logits.log_softmax(-1).gather(-1, y[..., None])[..., 0]


@overridable
def mean_loss(mask: Tensor, entropy: Tensor, penalty: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of entropy + penalty over the samples that count; and what each term sums to, with their number."""
    loss = ((entropy + penalty) * mask).sum() / mask.sum().clamp(min=1)
    terms = (entropy.detach(), penalty.detach(), *others, torch.ones_like(mask))
    stacked = torch.stack([term.expand_as(entropy) for term in terms])  # [F, B]
    return loss, (stacked * mask).sum(-1)


Beside = TypeVar("Beside")


def gradient(loss_of: Callable[[Tree], tuple[Tensor, Beside]], params: Tree) -> tuple[Tree, Beside]:
    """The gradient of a loss and what came beside it.

    The loss may be one number, or one per model for stacked parameters: models do not share parameters, so the
    gradient of the sum holds each model's own.
    """
    with torch.enable_grad():
        active = tree.map_tree(lambda p: p.detach().requires_grad_(True), params)
        loss, beside = loss_of(active)
        # A slope of our own saves a device two launches. To check its shape torch imports more than a CPU run needs.
        whole, slope = (loss, torch.ones_like(loss)) if loss.is_cuda else (loss.sum(), None)
        found = torch.autograd.grad(whole, tree.leaves(active), slope, allow_unused=True, materialize_grads=True)
    remaining = iter(found)
    return tree.map_tree(lambda _: next(remaining), params), beside


def local_step(
    method: Method, net: Net, progress: Progress, sent: Tree, memory: Tree, batch: Batch, target: Tree
) -> Progress:
    """One SGD step on a batch."""
    weights, velocity, figures = progress
    before = weights["params"]

    def loss(params: Tree) -> tuple[Tensor, tuple[Tree, Figures]]:
        return objective(method, net, params, weights["buffers"], sent, memory, batch, target)

    gradients, (buffers, (names, sums)) = gradient(loss, before)
    if overrides(method.local, "point"):
        gradients, _ = gradient(loss, method.local.point(before, gradients, sent, memory))
    moved, velocity = method.solver.step(before, velocity, gradients)
    settled = method.local.settle(moved, before, method.solver.lr, sent, memory)
    params = method.server.hold(sent, before, settled)
    now: Tree = dict(zip(names, sums.detach().unbind(), strict=True))
    total = tree.map_tree(torch.add, figures, now) if figures else now
    return Progress({"params": params, "buffers": tree.map_tree(torch.detach, buffers)}, velocity, total)
