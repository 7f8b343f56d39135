"""Models by name; each maps a batch to (logits, features)."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fedssd.errors import UserError, nearest
from fedssd.models.cnn import CNN, SmallCNN
from fedssd.models.initial import initial_weights
from fedssd.models.mlp import MLP
from fedssd.models.resnet import ResNet

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
