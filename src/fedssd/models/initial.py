"""Initial weights as a pure function of the seed, with the spread PyTorch gives each kind of layer."""

from __future__ import annotations

import math
from zlib import crc32

import torch
from torch import Tensor, nn

from fedssd.core.net import weights_of
from fedssd.core.randomness import Purpose, normal, uniform
from fedssd.core.tree import Tree


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
