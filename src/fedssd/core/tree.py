"""Trees of tensors: a tensor, or a dictionary of trees. Weights, messages and memories are all trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

Tree: TypeAlias = Any  # Tensor | dict[str, "Tree"]; a recursive alias would make every lookup a cast
Given = ParamSpec("Given")
Found = TypeVar("Found")


def map_tree(function: Callable[..., Any], *trees: Tree) -> Tree:
    """Apply ``function`` leaf by leaf to trees of one shape."""
    if isinstance(trees[0], dict):
        return {name: map_tree(function, *(tree[name] for tree in trees)) for name in trees[0]}
    return function(*trees)


def leaves(tree: Tree) -> list[Tensor]:
    """Every tensor of the tree, in the order of its keys."""
    return list(_walk(tree))


def _walk(tree: Tree) -> Iterator[Tensor]:
    if isinstance(tree, dict):
        for branch in tree.values():
            yield from _walk(branch)
    else:
        yield tree


def line(tree: Tree) -> Tensor:
    """All numbers of a tree behind one another: one long operation costs less than many short ones."""
    found = [leaf.flatten() for leaf in leaves(tree)]
    return torch.cat(found) if found else torch.zeros(0)


def subtract(left: Tree, right: Tree) -> Tree:
    """``left − right``, leaf by leaf."""
    return map_tree(torch.sub, left, right)


def zeros_like(tree: Tree) -> Tree:
    """A tree of zeros with the shapes of ``tree``."""
    return map_tree(torch.zeros_like, tree)


def cast(tree: Tree, dtype: torch.dtype) -> Tree:
    """Numbers in this precision; tables of integers and masks stay as they are."""
    return map_tree(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, tree)


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of one shape become one tree whose leaves carry them along a new first axis."""
    return map_tree(lambda *same: torch.stack(same), *trees)


def row(stacked: Tree, index: int) -> Tree:
    """Entry ``index`` of a stacked tree."""
    return map_tree(lambda leaf: leaf[index], stacked)


def weighted_mean(weights: Tensor, stacked: Tree) -> Tree:
    """Σ_c weights[c] · stacked[c], leaf by leaf; the weights are expected to sum to one.

    Tables of integers and masks, which no client changes, have no mean: the first stands for all.
    """

    def mean(leaf: Tensor) -> Tensor:
        return torch.tensordot(weights.to(leaf.dtype), leaf, dims=1) if leaf.is_floating_point() else leaf[0]

    return map_tree(mean, stacked)


def flatten(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """``{'a': {'b': t}}`` becomes ``{'a/b': t}``: the form that goes into files and messages."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    flat: dict[str, Tensor] = {}
    for name, branch in tree.items():
        flat.update(flatten(branch, f"{prefix}/{name}" if prefix else name))
    return flat


def unflatten(flat: dict[str, Tensor]) -> Tree:
    """The inverse of :func:`flatten` (empty branches do not survive the trip)."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, last = path.split("/")
        branch = tree
        for name in parents:
            branch = branch.setdefault(name, {})
        branch[last] = leaf
    return tree


def size_in_bytes(tree: Tree) -> int:
    """How many bytes the tree takes on the wire."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def overridable(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Let an active :class:`torch.overrides.TorchFunctionMode` see calls of this function, as it sees torch's own.

    So an engine may put a faster equal in its place.
    """

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        if has_torch_function(args):
            found: Found = handle_torch_function(call, args, *args, **kwargs)
            return found
        return function(*args, **kwargs)

    return call
