"""What a source tree is asked beyond its command line; same_numbers.py runs this as a program inside each tree.

It uses what is public and stays: ``fedssd.run``, a recipe's hash, and the app that `fedssd federation init` wrote.
"""

from __future__ import annotations

import json
import runpy
import sys
import tomllib
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any


def recipes(listed: str) -> dict[str, Any]:
    """Hash and content of every recipe file listed, by its name; or why it cannot be read."""
    import fedssd

    if hasattr(fedssd, "Recipe"):
        load = fedssd.Recipe.load
    else:
        load_recipe = before_recipes_were_public()

        def load(path: Path) -> Any:
            return load_recipe(path, {})

    found: dict[str, Any] = {}
    for name in Path(listed).read_text(encoding="utf-8").split("\n"):
        try:
            recipe = load(Path(name))
            found[name] = {"hash": recipe.hash, "content": tomllib.loads(recipe.to_toml())}
        except Exception as error:  # whatever a tree says is compared
            found[name] = {"error": str(error)}
    return found


def before_recipes_were_public() -> Any:
    """The function that reads a recipe."""
    for name in ("fedssd.experiment.recipe", "fedssd.recipe", "fedssd.recipe.recipe"):
        with suppress(ImportError, AttributeError):
            return import_module(name).load_recipe
    raise ImportError("no load_recipe")


def own(method: str, engine: str, out: str) -> str:
    """A run on arrays of one's own, with a module of one's own that has batch norm."""
    import numpy as np
    import torch
    from torch import nn

    import fedssd

    draws = np.random.default_rng(3)
    centres = 2 * draws.normal(size=(4, 6))

    def samples(count: int) -> tuple[Any, Any]:
        y = np.arange(count) % 4
        return (centres[y] + draws.normal(size=(count, 6))).astype(np.float32), y

    clients = [samples(count) for count in (40, 23, 17, 60, 31)]
    test, auxiliary = samples(80), samples(12)
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 4))
    fedssd.run(
        method,
        model=model,
        clients=clients,
        test=test,
        auxiliary=auxiliary,
        out=out,
        engine=engine,
        rounds=3,
        epochs=2,
        batch=8,
        lr=0.05,
        participation=0.8,
    )
    return out


def flower(lab: str, out: str, *more: str) -> str:
    """The federation of an app's folder, its server and nodes in this process, over Flower's messages.

    ``more`` are settings such as set=rounds=2, and state=DIR, where the nodes keep their memories.
    """
    sys.path.insert(0, str(Path(__file__).with_name("flower")))
    from flwr.app import Context, RecordDict
    from inprocess import InProcessGrid, Node

    folder = Path(lab)
    app = runpy.run_path(str(folder / "federation_app.py"))
    count = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))["clients"]
    given = dict(word.split("=", 1) for word in more)
    state = given.pop("state", "")
    nodes = {}
    for client in range(count):
        node, own = 1000 + 7 * client, {"partition-id": client, "num-partitions": count}
        own |= {"state-path": state} if state else {}
        nodes[node] = Node(app["client"], Context(1, node, own, RecordDict(), {}))
    config = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    config |= {"wait": 1.0, "out": out, **given}
    app["server"](InProcessGrid(nodes), Context(1, 1, {}, RecordDict(), config))
    return out


if __name__ == "__main__":
    answers = {"recipes": recipes, "own": own, "flower": flower}
    print(json.dumps(answers[sys.argv[1]](*sys.argv[2:])))
