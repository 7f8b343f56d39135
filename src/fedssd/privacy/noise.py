"""Updates of bounded norm, and Gaussian noise on them, all in double precision until the last step."""

from __future__ import annotations

import hashlib
import math
import os

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from fedssd.core import tree
from fedssd.core.tree import Tree

SEED = 32  # bytes
STEPS = 2.0**-53  # between uniform numbers


def fresh_seed(test_seed: int, *place: int) -> bytes:
    """Draw a seed from the system, or make it of a test's seed and a place such as (round, client)."""
    if test_seed < 0:
        return os.urandom(SEED)
    return hashlib.sha256(repr((test_seed, *place)).encode()).digest()


def standard_normal(seed: bytes, name: str, shape: torch.Size) -> Tensor:
    """Draw independent standard normal numbers in float64, for one leaf: SHAKE-256 of the seed, made normal."""
    stream = hashlib.shake_256(seed + name.encode()).digest(8 * math.prod(shape))
    uniform = ((np.frombuffer(stream, "<u8") >> np.uint64(11)).astype(np.float64) + 0.5) * STEPS
    return torch.from_numpy(ndtri(uniform)).reshape(shape)


def bounded(sent: Tree, got: Tree, clip: float) -> Tree:
    """Return Δ · min(1, C/‖Δ‖) of one client, Δ being how far it moved, in float64; zero if that is not finite."""
    change = tree.map_tree(lambda new, old: new.double() - old.double(), got, sent)
    norm = float(torch.linalg.vector_norm(tree.line(change)))
    if not math.isfinite(norm):
        return tree.zeros_like(change)
    return tree.map_tree(lambda leaf: leaf * min(1.0, clip / norm), change) if norm > 0 else change


def released(sent: Tree, got: Tree, clip: float, deviation: float, cohort: int, seed: bytes) -> Tree:
    """Return the next global weights: those sent, plus the sum of the bounded updates and noise, over the cohort.

    Args:
        sent: the weights that were sent
        got: what came back, each leaf [C, …] with C ≤ cohort; who is missing counts as zero
        clip: C, the norm that no update exceeds
        deviation: of the noise on the sum
        cohort: m, how many were asked, whoever replied
        seed: of the noise
    """
    replies = tree.leaves(got)[0].shape[0]
    total = tree.map_tree(lambda leaf: torch.zeros_like(leaf, dtype=torch.float64), sent)
    for place in range(replies):
        total = tree.map_tree(torch.add, total, bounded(sent, tree.row(got, place), clip))
    return _moved(sent, total, deviation, cohort, seed)


def noised(sent: Tree, got: Tree, clip: float, deviation: float, seed: bytes) -> Tree:
    """Return what one client sends: the weights sent, plus its bounded update and noise of this deviation."""
    return _moved(sent, bounded(sent, got, clip), deviation, 1, seed)


def _moved(sent: Tree, change: Tree, deviation: float, divisor: int, seed: bytes) -> Tree:
    """``sent + (change + noise) / divisor``, in the precision of ``sent``."""
    changes, found = tree.flatten(change), {}
    for name, leaf in tree.flatten(sent).items():
        noise = standard_normal(seed, name, leaf.shape).to(leaf.device)
        found[name] = (leaf.double() + (changes[name] + deviation * noise) / divisor).to(leaf.dtype)
    return tree.unflatten(found)
