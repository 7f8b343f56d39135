"""From a recipe to everything a run needs: data, split, auxiliary set, model, method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Local, Method, Server, parts_of
from fedssd.core.net import Net, weights_of
from fedssd.core.plan import Schedule
from fedssd.core.solver import SGD
from fedssd.core.tree import Tree
from fedssd.data import auxiliary as auxiliary_set
from fedssd.data.augment import Pipeline, pipeline, resized
from fedssd.data.dataset import Dataset
from fedssd.data.partition import Partition, split
from fedssd.data.sources import load
from fedssd.engines.base import World
from fedssd.errors import UserError
from fedssd.experiment.recipe import Recipe
from fedssd.methods.registry import build_local, build_server, option_types, without_strength
from fedssd.models import build_model, default_model, initial_weights

Samples = tuple[Tensor, Tensor]
PAPER_IMAGES = ("cifar10", "cifar100", "tiny-imagenet")


@dataclass(frozen=True)
class Federation:
    """One run, ready to start."""

    recipe: Recipe  # nothing left on auto but engine and device
    dataset: Dataset
    partition: Partition
    auxiliary: Auxiliary | None
    pipeline: Pipeline
    module: nn.Module
    net: Net
    weights: Tree
    method: Method
    schedule: Schedule
    notes: tuple[str, ...]

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.recipe.precision == "fp64" else torch.float32

    def world(self, device: torch.device) -> World:
        """The shared data, on the device."""
        data = self.dataset
        return World(
            data.x_train.to(device),
            data.y_train.to(device),
            data.x_test.to(device),
            data.y_test.to(device),
            data.num_classes,
            self.pipeline,
            self.dtype,
        )


@dataclass(frozen=True)
class Brought:
    """What a caller brings in place of names: their own data, split, auxiliary set or model."""

    dataset: Dataset | None = None
    partition: Partition | None = None
    auxiliary: Samples | None = None
    module: nn.Module | None = None


def assemble(recipe: Recipe, brought: Brought | None = None) -> Federation:
    """Load, split and build; raises UserError with one line for whatever does not fit."""
    brought = brought or Brought()
    dataset = brought.dataset or load(recipe.data)
    recipe = _with_names(recipe, dataset)
    steps = pipeline(recipe.augment, dataset.name, dataset.shape)
    if steps.resize:
        dataset = resized(dataset, steps.resize)
    method = build_method(recipe)
    module = brought.module or build_model(recipe.model, dataset.shape, dataset.num_classes, recipe.head == "on")
    net = _net(module)
    recipe = replace(recipe, partial_batch=_partial_batch(recipe, net))
    dtype = torch.float64 if recipe.precision == "fp64" else torch.float32
    weights = weights_of(module) if brought.module else initial_weights(module, recipe.seed)
    partition, auxiliary, notes = _split(recipe, dataset, brought, steps, dtype, method.needs_auxiliary)
    schedule = Schedule(recipe.epochs, recipe.batch, recipe.partial_batch == "drop")
    _refuse_tiny_clients(partition, net)
    _try_model(net, weights, dataset, steps)
    return Federation(
        recipe,
        dataset,
        partition,
        auxiliary,
        steps,
        module,
        net,
        tree.map_tree(lambda w: w.to(dtype), weights),
        method,
        schedule,
        (*notes, *_warnings(method)),
    )


def build_method(recipe: Recipe) -> Method:
    """The method a recipe names, with its options."""
    local = build_local(recipe.method, recipe.options, recipe.data)
    solver = SGD(recipe.lr, recipe.momentum, recipe.weight_decay)
    return Method(local, build_server(recipe.server, recipe.options), solver)


def _with_names(recipe: Recipe, dataset: Dataset) -> Recipe:
    """The recipe with ``auto`` replaced and the options in force written out."""
    method = build_method(recipe)
    auto_augment = "moon" if dataset.name in PAPER_IMAGES else "none"
    auto_head = "on" if method.needs_head else "off"
    halves: list[Local | Server] = [*parts_of(method.local), method.server]
    in_force = {
        half.name: {name: getattr(half, name) for name in option_types(type(half))}
        for half in halves
        if option_types(type(half))
    }
    return replace(
        recipe,
        partition_seed=recipe.seed if recipe.partition_seed < 0 else recipe.partition_seed,
        augment=auto_augment if recipe.augment == "auto" else recipe.augment,
        model=default_model(dataset.name, dataset.shape) if recipe.model == "auto" else recipe.model,
        head=auto_head if recipe.head == "auto" else recipe.head,
        options=in_force,
    )


def _net(module: nn.Module) -> Net:
    try:
        return Net(module)
    except ValueError as error:
        raise UserError(str(error)) from None


def _partial_batch(recipe: Recipe, net: Net) -> str:
    if recipe.partial_batch == "keep" and net.has_batch_norm:
        raise UserError("partial_batch = keep does not go with batch norm: its statistics need full batches; use drop")
    if recipe.partial_batch == "auto":
        return "drop" if net.has_batch_norm else "keep"
    return recipe.partial_batch


def _split(
    recipe: Recipe, dataset: Dataset, brought: Brought, steps: Pipeline, dtype: torch.dtype, needed: bool
) -> tuple[Partition, Auxiliary | None, Sequence[str]]:
    labels, classes = dataset.y_train, dataset.num_classes
    partition = brought.partition or split(recipe.partition, labels, classes, recipe.clients, recipe.partition_seed)
    if brought.auxiliary is not None:
        x, y = brought.auxiliary
        return partition, Auxiliary(steps.test(x, dtype), y), ()
    if recipe.auxiliary == 0:
        if needed:
            raise UserError(f"method {recipe.method!r} needs an auxiliary set: set auxiliary above 0")
        return partition, None, ()
    rows, partition, notes = auxiliary_set.take(
        labels, partition, classes, recipe.auxiliary, recipe.auxiliary_mode, recipe.partition_seed
    )
    return partition, Auxiliary(steps.test(dataset.x_train[rows], dtype), labels[rows]), notes


def _refuse_tiny_clients(partition: Partition, net: Net) -> None:
    for client, rows in enumerate(partition.clients):
        if len(rows) == 0 or (net.has_batch_norm and len(rows) < 2):
            why = "batch norm needs two" if len(rows) else "every client needs one"
            raise UserError(
                f"client {client} holds {len(rows)} training samples and {why}: use fewer clients or another split"
            )


def _try_model(net: Net, weights: Tree, dataset: Dataset, steps: Pipeline) -> None:
    """Two samples through the model, so that a misfit is one line now and not a traceback in round 1."""
    x = steps.test(dataset.x_test[:2], torch.float32)
    try:
        out = net(tree.map_tree(lambda w: w.to(torch.float32), weights), x)
    except Exception as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"the model does not take samples of shape {list(x.shape[1:])}: {first}") from None
    expected = [len(x), dataset.num_classes]
    if list(out.logits.shape) != expected:
        raise UserError(
            f"the model must return logits of shape {expected} for {len(x)} samples, got {list(out.logits.shape)}"
        )


def _warnings(method: Method) -> list[str]:
    return [
        f"the strength of {name!r} is 0: it adds nothing to cross-entropy and is FedAvg"
        for name in without_strength(method.local)
    ]
