"""The Python entry points: run and compare, by names or with the caller's own model and data."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedssd.data.augment import pipeline, resized
from fedssd.data.dataset import Dataset
from fedssd.data.numbers import alike
from fedssd.data.partition import Partition
from fedssd.data.sources import load
from fedssd.errors import UserError
from fedssd.recipe import PAPER_METHODS, Recipe, check, load_recipe, usual
from fedssd.runs.folder import claim
from fedssd.runs.loop import run_recipe
from fedssd.simulation.events import Event, Listener, ignore
from fedssd.simulation.result import Result
from fedssd.simulation.setup import Brought, assemble
from fedssd.sweeps.grid import compare as compare_recipes

Array = Tensor | np.ndarray | Sequence[Any]
Samples = Sequence[Array]  # a pair (x, y)
Whole = int | np.integer[Any]

OWN = "your own arrays"
LARGEST = 2**63 - 1
EXPECTED_CLIENTS = "clients expects a list of (x, y) pairs, one a client, or a whole number"
EXPECTED_AUXILIARY = "auxiliary expects a pair (x, y), a whole number of samples per class, or 0 for none"


def run(
    method: str = "fedssd",
    *,
    recipe: str | Path | None = None,
    model: nn.Module | str | None = None,
    clients: Sequence[Samples] | Whole | None = None,
    test: Samples | None = None,
    auxiliary: Samples | Whole | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    listen: Listener = ignore,
    **keys: Any,
) -> Result:
    """Run one method and give back its rounds, summary and weights.

    By names: ``run("fedssd", data="digits", rounds=5)``; every recipe key is a keyword. ``recipe`` is the name of one
    that comes with fedssd, a TOML file or a run's folder; where neither it nor data are named, it is ``"digits"``, and
    ``listen`` is told. With your own: ``model`` is an ``nn.Module`` (it keeps its initial weights), ``clients`` a list
    of (x, y), one pair a client, ``test`` and ``auxiliary`` pairs too. A module returns logits, or (logits, features).
    With ``resume`` the run goes on where an earlier one stopped in ``out``, and begins where there is none.
    """
    asked, brought = _understand("run", recipe, model, clients, test, auxiliary, {**keys, "method": method}, listen)
    return run_recipe(asked, _folder(out), listen, brought, resume)


def compare(
    methods: Sequence[str] = PAPER_METHODS,
    seeds: Iterable[int] = (0, 1, 2),
    *,
    recipe: str | Path | None = None,
    model: nn.Module | str | None = None,
    clients: Sequence[Samples] | Whole | None = None,
    test: Samples | None = None,
    auxiliary: Samples | Whole | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    workers: Whole = 1,
    listen: Listener = ignore,
    **keys: Any,
) -> list[Result]:
    """Run every method on every seed, otherwise alike; results come in the order methods × seeds.

    ``recipe``, ``model``, ``clients``, ``test``, ``auxiliary`` and ``resume`` are as for :func:`run`. With anything of
    your own the runs go one after another in this process, whatever ``workers`` says.
    """
    for key in ("method", "seed"):
        if key in keys:
            raise UserError(f"compare takes seeds=/methods=, got {key}={keys[key]!r}: write {key}s=[…]")
    named, numbers, processes = _methods(methods), _seeds(seeds), _whole(workers)
    if processes is None or processes < 0:
        raise UserError(f"compare: workers expects a whole number that is not negative, got {workers!r}")
    asked, brought = _understand("compare", recipe, model, clients, test, auxiliary, dict(keys), listen, named)
    if brought == Brought():
        return compare_recipes(asked, named, numbers, _folder(out), processes, listen, resume)
    return _one_after_another(asked, named, numbers, brought, _folder(out), listen, resume)


def _one_after_another(
    base: Recipe,
    methods: Sequence[str],
    seeds: Sequence[int],
    brought: Brought,
    out: Path | None,
    listen: Listener,
    resume: bool,
) -> list[Result]:
    """Own models and arrays stay in this process: they need not survive a trip to another."""
    recipes = [check(replace(base, method=method, seed=seed), methods) for method in methods for seed in seeds]
    names = ["".join(c if c.isalnum() or c in "+-_" else "-" for c in r.method) + f"-{r.seed}" for r in recipes]
    if len(set(names)) < len(names):
        raise UserError("compare was given the same method or the same seed twice")
    for first in recipes[:: len(seeds)]:
        assemble(first, brought)  # whatever is wrong is said before anything is written
    if out is not None and not resume:
        claim(out)
    total, results = sum(recipe.rounds for recipe in recipes), list[Result]()
    for name, recipe in zip(names, recipes, strict=True):
        before = sum(done.recipe.rounds for done in results)

        def shifted(event: Event, before: int = before) -> None:
            listen(event._replace(done=before + event.done, total=total))

        results.append(run_recipe(recipe, out / name if out is not None else None, shifted, brought, resume))
    return results


def _understand(
    caller: str,
    source: str | Path | None,
    model: nn.Module | str | None,
    clients: Sequence[Samples] | Whole | None,
    test: Samples | None,
    auxiliary: Samples | Whole | None,
    keys: dict[str, Any],
    listen: Listener,
    others: Sequence[str] = (),
) -> tuple[Recipe, Brought]:
    """The recipe the arguments amount to, and what of them no recipe can hold."""
    module = None if model is None or isinstance(model, str) else _module(model)
    if isinstance(model, str):
        keys["model"] = model
    dataset, partition = None, None
    if clients is not None and (count := _whole(clients)) is not None:
        keys["clients"] = count
    elif clients is not None:
        pairs = _clients(clients)
        if test is None:
            raise UserError(f"{caller} was given its own clients and no test set: pass test=(x, y)")
        if "data" in keys:
            raise UserError(f"{caller} was given data={keys['data']!r} and its own clients: drop data= or clients=")
        if keys.get("label"):
            raise UserError(f"{caller} was given label={keys['label']!r}, a column of a .csv, and its own clients")
        dataset, partition = _own_data(pairs, _pair(test, "test"))
        keys["data"], keys["clients"] = OWN, len(pairs)
    if test is not None and dataset is None:
        raise UserError(
            f"{caller} was given a test set and no clients of its own: pass clients=[(x, y), …] or drop test="
        )
    given = None
    if auxiliary is not None:
        keys["auxiliary"], given = _auxiliary(auxiliary)
    if source is not None and not isinstance(source, (str, Path)):
        raise UserError(f"recipe expects a name, a TOML file or a run's folder, got {_short(source)}")
    begin = usual(source, keys)
    if begin != source:
        listen(Event("", 0, 1, note=f"neither recipe= nor data=: the recipe {begin!r}"))
    recipe = load_recipe(begin, _plain(keys), others, caller)
    if given is not None:
        dataset = dataset or _as_trained_on(recipe)
        dataset, given = _with_auxiliary(dataset, given)
    return recipe, Brought(dataset, partition, given, module)


def _plain(value: Any) -> Any:
    """numpy's scalars as Python's, also inside options."""
    if isinstance(value, np.generic):
        return value.item()
    return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


def _folder(out: str | Path | None) -> Path | None:
    if out is not None and not isinstance(out, (str, Path)):
        raise UserError(f"out expects a folder's path, got {_short(out)}")
    return None if out is None else Path(out)


def _whole(value: object) -> int | None:
    """Python's or numpy's whole number as an int; None for anything else."""
    return int(value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else None


def _methods(methods: Sequence[str]) -> list[str]:
    found = [methods] if isinstance(methods, str) else list(methods) if isinstance(methods, Iterable) else [None]
    if not found or not all(isinstance(name, str) for name in found):
        raise UserError(f"compare: methods expects a list of names, at least one, got {_short(methods)}")
    return [str(name) for name in found]


def _seeds(seeds: Iterable[int]) -> list[int]:
    found: list[int] = []
    try:
        for seed in seeds:
            if isinstance(seed, bool):
                raise TypeError
            found.append(operator.index(seed))
    except TypeError:
        raise UserError(f"compare: seeds expects whole numbers such as [0, 1, 2], got {_short(seeds)}") from None
    if not found:
        raise UserError("compare: seeds expects at least one whole number, got none")
    return found


def _module(model: object) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise UserError(f"model expects a name or an nn.Module (an instance, not a class), got {_short(model)}")
    where = type(model).__name__
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(value):
            raise UserError(f"model expects sizes that are known, got the lazy {name!r} in {where}: run a sample first")
    if not any(True for _ in model.parameters()):
        raise UserError(f"model expects parameters to train, got a {where} without any")
    return model


def _clients(clients: object) -> list[tuple[Tensor, Tensor]]:
    if isinstance(clients, (str, bytes, Mapping, Tensor, np.ndarray)) or not isinstance(clients, Iterable):
        raise UserError(f"{EXPECTED_CLIENTS}, got {_short(clients)}")
    pairs = [_pair(samples, f"client {number}") for number, samples in enumerate(clients)]
    if not pairs:
        raise UserError(f"{EXPECTED_CLIENTS}, got an empty list")
    samples = alike([x for x, _ in pairs])
    for number, x in enumerate(samples):
        _check_alike(x, samples[0], f"client {number}", "client 0")
    return [(x, y) for x, (_, y) in zip(samples, pairs, strict=True)]


def _own_data(pairs: list[tuple[Tensor, Tensor]], test: tuple[Tensor, Tensor]) -> tuple[Dataset, Partition]:
    *samples, test_x = alike([*(x for x, _ in pairs), test[0]])
    test_y = test[1]
    _check_alike(test_x, samples[0], "test", "the clients")
    ends = np.cumsum([len(y) for _, y in pairs])
    rows = tuple(torch.arange(end - len(y), end) for end, (_, y) in zip(ends.tolist(), pairs, strict=True))
    x, y = torch.cat(samples), torch.cat([y for _, y in pairs])
    classes = int(max(y.max(), test_y.max())) + 1
    if classes > len(y):  # said here, as that many names may not fit into memory
        raise UserError(
            f"labels expects classes numbered 0, 1, 2, …, got {classes - 1} among {len(y)} training samples"
        )
    return Dataset(OWN, x, y, test_x, test_y, tuple(map(str, range(classes)))), Partition("given", 0, rows)


def _auxiliary(auxiliary: object) -> tuple[int, tuple[Tensor, Tensor] | None]:
    """Samples per class to take from the clients, or the caller's own set."""
    count = _whole(auxiliary)
    if count is not None:
        return count, None
    if not isinstance(auxiliary, (tuple, list)):
        raise UserError(f"{EXPECTED_AUXILIARY}, got {_short(auxiliary)}")
    return 0, _pair(auxiliary, "auxiliary")


