"""Whether our kernels fit a model: they answer once beside PyTorch's layers."""

from __future__ import annotations

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.net import Net
from fedssd.core.tree import Tree
from fedssd.engines.kernels import strides
from fedssd.engines.kernels.launching import rehearse
from fedssd.engines.kernels.net import StackedNet
from fedssd.engines.vectorised.lift import over_models
from fedssd.engines.vectorised.precision import arithmetic


@torch.no_grad()
def misfit(net: Net, weights: Tree, x: Tensor) -> str:
    """Why two of this model, asked about ``x``, cannot do with kernels; empty where they answer as without."""
    pair = tree.map_tree(lambda leaf: torch.stack([leaf, leaf]), weights)
    with arithmetic(x.device, "fp32", benchmark=False):
        expected = over_models(net, 2, (False, True))(pair, x)
        try:
            laid = strides.laid(x[None])[0]  # as a step's batches lie
            ours = over_models(StackedNet(net, "ieee"), 2, (False, True))
            if x.is_cuda:
                rehearse(lambda: ours(pair, laid))
            found = ours(pair, laid)
        except Exception as error:  # a model may do anything with what it takes for a tensor
            return f"{type(error).__name__}: {first_line(error)}"
        same = all(_alike(*both) for both in zip(found, expected, strict=True))
        return "" if same else "it answers otherwise with them"


def first_line(error: Exception) -> str:
    """Of what an error says."""
    return (str(error).splitlines() or [""])[0]


def _alike(found: Tensor, expected: Tensor) -> bool:
    """Equal but for rounding."""
    size = float(expected.abs().max())
    return torch.allclose(found, expected, rtol=0, atol=1e-3 * size, equal_nan=True)
