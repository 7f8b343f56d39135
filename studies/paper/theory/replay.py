"""A recorded run once more, with the theorem's constants measured at every round."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssd import Event, Recipe, Simulation, UserError
from fedssd.core import tree
from fedssd.core.net import Net
from fedssd.core.tree import Tree
from fedssd.data.augment import pipeline, resized
from fedssd.data.auxiliary import take
from fedssd.data.partition import split
from fedssd.data.sources import load
from studies.paper.theory.measure import Objective, RoundMeasure, measure_gradients, measure_participant

CHUNK = 2048  # samples that go through the model at once
PRECISION = torch.float64  # of what is measured, whatever the run's


@dataclass(frozen=True)
class Replay:
    """What was measured, and of which run."""

    recipe: Recipe
    cohort: int
    rounds: list[RoundMeasure]


@dataclass(frozen=True)
class Samples:
    """Every client's training samples, as evaluation sees them."""

    x: Tensor
    y: Tensor
    clients: list[Tensor]  # rows of each


def replay(folder: Path, rounds: int | None, listen: Callable[[Event], None]) -> Replay:
    """Run the recipe in ``folder`` again, at most ``rounds`` rounds of it, and measure every one."""
    recipe = recorded_recipe(folder)
    recipe = recipe.replace(rounds=min(rounds or recipe.rounds, recipe.rounds), engine=_engine(folder) or recipe.engine)
    simulation, samples = Simulation(recipe, listen=listen), samples_of(recipe)
    if "," in recipe.model or not shares_weights(simulation):
        raise UserError(f"the theorem speaks of one global model, and the run in {folder} has none: take another run")
    net = Net(simulation.result().model())
    weights, measured = simulation.weights, list[RoundMeasure]()
    for one in simulation:
        if simulation.trained is None or one.dropped:
            raise UserError(
                f"updates were left out in round {one.number}: the theorem is about rounds with all of them"
            )
        local = simulation.trained.local
        trained = {client: flat(tree.row(local, place)) for place, client in enumerate(one.clients)}
        measured.append(_measure(one.number, net, samples, weights, simulation.weights, trained))
        weights = simulation.weights
        listen(Event(recipe.method, one.number, recipe.rounds, one))
    return Replay(recipe, max(len(one.participants) for one in measured), measured)


def shares_weights(simulation: Simulation) -> bool:
    """Whether clients hold one model: where they do not, the run's weights are every client's, stacked."""
    own = dict(simulation.result().model().named_parameters())
    return all(leaf.shape == own[name].shape for name, leaf in simulation.weights["params"].items())


def recorded_recipe(folder: Path) -> Recipe:
    """The recipe a run was made from."""
    if not (folder / "recipe.toml").is_file():
        raise UserError(
            f"expected a run's folder with a recipe.toml in it, got {folder}: name one that fedssd run made"
        )
    return Recipe.load(folder)


def _engine(folder: Path) -> str | None:
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


def samples_of(recipe: Recipe) -> Samples:
    """The data of a recipe, dealt as its run deals them."""
    recipe = recipe.resolved()
    data = load(recipe.data, recipe.label)
    steps = pipeline(recipe.augment, data.name, data.shape)
    data = resized(data, steps.resize) if steps.resize else data
    whole = split(recipe.partition, data.y_train, data.num_classes, recipe.clients, recipe.split_seed)
    held = recipe.auxiliary, recipe.auxiliary_mode, recipe.split_seed
    _, partition, _ = take(data.y_train, whole, data.num_classes, *held)
    return Samples(steps.test(data.x_train, PRECISION), data.y_train, list(partition.clients))


def _measure(
    number: int, net: Net, samples: Samples, sent: Tree, after: Tree, trained: dict[int, Tensor]
) -> RoundMeasure:
    """Buffers stay those of the model sent down, except in the loss after the round."""
    objectives, before = objectives_of(net, sent, samples), flat(sent)
    loss, then = global_loss(objectives, before), global_loss(objectives_of(net, after, samples), flat(after))
    if not all(bool(torch.isfinite(vector).all()) for vector in (*trained.values(), torch.tensor([loss, then]))):
        raise UserError(f"a model or its loss is no finite number in round {number}: nothing can be measured")
    gradient, dissimilarity = measure_gradients(objectives, before)
    participants = [measure_participant(one, objectives[one], before, end) for one, end in trained.items()]
    return RoundMeasure(number, gradient, dissimilarity, tuple(participants), loss, loss - then)


def global_loss(objectives: list[Objective], weights: Tensor) -> float:
    """L(w) = Σ p_i L_i(w)."""
    return sum(objective.share * objective.loss(weights) for objective in objectives)


def flat(weights: Tree) -> Tensor:
    """A model's parameters as one vector."""
    return torch.cat([leaf.detach().reshape(-1) for leaf in weights["params"].values()]).to("cpu", PRECISION)


def objectives_of(net: Net, weights: Tree, samples: Samples) -> list[Objective]:
    """Every client's cross-entropy as a function of a flat vector; ``weights`` lends shapes and buffers."""
    total = sum(len(mine) for mine in samples.clients)
    return [_objective(net, weights, samples, mine, len(mine) / total) for mine in samples.clients]


def _objective(net: Net, weights: Tree, samples: Samples, rows: Tensor, share: float) -> Objective:
    chunks = list(torch.split(rows, CHUNK))
    logits = [partial(_logits, net, weights, samples, chunk) for chunk in chunks]
    losses = [partial(_loss, net, weights, samples, chunk, len(rows)) for chunk in chunks]
    return Objective(share, losses, logits)


def _logits(net: Net, like: Tree, samples: Samples, rows: Tensor, vector: Tensor) -> Tensor:
    """[n, K], without augmentation and in evaluation mode."""
    buffers = tree.map_tree(lambda leaf: leaf.to("cpu", PRECISION), like["buffers"])
    return net({"params": _shaped(vector, like["params"]), "buffers": buffers}, samples.x[rows]).logits


def _loss(net: Net, like: Tree, samples: Samples, rows: Tensor, count: int, vector: Tensor) -> Tensor:
    logits = _logits(net, like, samples, rows, vector)
    return F.cross_entropy(logits, samples.y[rows], reduction="sum") / count


def _shaped(vector: Tensor, like: dict[str, Tensor]) -> dict[str, Tensor]:
    parts = torch.split(vector, [leaf.numel() for leaf in like.values()])
    return {name: part.view(leaf.shape) for (name, leaf), part in zip(like.items(), parts, strict=True)}
