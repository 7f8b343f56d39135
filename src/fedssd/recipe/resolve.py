"""A recipe with names in place of ``auto`` and all options in force: what a run of it writes down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from fedssd.core.contract import Local, Method, Server, parts_of
from fedssd.core.net import Net
from fedssd.core.solver import SGD
from fedssd.data.sources import load
from fedssd.methods.registry import LOCALS, build_local, build_server, check_pair, local_kinds, option_types
from fedssd.models import build_model, default_model
from fedssd.recipe.recipe import Options, Recipe

PAPER_IMAGES = ("cifar10", "cifar100", "tiny-imagenet")
SHAPES = {"digits": (1, 8, 8), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32), "tiny-imagenet": (3, 64, 64)}
ANY = 2  # as many classes: which layers a model has does not go by them


def resolved(recipe: Recipe) -> Recipe:
    """Nothing is left on ``auto`` but engine and device; of data that have no name the shape is read, if it matters."""
    by_shape = "auto" in model_names(recipe) or recipe.partial_batch == "auto"
    shape = (SHAPES.get(recipe.data) or load(recipe.data, recipe.label).shape) if by_shape else ()
    recipe = with_names(recipe, shape)
    if recipe.partial_batch != "auto":
        return recipe
    models = [build_model(name, shape, ANY, recipe.head == "on") for name in model_names(recipe)]
    normed = any(Net(model).has_batch_norm for model in models)
    return replace(recipe, partial_batch="drop" if normed else "keep")


def with_names(recipe: Recipe, shape: tuple[int, ...]) -> Recipe:
    """The recipe for samples of this shape; whether a last partial batch is kept is left to who knows the model."""
    method = build_method(recipe)
    auto_augment = "moon" if recipe.data in PAPER_IMAGES else "none"
    auto_head = "on" if method.needs_head else "off"
    return replace(
        recipe,
        partition_seed=recipe.split_seed,
        augment=auto_augment if recipe.augment == "auto" else recipe.augment,
        model=",".join(default_model(recipe.data, shape) if name == "auto" else name for name in model_names(recipe)),
        head=auto_head if recipe.head == "auto" else recipe.head,
        evaluate_local=recipe.evaluate_local and not recipe.privacy_mode,  # it would tell of single clients
        options=options_in_force(method),
    )


def model_names(recipe: Recipe) -> tuple[str, ...]:
    """The models clients take turns with: ``cnn-small,mlp`` gives the first to clients 0, 2, 4, …"""
    return tuple(name.strip() for name in recipe.model.split(","))


def build_method(recipe: Recipe) -> Method:
    """The method a recipe names, with its options."""
    local = build_local(recipe.method, recipe.options)
    server = build_server(recipe.server, recipe.options)
    check_pair(local, server)
    return Method(local, server, SGD(recipe.lr, recipe.momentum, recipe.weight_decay))


def options_in_force(method: Method) -> Options:
    """Every option of a method's halves, with its value."""
    halves: list[Local | Server] = [*parts_of(method.local), method.server]
    return {
        half.name: {name: getattr(half, name) for name in option_types(type(half))}
        for half in halves
        if option_types(type(half))
    }


def printed_strengths(data: str, methods: Sequence[str]) -> Options:
    """Every option of these methods, the paper's value where it prints one for the data and the default elsewhere."""
    kinds = [kind for method in methods for kind in local_kinds(method) if kind.name in LOCALS]
    return {
        kind.name: {one.name: one.default for one in fields(kind)} | dict(kind.published.get(data, {}))
        for kind in kinds
        if fields(kind)
    }


def with_printed(recipe: Recipe, methods: Sequence[str]) -> Recipe:
    """The recipe with every option of these methods written out: its own, or what the paper prints."""
    return replace(recipe, options=over(printed_strengths(recipe.data, methods), recipe.options))


def over(below: Options, above: Options) -> Options:
    return {method: below.get(method, {}) | above.get(method, {}) for method in below | above}
