"""Who runs a round: the reference loop, or all clients as one batched program."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedssd.core import tree
from fedssd.core.engine import Engine, World
from fedssd.core.net import Net
from fedssd.core.plan import Schedule
from fedssd.core.tree import Tree
from fedssd.engines.reference import ReferenceEngine
from fedssd.errors import UserError

__all__ = ["Engine", "ReferenceEngine", "build_engine", "choose_engine", "pick_device", "pick_engine"]


LARGEST_SAMPLE = 784  # numbers in a sample up to which a batch of models pays on the CPU
LARGEST_MODEL = 30_000


def pick_device(name: str) -> torch.device:
    """The device a recipe names; ``auto`` takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device expects auto, cpu or cuda, got {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device expects auto, cpu or cuda, got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device = cuda was asked for, and torch sees no GPU here: use cpu or auto")
    return device


def pick_engine(name: str, device: torch.device, weights: Tree, sample: int, cohort: int, runs: int) -> tuple[str, str]:
    """The engine's name and why it was taken."""
    if name != "auto":
        return name, "asked for"
    return choose_engine(device, sum(leaf.numel() for leaf in tree.leaves(weights)), sample, cohort, runs)


def choose_engine(
    device: torch.device | str, parameters: int, sample_numel: int, cohort: int, runs: int
) -> tuple[str, str]:
    """The engine's name and the reason in one line.

    On an accelerator the vectorised engine always wins: it captures the step even for a single model. On the CPU a
    batch of models pays where calling a model costs more than its arithmetic, and loses where memory traffic rules.
    """
    kind = torch.device(device).type
    if kind == "cuda":
        return "vectorised", f"{runs * cohort} models side by side on the accelerator"
    if runs * cohort == 1:
        return "reference", "a single client on the CPU has nothing to be batched with"
    if parameters <= LARGEST_MODEL and sample_numel <= LARGEST_SAMPLE:
        return "vectorised", f"{runs * cohort} small models ({parameters:,} parameters) side by side on the CPU"
    return "reference", f"models of {parameters:,} parameters keep the CPU busy one at a time"


def build_engine(
    name: str,
    net: Net,
    world: World,
    schedule: Schedule,
    precision: str,
    width: int,
    notice: Callable[[str], None],
    kernels: bool = True,
) -> Engine:
    """An engine by name, for one model."""
    if name == "reference":
        return ReferenceEngine(net, world, schedule)
    from fedssd.engines.vectorised import VectorisedEngine

    ours = None if kernels else False  # None: where they can run
    return VectorisedEngine(net, world, schedule, width=width or None, precision=precision, kernels=ours, notice=notice)
