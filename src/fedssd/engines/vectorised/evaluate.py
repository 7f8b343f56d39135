"""Many models on the whole test set."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.engine import Evaluation, World
from fedssd.core.net import Net
from fedssd.core.tree import Tree
from fedssd.engines.kernels import strides
from fedssd.engines.kernels.net import Losses
from fedssd.engines.vectorised.lift import over_models
from fedssd.methods.distillation import confusion_counts


@torch.no_grad()
def evaluate(net: Net, world: World, models: Tree, at_once: int, block: int, kernels: bool) -> Evaluation:
    """Every model of a stacked tree, ``at_once`` models and ``block`` samples at a time."""
    count = len(tree.leaves(models)[0])
    some = [tree.map_tree(lambda leaf, f=f: leaf[f : f + at_once], models) for f in range(0, count, at_once)]
    with Losses() if kernels else nullcontext():
        found = [_evaluate_some(net, world, part, block, kernels) for part in some]
    return Evaluation(torch.cat([f.confusion for f in found]), torch.cat([f.loss for f in found]))


def _evaluate_some(net: Net, world: World, models: Tree, block: int, kernels: bool) -> Evaluation:
    count = len(tree.leaves(models)[0])
    counts = torch.zeros(count, world.classes, world.classes, dtype=torch.int64, device=world.device)
    loss = torch.zeros(count, dtype=world.dtype, device=world.device)
    samples = len(world.test_y)
    even = math.ceil(samples / math.ceil(samples / block))  # kernels are made for a block's size: one for all
    whole_rows = kernels and even >= strides.ROW
    if whole_rows:
        even = strides.ROW * math.ceil(even / strides.ROW)
    for x, y in zip(torch.split(world.test_x, even), torch.split(world.test_y, even), strict=True):
        prepared = world.pipeline.test(_filled_up(x, even) if whole_rows else x, world.dtype)
        logits: Tensor = over_models(lambda w, inputs: net(w, inputs).logits, count, (False, True))(models, prepared)
        logits = logits[:, : len(y)]
        counts += confusion_counts(logits, y, world.classes).to(torch.int64)  # [m, K, K]
        loss += _losses(logits, y)
    return Evaluation(counts, loss / samples)


def _filled_up(x: Tensor, size: int) -> Tensor:
    """The samples, and as many of them again as make up a block."""
    return x if len(x) == size else x[torch.arange(size, device=x.device) % len(x)]


def _losses(logits: Tensor, y: Tensor) -> Tensor:
    """Summed cross-entropy of each model, [m] from [m, N, K]."""
    every = F.cross_entropy(logits.flatten(0, 1), y.expand(len(logits), -1).flatten(), reduction="none")
    return every.view(len(logits), -1).sum(1)
