"""From a recipe to everything a run needs: data, split, auxiliary set, model, method."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import nn

from fedssd.core import tree
from fedssd.core.contract import Auxiliary, Method, parts_of, unmixable
from fedssd.core.engine import World
from fedssd.core.mixed import MixedRounds
from fedssd.core.net import Net, weights_of
from fedssd.core.plan import Schedule
from fedssd.core.round import Rounds
from fedssd.core.tree import Tree
from fedssd.data import auxiliary as auxiliary_set
from fedssd.data.arrays import OWN
from fedssd.data.augment import Augmentation, pipeline, resized
from fedssd.data.dataset import Dataset, Samples
from fedssd.data.partition import Partition, split
from fedssd.data.sources import load
from fedssd.errors import UserError
from fedssd.methods.custom import source_of
from fedssd.methods.dry_run import SampleForm, try_local
from fedssd.methods.registry import without_strength
from fedssd.models import build_model, initial_weights
from fedssd.privacy.terms import Terms
from fedssd.recipe import Recipe
from fedssd.recipe.resolve import build_method, model_names, with_names
from fedssd.simulation.fit import in_numbers_taken, refuse_tiny_clients, try_model, try_server, try_training

NOT_EVALUATED = "privacy: the clients' own models are not evaluated, as their figures would tell of single clients"


@dataclass(frozen=True)
class Setup:
    """What a recipe and the kind of samples determine, without any sample: the same on every machine that builds it."""

    recipe: Recipe  # nothing left on auto but engine and device
    pipeline: Augmentation
    modules: dict[str, nn.Module]  # by their names; mostly there is one
    rounds: Rounds
    method: Method
    schedule: Schedule
    terms: Terms | None  # of differential privacy

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.recipe.precision == "fp64" else torch.float32

    @property
    def module(self) -> nn.Module:
        """The model; where several differ, all of them by name in one."""
        return next(iter(self.modules.values())) if len(self.modules) == 1 else nn.ModuleDict(self.modules)

    def first_models(self) -> dict[str, Tree]:
        """The weights that every model starts from, by its name; they follow from the seed."""
        seed = self.recipe.seed
        return {name: tree.cast(initial_weights(one, seed), self.dtype) for name, one in self.modules.items()}


@dataclass(frozen=True)
class Federation(Setup):
    """One run, ready to start: what the recipe determines, and the samples."""

    dataset: Dataset
    partition: Partition
    auxiliary: Auxiliary | None
    models: dict[str, Tree]  # the weights that every model starts from, by its name
    batchable: bool  # whether the vectorised engine can run the model: under vmap
    notes: tuple[str, ...]

    @property
    def cohort(self) -> int:
        """How many clients take part in a round."""
        return cohort_of(self.recipe, len(self.partition.clients))

    @property
    def weights(self) -> Tree:
        """What the first round starts from; by model where models differ."""
        return self.rounds.together(self.models)

    @property
    def parameters(self) -> dict[str, int]:
        """How many parameters each model has."""
        return {name: sum(leaf.numel() for leaf in tree.leaves(own["params"])) for name, own in self.models.items()}

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
    elsewhere: bool = False  # the clients' samples are on machines of their own: the partition only counts the clients


def set_up(recipe: Recipe, shape: tuple[int, ...], classes: int, brought: Brought | None = None) -> Setup:
    """Build what needs no sample: names in place of ``auto``, augmentation, models, method and schedule."""
    brought = brought or Brought()
    recipe = _with_names(recipe, shape, brought)
    steps = pipeline(recipe.augment, recipe.data, shape)
    shape = (shape[0], steps.resize, steps.resize) if steps.resize else shape
    method = build_method(recipe)
    modules = _modules(recipe, shape, classes, brought)
    rounds = _rounds(recipe, {name: _net(module) for name, module in modules.items()}, method)
    recipe = replace(recipe, partial_batch=_partial_batch(recipe, rounds))
    schedule = Schedule(recipe.epochs, recipe.batch, recipe.partial_batch == "drop")
    setup = Setup(recipe, steps, modules, rounds, method, schedule, _terms(recipe, method, rounds, shape))
    for part in parts_of(method.local):
        if source_of(type(part)) is not None:  # a user's own
            try_local(part, SampleForm(shape, classes, setup.dtype))
    return setup


def _terms(recipe: Recipe, method: Method, rounds: Rounds, shape: tuple[int, ...]) -> Terms | None:
    """What the recipe promises, if it promises privacy and the method can keep it."""
    if not recipe.privacy_mode:
        return None
    from fedssd.simulation.private import refuse_unbounded, terms_of

    refuse_unbounded(method, rounds, SampleForm(shape, 2, torch.float32))
    return terms_of(recipe, cohort_of(recipe, recipe.clients))


def cohort_of(recipe: Recipe, clients: int) -> int:
    """How many of so many clients take part in a round: C·N to the nearest, halves up, at least one."""
    return max(1, int(recipe.participation * clients + 0.5))


def assemble(recipe: Recipe, brought: Brought | None = None) -> Federation:
    """Load, split and build; raises UserError with one line for whatever does not fit."""
    brought = brought or Brought()
    private = [NOT_EVALUATED] if recipe.privacy_mode and recipe.evaluate_local else []
    dataset = brought.dataset or load(recipe.data, recipe.label)
    setup = set_up(recipe, dataset.shape, dataset.num_classes, brought)
    recipe, steps, nets, method = setup.recipe, setup.pipeline, setup.rounds.nets, setup.method
    if steps.resize:
        dataset = resized(dataset, steps.resize)
    own_module, dtype = brought.module, setup.dtype
    models = setup.first_models() if own_module is None else {recipe.model: tree.cast(weights_of(own_module), dtype)}
    dataset, given, numbers = in_numbers_taken(
        [(nets[name], own) for name, own in models.items()], dataset, brought.auxiliary, steps, dtype
    )
    brought = replace(brought, auxiliary=given)
    partition, auxiliary, notes = _split(recipe, dataset, brought, steps, dtype, method)
    if not brought.elsewhere:
        refuse_tiny_clients(partition, setup.rounds, recipe.batch)
    for name, own in models.items():
        try_model(nets[name], own, dataset, steps)
        try_server(method.server, nets[name], own, dataset, steps)
    batchable = own_module is None or try_training(nets[recipe.model], models[recipe.model], dataset, steps)
    remarks = (*numbers, *notes, *_warnings(method, recipe), *private)
    return Federation(**vars(setup), dataset=dataset, partition=partition, auxiliary=auxiliary, models=models,
                      batchable=batchable, notes=remarks)  # fmt: skip


def load_for(recipe: Recipe) -> Dataset:
    """The recipe's dataset in the numbers its model takes."""
    dataset = load(recipe.data, recipe.label)
    if not dataset.whole:
        return dataset
    setup = set_up(recipe, dataset.shape, dataset.num_classes)
    models = [(setup.rounds.nets[name], own) for name, own in setup.first_models().items()]
    return in_numbers_taken(models, dataset, None, setup.pipeline, setup.dtype)[0]


