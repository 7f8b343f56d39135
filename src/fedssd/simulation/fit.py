"""Whether a model, a server half and a split go with the data: tried before anything trains, refused in one line."""

from __future__ import annotations

import torch

from fedssd.core import tree
from fedssd.core.contract import Server
from fedssd.core.mixed import Mixed
from fedssd.core.net import Net
from fedssd.core.tree import Tree
from fedssd.data.augment import Pipeline
from fedssd.data.dataset import Dataset
from fedssd.data.partition import Partition
from fedssd.errors import UserError


def refuse_tiny_clients(partition: Partition, net: Net | Mixed, batch: int) -> None:
    """Every client needs a sample to train on, and where there is batch norm two."""
    if net.has_batch_norm and batch < 2:
        raise UserError(f"batch norm needs batches of at least two samples, got batch = {batch}")
    for client, rows in enumerate(partition.clients):
        if len(rows) == 0 or (net.has_batch_norm and len(rows) < 2):
            why = "batch norm needs two" if len(rows) else "every client needs one"
            raise UserError(
                f"client {client} holds {len(rows)} training samples and {why}: use fewer clients or another split"
            )


def try_model(net: Net, weights: Tree, dataset: Dataset, steps: Pipeline) -> None:
    """Two samples through the model, so that a misfit is one line now and not a traceback in round 1."""
    x = steps.test(dataset.x_test[:2], torch.float32)
    try:
        out = net(tree.cast(weights, torch.float32), x)
    except Exception as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"the model does not take samples of shape {list(x.shape[1:])}: {first}") from None
    expected = [len(x), dataset.num_classes]
    if list(out.logits.shape) != expected:
        raise UserError(
            f"the model must return logits of shape {expected} for {len(x)} samples, got {list(out.logits.shape)}"
        )


def try_server(server: Server, net: Net, weights: Tree, dataset: Dataset, steps: Pipeline) -> None:
    """Whether the server half can combine models like this one."""
    try:
        server.check(net, tree.cast(weights, torch.float32), steps.test(dataset.x_test[:2], torch.float32))
    except ValueError as error:
        raise UserError(str(error)) from None


def try_training(net: Net, weights: Tree, dataset: Dataset, steps: Pipeline) -> bool:
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
