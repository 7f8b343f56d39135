"""The Python entry points: run and compare, by names or with the caller's own model and data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedssd.data.dataset import Dataset
from fedssd.data.partition import Partition
from fedssd.errors import UserError
from fedssd.experiment.events import Listener, ignore
from fedssd.experiment.federation import Brought
from fedssd.experiment.many import compare as compare_recipes
from fedssd.experiment.recipe import PAPER_METHODS, Recipe, check, merge
from fedssd.experiment.run import Result, run_recipe

Array = Tensor | np.ndarray
Samples = tuple[Array, Array]


def run(
    method: str = "fedssd",
    *,
    model: nn.Module | str = "auto",
    clients: Sequence[Samples] | int = 10,
    test: Samples | None = None,
    auxiliary: Samples | int = 64,
    out: str | Path | None = None,
    listen: Listener = ignore,
    **keys: Any,
) -> Result:
    """Run one method and give back its rounds, summary and weights.

    By names: ``run("fedssd", data="digits", rounds=5)``; every recipe key is a keyword. With your own: ``model`` is
    an ``nn.Module`` (it keeps its initial weights), ``clients`` a list of (x, y), one pair a client, ``test`` and
    ``auxiliary`` pairs too. A module returns logits, or (logits, features).
    """
    recipe, brought = _understand(model, clients, test, auxiliary, {**keys, "method": method})
    return run_recipe(recipe, Path(out) if out is not None else None, listen, brought)


def compare(
    methods: Sequence[str] = PAPER_METHODS,
    seeds: Sequence[int] = (0, 1, 2),
    *,
    out: str | Path | None = None,
    workers: int = 1,
    listen: Listener = ignore,
    **keys: Any,
) -> list[Result]:
    """Run every method on every seed, otherwise alike; results come in the order methods × seeds."""
    recipe = check(merge(Recipe(), keys, "compare"), methods)
    return compare_recipes(recipe, methods, seeds, Path(out) if out is not None else None, workers, listen)


def _understand(
    model: nn.Module | str,
    clients: Sequence[Samples] | int,
    test: Samples | None,
    auxiliary: Samples | int,
    keys: dict[str, Any],
) -> tuple[Recipe, Brought]:
    if isinstance(model, str):
        keys["model"] = model
    keys["clients"] = clients if isinstance(clients, int) else len(clients)
    if isinstance(auxiliary, int):
        keys["auxiliary"] = auxiliary
    dataset, partition = None, None
    if not isinstance(clients, int):
        if test is None:
            raise UserError("run was given its own clients and no test set: pass test=(x, y)")
        dataset, partition = _own_data(clients, test)
        keys.setdefault("data", "your own arrays")
        if isinstance(auxiliary, tuple):
            keys["auxiliary"] = 0
    recipe = check(merge(Recipe(), keys, "run"))
    given = _pair(auxiliary, "auxiliary") if isinstance(auxiliary, tuple) else None
    return recipe, Brought(dataset, partition, given, None if isinstance(model, str) else model)


def _own_data(clients: Sequence[Samples], test: Samples) -> tuple[Dataset, Partition]:
    pairs = [_pair(samples, f"client {number}") for number, samples in enumerate(clients)]
    ends = np.cumsum([len(y) for _, y in pairs])
    rows = tuple(torch.arange(end - len(y), end) for end, (_, y) in zip(ends.tolist(), pairs, strict=True))
    test_x, test_y = _pair(test, "test")
    x, y = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    classes = int(max(y.max(), test_y.max())) + 1
    dataset = Dataset("your own arrays", x, y, test_x, test_y, tuple(map(str, range(classes))))
    return dataset, Partition("given", 0, rows)


def _pair(samples: Samples, where: str) -> tuple[Tensor, Tensor]:
    x, y = (torch.as_tensor(part) for part in samples)
    if len(x) != len(y) or len(x) == 0:
        raise UserError(f"{where}: expected as many samples as labels and at least one, got {len(x)} and {len(y)}")
    return (x if x.dtype == torch.uint8 else x.to(torch.float32)), y.to(torch.int64)
