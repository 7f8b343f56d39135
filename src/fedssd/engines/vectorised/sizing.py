"""How much goes at once: models, steps and samples, from what they take and what is free."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.net import Net
from fedssd.core.tree import Tree

LARGE_MODEL = 2_000_000  # parameters from which one model fills a device by itself
STATE_COPIES = 10  # weights, velocity, gradient, the new ones, memories, what comes back
CPU_BYTES = 4 << 30
CPU_CHUNK_BYTES = 64 << 20
CUDA_CHUNK_BYTES = 8 << 30
CPU_EVALUATION_BYTES = 256 << 20
EVALUATION_BLOCKS = (16384, 2048, 1024, 512, 256, 128, 64)  # test samples at once on an accelerator; few models: all
READ_AT_ONCE = 32  # samples of a client whose gradients are taken one by one


class ModelSize(NamedTuple):
    """What one model takes."""

    parameters: int
    state: int  # bytes of one copy of its weights
    sample: int  # bytes one sample leaves behind in a training pass
    stored: int  # bytes of one sample as the model sees it

    @property
    def gradient(self) -> int:
        """Bytes of one sample's own gradient, on its way and summed up."""
        return 3 * self.state + self.sample

    def model(self, batch: int) -> int:
        """Bytes of one model in training: its state, and activations with their gradients."""
        return STATE_COPIES * self.state + 3 * batch * self.sample


def footprint(net: Net, weights: Tree, x: Tensor) -> ModelSize:
    """Measure a model on a few samples: what autograd keeps for the backward pass."""
    kept = [0]

    def count(saved: Tensor) -> Tensor:
        kept[0] += saved.numel() * saved.element_size()
        return saved

    active = {**weights, "params": tree.map_tree(lambda p: p.detach().requires_grad_(True), weights["params"])}
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(count, lambda saved: saved):
        net.train(active, x)
    parameters = sum(leaf.numel() for leaf in tree.leaves(weights["params"]))
    stored = x[0].numel() * x.element_size()
    return ModelSize(parameters, tree.size_in_bytes(weights), kept[0] // len(x) + stored, stored)


def free_bytes(device: torch.device) -> int:
    """What may be taken; freed blocks that torch still holds count as free.

    Where results must repeat to the bit, sizes may not depend on what else the card holds just now.
    """
    if device.type != "cuda":
        return CPU_BYTES
    if torch.are_deterministic_algorithms_enabled():
        return torch.cuda.get_device_properties(device).total_memory // 2
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def default_width(size: ModelSize, batch: int, device: torch.device) -> int:
    """How many models go at once: one large one, or as many small ones as six tenths of the free memory take."""
    if size.parameters >= LARGE_MODEL:
        return 1
    return max(1, int(0.6 * free_bytes(device)) // size.model(batch))


def chunk_steps(size: ModelSize, width: int, asked: int, batch: int, device: torch.device) -> int:
    """How many steps of batches are made at once, when teachers answer for ``asked`` models at a time."""
    per_step = batch * (4 * size.stored * width + size.sample * asked)
    most = CPU_CHUNK_BYTES if device.type != "cuda" else min(CUDA_CHUNK_BYTES, free_bytes(device) // 8)
    return max(1, min(64, most // per_step))


def evaluation_block(size: ModelSize, width: int, device: torch.device, kernels: bool) -> int:
    """How many test samples go at once through ``width`` models.

    Kernels are compiled for a block's size, so it comes from a few, and hardly ever depends on the width.
    """
    if device.type != "cuda" and not kernels:
        return max(1, min(10_000, math.floor(CPU_EVALUATION_BYTES / (width * size.sample))))
    fit = free_bytes(device) // (2 * width * size.sample)  # without gradients an activation goes when it was read
    return next((block for block in EVALUATION_BLOCKS if block <= fit), EVALUATION_BLOCKS[-1])


def readers(size: ModelSize, device: torch.device) -> int:
    """How many clients at once may take per-sample gradients over their data."""
    return max(1, free_bytes(device) // (4 * READ_AT_ONCE * size.gradient))


def read_at_once(size: ModelSize, clients: int, device: torch.device) -> int:
    """Of how many samples so many clients take gradients at once; an accelerator wants more than a few."""
    if device.type != "cuda":
        return READ_AT_ONCE
    return max(READ_AT_ONCE, min(1024, free_bytes(device) // (8 * clients * size.gradient)))
