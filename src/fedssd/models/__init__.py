"""Models by name; each maps a batch to (logits, features). Initial weights, a pure function of the seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from zlib import crc32

import torch
from torch import Tensor, nn

from fedssd.core.net import weights_of
from fedssd.core.randomness import Purpose, normal, uniform
from fedssd.core.tree import Tree
from fedssd.errors import UserError, nearest
from fedssd.models.networks import CNN, MLP, ResNet, SmallCNN

__all__ = ["CNN", "MLP", "MODELS", "ResNet", "SmallCNN", "build_model", "default_model", "initial_weights"]

Builder = Callable[[tuple[int, ...], int, bool], nn.Module]
MODELS: dict[str, Builder] = {"cnn": CNN, "cnn-small": SmallCNN, "resnet50": ResNet, "mlp": MLP}
SMALLEST_SIDE = {"cnn": 16, "cnn-small": 4, "resnet50": 8}


def build_model(name: str, shape: tuple[int, ...], classes: int, head: bool = False) -> nn.Module:
    """A model for samples of this shape; the numbers in it are PyTorch's until :func:`initial_weights` draws ours."""
    if name not in MODELS:
        raise UserError(f"unknown model {name!r}: {nearest(name, list(MODELS))}")
    if name in SMALLEST_SIDE and (len(shape) != 3 or min(shape[1:]) < SMALLEST_SIDE[name]):
        side = SMALLEST_SIDE[name]
        raise UserError(f"model {name!r} expects images of at least {side}×{side}, the data have shape {list(shape)}")
    return MODELS[name](shape, classes, head)


def default_model(dataset: str, shape: tuple[int, ...]) -> str:
    """The paper's choice where it made one, else by the shape of a sample."""
    if dataset in ("cifar100", "tiny-imagenet"):
        return "resnet50"
    if len(shape) != 3:
        return "mlp"
    return "cnn" if min(shape[1:]) >= 16 else "cnn-small"


def initial_weights(module: nn.Module, seed: int) -> Tree:
    """Fresh weights for a model of ours, always drawn on the CPU, so that every device starts from the same bits.

    Linear and convolution layers: U(−1/√fan_in, 1/√fan_in) for weights and biases, PyTorch's default. Convolutions
    without a bias, as residual networks have them: N(0, 2/fan_out), as torchvision initialises those networks.
    Everything else keeps the values its layer starts with (batch norm: ones and zeros).
    """
    weights = weights_of(module)
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            prefix = f"{name}." if name else ""
            for kind, parameter in layer.named_parameters(recurse=False):
                weights["params"][prefix + kind] = _draw(layer, parameter, seed, prefix + kind)
    return weights


def _draw(layer: nn.Conv2d | nn.Linear, parameter: Tensor, seed: int, path: str) -> Tensor:
    counter = torch.arange(parameter.numel())
    key = (seed, Purpose.WEIGHTS, crc32(path.encode()), counter)
    if isinstance(layer, nn.Conv2d) and layer.bias is None:
        fan_out = layer.out_channels * math.prod(layer.kernel_size)
        values = normal(*key) * math.sqrt(2.0 / fan_out)
    else:
        bound = 1.0 / math.sqrt(layer.weight[0].numel())
        values = (2.0 * uniform(*key) - 1.0) * bound
    return values.view(parameter.shape).to(parameter.dtype)
