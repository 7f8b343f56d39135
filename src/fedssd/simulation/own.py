"""What a caller brings: an ``nn.Module``, clients' samples, a test set, an auxiliary set, each looked at first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from fedssd.data.arrays import OWN, Samples, Whole, auxiliary_of, client_pairs, own_data, pair, short, whole
from fedssd.data.arrays import with_auxiliary as fitting
from fedssd.data.augment import pipeline, resized
from fedssd.data.dataset import Dataset
from fedssd.data.sources import load
from fedssd.errors import UserError
from fedssd.recipe import Recipe
from fedssd.simulation.setup import Brought


def bring(
    caller: str,
    model: nn.Module | str | None,
    clients: Sequence[Samples] | Whole | None,
    test: Samples | None,
    auxiliary: Samples | Whole | None,
) -> tuple[dict[str, Any], Brought]:
    """The keys of a recipe that follow from what is given by name, number or value, and what no recipe can hold.

    An auxiliary set has still to be fitted to the data, see :func:`with_auxiliary`.
    """
    keys: dict[str, Any] = {"model": model} if isinstance(model, str) else {}
    module = None if model is None or isinstance(model, str) else _module(model)
    dataset, partition, given = None, None, None
    if clients is not None and (count := whole(clients)) is not None:
        keys["clients"] = count
    elif clients is not None:
        pairs = client_pairs(clients)
        if test is None:
            raise UserError(f"{caller} was given its own clients and no test set: pass test=(x, y)")
        dataset, partition = own_data(pairs, pair(test, "test"))
        keys |= {"data": OWN, "clients": len(pairs)}
    if test is not None and dataset is None:
        raise UserError(
            f"{caller} was given a test set and no clients of its own: pass clients=[(x, y), …] or drop test="
        )
    if auxiliary is not None:
        keys["auxiliary"], given = auxiliary_of(auxiliary)
    return keys, Brought(dataset, partition, given, module)


def with_auxiliary(brought: Brought, recipe: Recipe) -> Brought:
    """The same, its auxiliary set in the numbers of the data that the recipe trains on."""
    if brought.auxiliary is None:
        return brought
    dataset, given = fitting(brought.dataset or _as_trained_on(recipe), brought.auxiliary)
    return replace(brought, dataset=dataset, auxiliary=given)


def _module(model: object) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise UserError(f"model expects a name or an nn.Module (an instance, not a class), got {short(model)}")
    where = type(model).__name__
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(value):
            raise UserError(f"model expects sizes that are known, got the lazy {name!r} in {where}: run a sample first")
        if value.is_meta:
            raise UserError(f"model expects numbers, got {name!r} on the meta device in {where}: build it on the CPU")
        if value.isnan().any() or (isinstance(value, nn.Parameter) and value.isinf().any()):
            what = "NaN" if value.isnan().any() else "infinity"
            raise UserError(f"model expects finite weights, got {what} in {name!r} of {where}: was it trained too far?")
    if not any(True for _ in model.parameters()):
        raise UserError(f"model expects parameters to train, got a {where} without any")
    return model


def _as_trained_on(recipe: Recipe) -> Dataset:
    """The named dataset in the size its pipeline gives it."""
    dataset = load(recipe.data, recipe.label)
    steps = pipeline("none" if recipe.augment == "auto" else recipe.augment, dataset.name, dataset.shape)
    return resized(dataset, steps.resize) if steps.resize else dataset