def _as_trained_on(recipe: Recipe) -> Dataset:
    """The named dataset in the size its pipeline gives it."""
    dataset = load(recipe.data, recipe.label)
    steps = pipeline("none" if recipe.augment == "auto" else recipe.augment, dataset.name, dataset.shape)
    return resized(dataset, steps.resize) if steps.resize else dataset


def _with_auxiliary(dataset: Dataset, given: tuple[Tensor, Tensor]) -> tuple[Dataset, tuple[Tensor, Tensor]]:
    """A dataset and an auxiliary set that fits it."""
    x, y = given
    if x.dtype == torch.float32 and dataset.x_train.dtype == torch.int64:
        dataset = dataset.as_float32
    _, x = alike([dataset.x_train, x])
    _check_alike(x, dataset.x_train, "auxiliary", "the clients")
    if int(y.max()) >= dataset.num_classes:
        raise UserError(f"auxiliary: expected labels in 0…{dataset.num_classes - 1}, got {int(y.max())}")
    return dataset, (x, y)


def _check_alike(x: Tensor, other: Tensor, where: str, of: str) -> None:
    if x.shape[1:] != other.shape[1:] or x.dtype != other.dtype:
        kinds = [f"{str(t.dtype).removeprefix('torch.')} {list(t.shape[1:])}" for t in (other, x)]
        raise UserError(f"{where}: expected samples like those of {of}, {kinds[0]}, got {kinds[1]}")


