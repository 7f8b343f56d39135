"""A recorded run once more, with the theorem's constants measured at every round."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssd.core import tree
from fedssd.core.engine import Engine, World
from fedssd.core.net import Net
from fedssd.core.tree import Tree
from fedssd.engines import build_engine, pick_device, pick_engine
from fedssd.errors import UserError
from fedssd.recipe import Recipe, load_recipe
from fedssd.simulation.events import Event, Listener, ignore
from fedssd.simulation.receive import Received
from fedssd.simulation.result import Round
from fedssd.simulation.setup import Federation, assemble
from fedssd.simulation.simulation import Run, close_job, open_job, start
from studies.paper.theory.measure import Objective, RoundMeasure, measure_gradients, measure_participant

CHUNK = 2048  # samples that go through the model at once
PRECISION = torch.float64  # of what is measured, whatever the run's


@dataclass(frozen=True)
class Replay:
    """What was measured, and of which run."""

    federation: Federation
    cohort: int
    rounds: list[RoundMeasure]


def replay(folder: Path, rounds: int | None = None, listen: Listener = ignore) -> Replay:
    """Run the recipe in ``folder`` again, at most ``rounds`` rounds of it, and measure every one."""
    recipe = recorded_recipe(folder)
    if rounds is not None:
        recipe = replace(recipe, rounds=min(rounds, recipe.rounds))
    federation = assemble(recipe)
    if not federation.method.local.shares_weights or len(federation.rounds.nets) > 1:
        raise UserError(f"the theorem speaks of one global model, and the run in {folder} has none: take another run")
    measured = []
    for done, one in enumerate(_rounds(federation, _recorded_engine(folder)), 1):
        measured.append(one)
        listen(Event(f"{recipe.method} seed {recipe.seed}", done, recipe.rounds, Round(done, 0, 0)))
    return Replay(federation, federation.cohort, measured)


def recorded_recipe(folder: Path) -> Recipe:
    """The recipe a run was made from."""
    file = folder / "recipe.toml"
    if not file.is_file():
        raise UserError(
            f"expected a run's folder with a recipe.toml in it, got {folder}: name one that fedssd run made"
        )
    return load_recipe(file, {})


def _recorded_engine(folder: Path) -> str | None:
    """The engine that made the run; both give the same numbers only up to rounding."""
    record = folder / "rounds.jsonl"
    if not record.is_file():
        return None
    with record.open(encoding="utf-8") as lines:
        try:
            engine = json.loads(next(lines, "{}")).get("engine")
        except ValueError:
            raise UserError(f"{record} does not start with a line of JSON: is the run's folder whole?") from None
    return engine if isinstance(engine, str) else None


def _rounds(federation: Federation, recorded: str | None) -> Iterator[RoundMeasure]:
    device = pick_device(federation.recipe.device)
    world = federation.world(device)
    engine = _engine(federation, world, recorded)
    run = start(federation, device)
    for _ in range(federation.recipe.rounds):
        weights = run.state.weights
        yield _measure(run, world, weights, _train(run, engine))


def _engine(federation: Federation, world: World, recorded: str | None) -> Engine:
    recipe, sample = federation.recipe, federation.dataset.x_train[0].numel()
    wanted = recorded or recipe.engine
    name, _ = pick_engine(wanted, world.device, federation.weights, sample, federation.cohort, 1)
    parts = world, federation.schedule, recipe.precision, recipe.width
    return federation.rounds.engine(lambda net: build_engine(name, net, *parts, lambda text: None))


def _train(run: Run, engine: Engine) -> Received:
    """One round of the run, which moves on."""
    job = open_job(run)
    (trained,) = engine.train([job])
    closed = close_job(run, job, trained)
    run.move_on(closed)
    if not closed.received.clients:
        raise UserError(f"nobody's update was accepted in round {run.state.round}, so there is nothing to measure")
    return closed.received


def _measure(run: Run, world: World, weights: Tree, received: Received) -> RoundMeasure:
    """Buffers stay those of the model sent down, except in the loss after the round."""
    (net,) = run.federation.rounds.nets.values()
    sent, now = flat(weights), run.state.weights
    local = [flat(tree.row(received.trained.local, place)) for place in range(len(received.clients))]
    objectives = objectives_of(net, weights, world, run.rows)
    loss = global_loss(objectives, sent)
    after = global_loss(objectives_of(net, now, world, run.rows), flat(now))
    if not all(bool(torch.isfinite(vector).all()) for vector in (*local, torch.tensor([loss, after]))):
        raise UserError(f"a model or its loss is no finite number in round {run.state.round}: nothing can be measured")
    gradient, dissimilarity = measure_gradients(objectives, sent)
    participants = [
        measure_participant(client, objectives[client], sent, trained)
        for client, trained in zip(received.clients, local, strict=True)
    ]
    return RoundMeasure(run.state.round, gradient, dissimilarity, tuple(participants), loss, loss - after)


def global_loss(objectives: list[Objective], weights: Tensor) -> float:
    """L(w) = Σ p_i L_i(w)."""
    return sum(objective.share * objective.loss(weights) for objective in objectives)


def flat(weights: Tree) -> Tensor:
    """A model's parameters as one vector."""
    return torch.cat([leaf.detach().reshape(-1) for leaf in weights["params"].values()]).to(PRECISION)


def objectives_of(net: Net, weights: Tree, world: World, rows: list[Tensor]) -> list[Objective]:
    """Every client's cross-entropy as a function of a flat vector; ``weights`` lends shapes and buffers."""
    total = sum(len(mine) for mine in rows)
    return [_objective(net, weights, world, mine, len(mine) / total) for mine in rows]


def _objective(net: Net, weights: Tree, world: World, rows: Tensor, share: float) -> Objective:
    chunks = list(torch.split(rows, CHUNK))
    logits = [partial(_logits, net, weights, world, chunk) for chunk in chunks]
    losses = [partial(_loss, net, weights, world, chunk, len(rows)) for chunk in chunks]
    return Objective(share, losses, logits)


def _logits(net: Net, like: Tree, world: World, rows: Tensor, vector: Tensor) -> Tensor:
    """[n, K], without augmentation and in evaluation mode."""
    buffers = tree.map_tree(lambda leaf: leaf.to(PRECISION), like["buffers"])
    x = world.pipeline.test(world.x[rows], PRECISION)
    return net({"params": _shaped(vector, like["params"]), "buffers": buffers}, x).logits


def _loss(net: Net, like: Tree, world: World, rows: Tensor, count: int, vector: Tensor) -> Tensor:
    logits = _logits(net, like, world, rows, vector)
    return F.cross_entropy(logits, world.y[rows], reduction="sum") / count


def _shaped(vector: Tensor, like: dict[str, Tensor]) -> dict[str, Tensor]:
    parts = torch.split(vector, [leaf.numel() for leaf in like.values()])
    return {name: part.view(leaf.shape) for (name, leaf), part in zip(like.items(), parts, strict=True)}
