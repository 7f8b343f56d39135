"""One local step of one client: the only place that differentiates a training loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.contract import Batch, Method
from fedssd.core.net import Net
from fedssd.core.tree import Tree


class Progress(NamedTuple):
    """What a client carries from step to step."""

    weights: Tree
    velocity: Tree
    figures: Tree  # running sums over samples: cross-entropy, penalty, what the method says it distilled, count


def begin(method: Method, weights: Tree, figures: Tree) -> Progress:
    """The state before the first step."""
    return Progress(weights, method.solver.init(weights["params"]), figures)


def objective(
    method: Method, net: Net, params: Tree, buffers: Tree, sent: Tree, memory: Tree, batch: Batch, target: Tree
) -> tuple[Tensor, tuple[Tree, Tree]]:
    """The loss a client minimises on a batch; beside it the new buffers and the step's figures."""
    out, buffers = net.train({"params": params, "buffers": buffers}, batch.x)
    entropy = _cross_entropy(method, out.logits, batch)  # [B]
    penalty = method.local.penalty(out, batch, target, params, sent, memory)
    count = batch.mask.sum().clamp(min=1)
    loss = ((entropy + penalty) * batch.mask).sum() / count
    return loss, (buffers, _figures(method, batch, target, entropy.detach(), penalty.detach()))


def _cross_entropy(method: Method, logits: Tensor, batch: Batch) -> Tensor:
    if not method.local.needs_public:
        return F.cross_entropy(logits, batch.y, reduction="none")
    return F.cross_entropy(logits, batch.y.clamp(min=0), reduction="none") * batch.labelled


def _figures(method: Method, batch: Batch, target: Tree, entropy: Tensor, penalty: Tensor) -> Tree:
    """Sums over the batch's samples; the run divides by the count at the end of the round."""
    count = torch.ones_like(entropy)
    per_sample = {"entropy": entropy, "penalty": penalty, **method.local.distilled(batch, target), "count": count}
    stacked = torch.stack([value.expand_as(entropy) for value in per_sample.values()])  # [F, B]
    return dict(zip(per_sample, (stacked * batch.mask).sum(-1).unbind(), strict=True))


def gradient(
    loss_of: Callable[[Tree], tuple[Tensor, tuple[Tree, Tree]]], params: Tree
) -> tuple[Tree, tuple[Tree, Tree]]:
    """The gradient of a loss and what came beside it.

    The loss may be one number, or one per model for stacked parameters: models do not share parameters, so the
    gradient of the sum holds each model's own.
    """
    with torch.enable_grad():
        active = tree.map_tree(lambda p: p.detach().requires_grad_(True), params)
        loss, beside = loss_of(active)
        found = torch.autograd.grad(loss.sum(), tree.leaves(active), allow_unused=True, materialize_grads=True)
    remaining = iter(found)
    buffers, figures = beside
    gradients = tree.map_tree(lambda _: next(remaining), params)
    return gradients, (tree.map_tree(torch.detach, buffers), tree.map_tree(torch.detach, figures))


def local_step(
    method: Method, net: Net, progress: Progress, sent: Tree, memory: Tree, batch: Batch, target: Tree
) -> Progress:
    """One SGD step on a batch."""
    weights, velocity, figures = progress
    gradients, (buffers, now) = gradient(
        lambda params: objective(method, net, params, weights["buffers"], sent, memory, batch, target),
        weights["params"],
    )
    moved, velocity = method.solver.step(weights["params"], velocity, gradients)
    params = method.server.hold(sent, weights["params"], moved)
    total = tree.map_tree(torch.add, figures, now) if figures else now
    return Progress({"params": params, "buffers": buffers}, velocity, total)