def _pair(samples: object, where: str) -> tuple[Tensor, Tensor]:
    """Samples (uint8, int64 or float32) and int64 labels, as many of both and all of them usable."""
    if not isinstance(samples, (tuple, list)) or len(samples) != 2:
        raise UserError(f"{where}: expected a pair (x, y), got {_short(samples)}")
    x, y = _tensor(samples[0], f"{where}, x"), _tensor(samples[1], f"{where}, y")
    if x.ndim < 2 or y.ndim != 1:
        shapes = f"{list(x.shape)} and {list(y.shape)}"
        raise UserError(f"{where}: expected x of shape [n, …] and y of shape [n], got {shapes}")
    if len(x) != len(y) or len(x) == 0:
        raise UserError(f"{where}: expected as many samples as labels and at least one, got {len(x)} and {len(y)}")
    if x.dtype != torch.uint8:
        x = x.to(torch.float32 if x.is_floating_point() or x.dtype == torch.bool else torch.int64)
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        row = int(torch.nonzero(~torch.isfinite(x).flatten(1).all(1))[0])
        raise UserError(f"{where}: expected finite samples, got NaN or infinity in row {row}")
    whole = y.to(torch.float64)
    wrong = torch.nonzero(~torch.isfinite(whole) | (whole != whole.round()) | (whole < 0)).flatten()
    if len(wrong):
        row = int(wrong[0])
        raise UserError(f"{where}: expected labels that are whole numbers from 0, got {y[row].item()} in row {row}")
    return x, y.to(torch.int64)


def _tensor(values: object, where: str) -> Tensor:
    """An array of real numbers as a tensor on the CPU; whole numbers of any size as int64, but bytes."""
    if isinstance(values, Tensor):
        if values.layout != torch.strided or values.is_complex():
            raise UserError(f"{where}: expected a dense array of real numbers, got {values.dtype} {values.layout}")
        if values.dtype != torch.uint64:
            return values.detach().cpu()
        values = values.cpu().numpy()
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError):
        raise UserError(f"{where}: expected an array of numbers, got {_short(values)} with rows unalike") from None
    if array.dtype.kind not in "biuf":
        raise UserError(f"{where}: expected an array of real numbers, got {array.dtype}")
    if array.dtype.kind == "u" and array.size and int(array.max()) > LARGEST:
        raise UserError(f"{where}: expected whole numbers below 2⁶³, got {array.max()}: number from 0")
    native = {"b": "?", "i": "i8", "u": "u1" if array.itemsize == 1 else "i8"}
    kind = native.get(array.dtype.kind, "f8" if array.itemsize >= 8 else "f4")
    # Torch takes neither negative strides nor foreign byte orders, and warns of what it may not write to.
    return torch.from_numpy(np.require(array, dtype=kind, requirements=["C", "W"]))


def _short(value: object) -> str:
    """A value in a few words: arrays by type, everything else as written where that is short."""
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}" if len(repr(value)) > 40 else repr(value)
    if isinstance(value, (Tensor, np.ndarray)):
        return f"a {type(value).__name__} of shape {list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"