def assemble_all(recipes: Sequence[Recipe], brought: Brought | None = None) -> list[Federation]:
    """The same for recipes on one dataset, which is loaded once and shared: a copy for each would fill the memory."""
    brought = brought or Brought()
    brought = replace(brought, dataset=brought.dataset or load(recipes[0].data, recipes[0].label))
    return [assemble(recipe, brought) for recipe in recipes]


def try_split(recipe: Recipe, like: Federation) -> None:
    """Whether a recipe's split would do, where only who holds what differs from a federation already assembled."""
    recipe = replace(
        like.recipe,
        seed=recipe.seed,
        partition=recipe.partition,
        partition_seed=recipe.split_seed,
        auxiliary=recipe.auxiliary,
        auxiliary_mode=recipe.auxiliary_mode,
    )
    partition, _, _ = _split(recipe, like.dataset, Brought(), like.pipeline, like.dtype, like.method)
    refuse_tiny_clients(partition, like.rounds, recipe.batch)


def _with_names(recipe: Recipe, shape: tuple[int, ...], brought: Brought) -> Recipe:
    """The recipe with ``auto`` replaced, the options in force written out and what was brought named as such."""
    if brought.module is not None:
        recipe = replace(recipe, model=type(brought.module).__name__, head="off")
    if brought.partition is not None:
        recipe = replace(recipe, partition=brought.partition.spec)
    return with_names(recipe, shape)


