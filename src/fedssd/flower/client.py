"""A node's app: one client of a federation, with samples that never leave its machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch

from fedssd.core import tree
from fedssd.core.engine import Job, World
from fedssd.core.net import weights_of
from fedssd.core.tree import Tree
from fedssd.data.dataset import Samples
from fedssd.engines import ReferenceEngine, pick_device
from fedssd.errors import UserError
from fedssd.flower.library import ClientApp, Context, Message, RecordDict
from fedssd.flower.memory import InContext, InFolder, Keeper, NodeMemory
from fedssd.flower.messages import (
    Greeting,
    Kind,
    Order,
    Reply,
    answer,
    introduce,
    read_kind,
    read_order,
)
from fedssd.flower.samples import fitted, read_node, resized, shares
from fedssd.flower.settings import recipe_of
from fedssd.simulation.machine import fitting_threads, repeatable, using_threads
from fedssd.simulation.private import blank, refuse_other_terms, send
from fedssd.simulation.setup import Setup, set_up
from fedssd.simulation.simulation import method_at

Loader = Callable[[Path], Samples]  # a data path to samples as stored and their class numbers


@dataclass(frozen=True)
class Trainer:
    """One client, ready to train: its model, its method and its samples, built once in a process."""

    client: int
    model: str
    setup: Setup
    engine: ReferenceEngine

    @property
    def samples(self) -> int:
        return len(self.engine.world.y)

    @cached_property
    def form(self) -> Tree:
        """Names, shapes and dtypes of the model's weights; drawing the first ones takes seconds with a large model."""
        module, dtype = self.setup.modules[self.model], self.setup.dtype
        return tree.map_tree(lambda w: w.to(dtype) if w.is_floating_point() else w, weights_of(module))

    def own_weights(self) -> Tree:
        """The model this client starts from where none is sent; it follows from the seed."""
        return tree.map_tree(lambda leaf: leaf.to(self.engine.world.device), self.setup.first_models()[self.model])

    def train(self, order: Order, keeper: Keeper) -> Reply:
        """One round: from the memory of the last accepted round to a reply, with the new memory kept beside it."""
        world, recipe = self.engine.world, self.setup.recipe
        sent = tree.map_tree(lambda leaf: leaf.to(world.device), order.sent)
        method = method_at(self.setup.method, recipe, order.round - 1)
        kept = NodeMemory(keeper, order.run)
        start = sent if "weights" in sent else {"weights": self.own_weights(), **sent}
        memory, fresh = kept.at(order.accepted, method.local.memory(start))
        memory = tree.map_tree(lambda leaf: leaf.to(world.device), memory)
        rows = torch.arange(self.samples, device=world.device)
        public = None if order.public is None else order.public.to(world.device)
        job = Job(method, sent, recipe.seed, order.round - 1, [self.client], [rows], {}, public)
        threads = fitting_threads(recipe.batch * world.x[0].numel())
        begun = time.perf_counter()
        with repeatable(recipe.deterministic), using_threads(threads):
            done = self.engine.train_client(job, self.client, rows, memory)
        seconds = time.perf_counter() - begun
        kept.keep(order.accepted, memory, order.round, done.memory)
        got, figures, terms = done.got, done.figures, self.setup.terms
        if terms is not None and terms.mode == "local":
            got = send(terms, sent["weights"], got, order.round - 1, self.client)
            figures, seconds = blank(figures), 0.0
        return Reply(self.client, order.round, fresh, got, done.report, self.samples, figures, seconds)


def prepare(client: int, samples: Samples, setup: Setup, classes: int) -> Trainer:
    """A client with these samples."""
    device = pick_device(setup.recipe.device)
    x, y = (part.to(device) for part in resized(samples, setup.pipeline.resize))
    if setup.rounds.has_batch_norm and len(y) < 2:
        raise UserError(f"client {client} holds {len(y)} training samples and batch norm needs two")
    world = World(x, y, x[:0], y[:0], classes, setup.pipeline, setup.dtype)
    model = setup.rounds.model_of(client)
    return Trainer(client, model, setup, ReferenceEngine(setup.rounds.nets[model], world, setup.schedule))


@cache
def trainer(recipe: Path, overrides: str, client: int, path: str, load_samples: Loader | None, kind: Kind) -> Trainer:
    """The client of a node, made once in a process; no part of the app, which Flower's simulation pickles."""
    chosen = recipe_of(recipe, overrides)
    setup = set_up(chosen, kind.shape, len(kind.classes))
    if overrides and recipe_of(recipe).privacy_mode == "local":
        refuse_other_terms(set_up(recipe_of(recipe), kind.shape, len(kind.classes)), setup)
    if not path:
        samples = fitted(*shares(chosen).of_client(client), kind, f"the recipe's {chosen.data}")
    elif load_samples is None:
        samples = read_node(Path(path), kind, chosen.label)
    else:
        samples = fitted(*load_samples(Path(path)), kind, path)
    return prepare(client, samples, setup, len(kind.classes))


def client_app(recipe: Path, load_samples: Loader | None = None, mods: Sequence[Any] = ()) -> ClientApp:
    """The Flower ClientApp that runs a recipe's method on this node's samples.

    ``load_samples`` reads the node's ``data-path`` in place of our own reader; ``mods`` are Flower's, for example its
    ``fixedclipping_mod`` or ``LocalDpMod``.
    """
    app = ClientApp()

    def ready(message: Message, context: Context) -> Trainer:
        config, overrides = context.node_config, str(context.run_config.get("set", ""))
        client = _client(config)
        path = _data_path(config, 0 if load_samples else recipe_of(recipe, overrides).clients)
        return trainer(recipe, overrides, client, path, load_samples, read_kind(message.content))

    @app.query()
    def greet(message: Message, context: Context) -> Message:
        """Which client this node is, once its samples are known to fit."""
        found = ready(message, context)
        return Message(introduce(Greeting(found.client, found.samples)), reply_to=message)

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        """One round of local training."""
        found = ready(message, context)
        content: RecordDict = answer(found.train(read_order(message.content, found.form), keeper_of(context)))
        return Message(content, reply_to=message)

    return app


def keeper_of(context: Context) -> Keeper:
    """Where this node's memory is kept: ``state-path`` if it has one, else Flower's state of the node."""
    folder = context.node_config.get("state-path")
    own = f"client-{_client(context.node_config)}"  # nodes of one machine may share a state-path
    return InFolder(Path(str(folder)) / own) if folder else InContext(context)


def _client(config: Any) -> int:
    client = config.get("partition-id")
    if not isinstance(client, int) or isinstance(client, bool):
        raise UserError(f"--node-config needs partition-id, the client's number from 0; got {client!r}")
    return client


def _data_path(config: Any, clients: int) -> str:
    """Where the node's samples are; empty for a node of Flower's simulation, which holds its share of the recipe's.

    Such a node has num-partitions, which must be ``clients``; 0 where a share would not do.
    """
    path, partitions = config.get("data-path"), config.get("num-partitions")
    if isinstance(path, str) and path:
        return path
    if path is None and partitions is not None and clients:
        if partitions != clients:
            raise UserError(f"the recipe has {clients} clients, and Flower simulates {partitions} nodes")
        return ""
    raise UserError(f"--node-config needs data-path, where this node's samples are; got {path!r}")
