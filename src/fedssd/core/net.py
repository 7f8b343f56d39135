"""A torch module as a pure function of its weights."""

from __future__ import annotations

import threading
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedssd.core import tree
from fedssd.core.tree import Tree

RANDOM_LAYERS = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


class Outputs(NamedTuple):
    """What a model says about a batch."""

    logits: Tensor  # [B, K]
    features: Tensor  # [B, D], what MOON compares


class _Modules(threading.local):
    """A module in both modes, for every thread its own: while it is called it holds the weights it is called with."""

    def __init__(self, skeleton: nn.Module) -> None:
        self.evaluating, self.training = deepcopy(skeleton).eval(), deepcopy(skeleton).train()


class Net:
    """A module that holds no numbers: ``net(weights, x)`` and ``net.train(weights, x)``.

    Weights are ``{"params": …, "buffers": …}``. ``num_batches_tracked`` is left out: it has no gradient, and its mean
    over clients means nothing.
    """

    def __init__(self, module: nn.Module) -> None:
        refuse_randomness(module)
        skeleton = deepcopy(module).to("meta")
        for layer in skeleton.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.num_batches_tracked = None  # unused at fixed momentum
        self._modules = _Modules(skeleton)
        self.has_batch_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in skeleton.modules())

    def __call__(self, weights: Tree, x: Tensor) -> Outputs:
        """Evaluation mode: what teachers and tests see."""
        return outputs(functional_call(self._modules.evaluating, {**weights["params"], **weights["buffers"]}, (x,)))

    def train(self, weights: Tree, x: Tensor) -> tuple[Outputs, Tree]:
        """Training mode: the outputs, and the buffers as batch norm leaves them."""
        buffers = tree.map_tree(torch.clone, weights["buffers"])  # mutated in place by batch norm
        found = functional_call(self._modules.training, {**weights["params"], **buffers}, (x,))
        return outputs(found), buffers


def weights_of(module: nn.Module) -> Tree:
    """The module's current numbers as a tree."""

    params = {name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad}
    frozen = {name: p.detach().clone() for name, p in module.named_parameters() if not p.requires_grad}
    buffers = {
        name: b.detach().clone() for name, b in module.named_buffers() if not name.endswith("num_batches_tracked")
    }
    return {"params": params, "buffers": {**frozen, **buffers}}


def load_weights(module: nn.Module, weights: Tree) -> nn.Module:
    """Put a tree of weights back into a module, for use outside fedssd."""
    module.load_state_dict({**weights["params"], **weights["buffers"]}, strict=False)
    return module


def refuse_randomness(module: nn.Module) -> None:
    """Layers that draw their own numbers, or count their own batches, would break exact repetition; say which one."""
    for name, layer in module.named_modules():
        where = f"model layer {name or type(module).__name__!r} ({type(layer).__name__})"
        inner_dropout = getattr(layer, "dropout", 0.0)  # attention and recurrent layers
        draws = isinstance(layer, RANDOM_LAYERS) and getattr(layer, "p", 1.0) != 0
        if draws or (isinstance(inner_dropout, float) and inner_dropout > 0):
            raise ValueError(
                f"{where} draws its own random numbers, "
                "which cannot be repeated exactly: remove it or set its probability to 0"
            )
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is None:
            raise ValueError(f"{where} averages over all batches it ever saw (momentum=None): give it a fixed momentum")
    named = {name for name, _ in module.named_parameters()} | {name for name, _ in module.named_buffers()}
    for name, _ in [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]:
        if name not in named:
            raise ValueError(
                f"model parameter {name!r} is another parameter under a second name: tied weights do not fit"
            )


def outputs(found: Tensor | tuple[Tensor, Tensor]) -> Outputs:
    """Accept (logits, features), or logits alone (which then serve as features too)."""
    return Outputs(*found) if isinstance(found, tuple | list) else Outputs(found, found)