def module_with(recipe: Recipe, weights: Tree | None, like: nn.Module | None = None) -> nn.Module:
    """A model with these weights, in evaluation mode; built by the recipe's names where no module is given to copy."""
    if weights is None:
        raise UserError("this run has no weights: a pack keeps none, and a run that was interrupted wrote none")
    if like is None:
        if recipe.data == OWN:
            raise UserError(
                f"this run was on {OWN}, which no file holds, so its model cannot be built again: load its weights "
                "(result.weights, or weights.safetensors in its folder) into a module of yours"
            )
        try:
            dataset = load(recipe.data, recipe.label)
        except UserError as error:
            raise UserError(f"the model's form follows from its data: {error}") from None
        like = set_up(recipe, dataset.shape, dataset.num_classes).module
    module = deepcopy(like).to_empty(device="cpu").eval()
    several = isinstance(module, nn.ModuleDict) and "params" not in weights
    pairs = [(module.get_submodule(name), own) for name, own in weights.items()] if several else [(module, weights)]
    for one, own in pairs:
        held = {name: leaf.cpu() for name, leaf in (own["params"] | own["buffers"]).items()}
        wanted = {name: leaf.shape for name, leaf in one.state_dict().items() if name in held}
        if any(held[name].shape != shape for name, shape in wanted.items()):
            raise UserError("this run has a model for each client: take them from result.weights, [clients, …]")
        one.to(next(iter(held.values())).dtype).load_state_dict(held, strict=False)
    return module


def _modules(recipe: Recipe, shape: tuple[int, ...], classes: int, brought: Brought) -> dict[str, nn.Module]:
    """The caller's model, or those the recipe names, each once."""
    if brought.module is not None:
        return {recipe.model: brought.module}
    head = recipe.head == "on"
    return {name: build_model(name, shape, classes, head) for name in model_names(recipe)}


def _rounds(recipe: Recipe, nets: dict[str, Net], method: Method) -> Rounds:
    """Rounds of the one model, or of all and who holds which; refused where the method cannot do with several."""
    if len(nets) == 1:
        ((name, net),) = nets.items()
        return Rounds(net, name)
    reason = unmixable(method.local, method.server)
    if reason:
        raise UserError(f"model names {len(nets)} models ({recipe.model}): {reason}")
    return MixedRounds(nets, model_names(recipe))


def _net(module: nn.Module) -> Net:
    try:
        return Net(module)
    except ValueError as error:
        raise UserError(str(error)) from None


def _partial_batch(recipe: Recipe, rounds: Rounds) -> str:
    if recipe.partial_batch == "keep" and rounds.has_batch_norm:
        raise UserError("partial_batch = keep does not go with batch norm: its statistics need full batches; use drop")
    if recipe.partial_batch == "auto":
        return "drop" if rounds.has_batch_norm else "keep"
    return recipe.partial_batch


def _split(
    recipe: Recipe, dataset: Dataset, brought: Brought, steps: Augmentation, dtype: torch.dtype, method: Method
) -> tuple[Partition, Auxiliary | None, Sequence[str]]:
    labels, classes = dataset.y_train, dataset.num_classes
    partition = brought.partition or split(recipe.partition, labels, classes, recipe.clients, recipe.partition_seed)
    if brought.auxiliary is not None:
        x, y = brought.auxiliary
        return partition, Auxiliary(steps.test(x, dtype), y), ()
    if recipe.auxiliary == 0 or brought.elsewhere:
        if method.needs_auxiliary:
            who = f"server half {recipe.server!r}" if method.server.needs_auxiliary else f"method {recipe.method!r}"
            what_to_do = "add auxiliary samples to the server's data" if recipe.auxiliary else "set auxiliary above 0"
            raise UserError(f"{who} needs an auxiliary set: {what_to_do}")
        return partition, None, ()
    rows, partition, notes = auxiliary_set.take(
        labels, partition, classes, recipe.auxiliary, recipe.auxiliary_mode, recipe.partition_seed
    )
    return partition, Auxiliary(steps.test(dataset.x_train[rows], dtype), labels[rows]), notes


def _warnings(method: Method, recipe: Recipe) -> list[str]:
    notes = [
        f"the strength of {name!r} is 0: it adds nothing to cross-entropy and "
        + ("is FedAvg" if method.local.shares_weights else "every client trains alone")
        for name in without_strength(method.local)
    ]
    if method.needs_head and recipe.head == "off":
        notes.append(f"{recipe.method} runs without its projection head here (head = off)")
    return notes
