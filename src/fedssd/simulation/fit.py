"""Whether a model, a server half and a split go with the data: tried before anything trains, refused in one line."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedssd.core import tree
from fedssd.core.contract import Server
from fedssd.core.net import Net
from fedssd.core.round import Rounds
from fedssd.core.tree import Tree
from fedssd.data.augment import Augmentation
from fedssd.data.dataset import Dataset, Samples
from fedssd.data.partition import Partition
from fedssd.errors import UserError

FLOATS = "whole numbers go to the model as float32 (it takes no int64)"


def refuse_tiny_clients(partition: Partition, rounds: Rounds, batch: int) -> None:
    """Every client needs a sample to train on, and where there is batch norm two."""
    if rounds.has_batch_norm and batch < 2:
        raise UserError(f"batch norm needs batches of at least two samples, got batch = {batch}")
    for client, rows in enumerate(partition.clients):
        if len(rows) == 0 or (rounds.has_batch_norm and len(rows) < 2):
            why = "batch norm needs two" if len(rows) else "every client needs one"
            raise UserError(
                f"client {client} holds {len(rows)} training samples and {why}: use fewer clients or another split"
            )


def in_numbers_taken(
    models: Sequence[tuple[Net, Tree]], dataset: Dataset, given: Samples | None, steps: Augmentation, dtype: torch.dtype
) -> tuple[Dataset, Samples | None, list[str]]:
    """Samples and a given auxiliary set: whole numbers as int64 where every model takes them so, else as floats.

    Tried on the least and the largest number of every position, so that an embedding that is too small is said now.
    """
    if not dataset.whole:
        return dataset, given, []
    parts = [dataset.x_train, dataset.x_test, *([given[0]] if given else [])]
    ends = torch.stack([end for x in parts for end in (x.amin(0), x.amax(0))])
    refused = _refusal(models, steps.test(ends.to(torch.int64), dtype))
    if not refused:
        return dataset.as_int64, given and (given[0].to(torch.int64), given[1]), []
    still = _refusal(models, steps.test(dataset.floats(ends), dtype))
    if still:
        raise UserError(
            f"the model does not take samples of shape {list(dataset.shape)}, whole numbers from {int(ends.min())} to "
            f"{int(ends.max())}: as int64, {refused}; as float32, {still}"
        )
    return dataset.as_float32, given and (dataset.floats(given[0]), given[1]), [FLOATS]


def _refusal(models: Sequence[tuple[Net, Tree]], x: Tensor) -> str:
    """What a model has against such samples, in its first line; empty where all take them."""
    try:
        for net, weights in models:
            net(weights, x)
    except Exception as error:  # whatever a model raises, in whatever words
        return _first_line(error)
    return ""


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def try_model(net: Net, weights: Tree, dataset: Dataset, steps: Augmentation) -> None:
    """Two samples through the model, so that a misfit is one line now and not a traceback in round 1."""
    x = steps.test(dataset.x_test[:2], torch.float32)
    try:
        out = net(tree.cast(weights, torch.float32), x)
    except Exception as error:
        raise UserError(f"the model does not take samples of shape {list(x.shape[1:])}: {_first_line(error)}") from None
    expected = [len(x), dataset.num_classes]
    if list(out.logits.shape) != expected:
        raise UserError(
            f"the model must return logits of shape {expected} for {len(x)} samples, got {list(out.logits.shape)}"
        )


def try_server(server: Server, net: Net, weights: Tree, dataset: Dataset, steps: Augmentation) -> None:
    """Whether the server half can combine models like this one."""
    try:
        server.check(net, tree.cast(weights, torch.float32), steps.test(dataset.x_test[:2], torch.float32))
    except ValueError as error:
        raise UserError(str(error)) from None


def try_training(net: Net, weights: Tree, dataset: Dataset, steps: Augmentation) -> bool:
    """Two training passes of a user's model: the same both times, and whether a batch of models could run."""
    x = steps.test(dataset.x_train[:4], torch.float32)
    weights = tree.cast(weights, torch.float32)
    (first, _), (second, _) = net.train(weights, x), net.train(weights, x)
    if not torch.equal(first.logits, second.logits):
        raise UserError("the model gives two answers to one batch in training mode: it draws its own random numbers")
    twice = tree.map_tree(lambda w: torch.stack([w, w]), weights)
    try:
        torch.func.vmap(lambda w: net.train(w, x)[0].logits)(twice)
    except Exception:  # whatever vmap cannot do, in whatever words
        return False
    return True
