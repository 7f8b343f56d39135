"""Trees as bytes: a line of JSON with the tree's branches, then its tensors as safetensors. Nothing is unpickled."""

from __future__ import annotations

import json
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from fedssd.core import tree
from fedssd.core.tree import Tree

DEEPEST = 32  # branches within branches; no method comes near, and a tree of thousands would exhaust Python's stack


class UnreadableError(ValueError):
    """What came cannot be read as what was expected; the message says why, in half a sentence."""


def pack(content: Tree) -> bytes:
    """The tree as bytes. Its order and its empty branches are part of it; safetensors alone would lose both."""
    tensors = {path: leaf.detach().cpu().clone().contiguous() for path, leaf in tree.flatten(content).items()}
    return json.dumps(_branches(content)).encode() + b"\n" + save(tensors)


def unpack(content: bytes) -> Tree:
    """The inverse of :func:`pack`; raises UnreadableError for anything else."""
    head, _, body = content.partition(b"\n")
    try:
        branches, tensors = json.loads(head), load(body)
    except (ValueError, RecursionError, SafetensorError, KeyError, OverflowError, RuntimeError) as error:
        raise UnreadableError(f"it is no packed tree: {type(error).__name__}") from None
    if not isinstance(branches, dict):
        raise UnreadableError("it is no packed tree: its first line names no branches")
    found = _grown(branches, tensors, "", DEEPEST)
    if tensors:
        raise UnreadableError(f"it is no packed tree: {min(tensors)!r} belongs to no branch")
    return found


def _branches(content: Tree) -> Any:
    """The tree's names, with null in place of its tensors."""
    return {name: _branches(branch) for name, branch in content.items()} if isinstance(content, dict) else None


def _grown(branches: Any, tensors: dict[str, Any], path: str, deep: int) -> Tree:
    """The branches with their tensors, which are taken out of ``tensors``."""
    if deep < 0:
        raise UnreadableError(f"it is no packed tree: its branches are more than {DEEPEST} deep")
    if isinstance(branches, dict):
        return {name: _grown(b, tensors, f"{path}/{name}" if path else name, deep - 1) for name, b in branches.items()}
    if branches is not None or path not in tensors:
        raise UnreadableError(f"it is no packed tree: {path!r} has no tensor")
    return tensors.pop(path)
