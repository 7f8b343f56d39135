"""A federation in this process whose nodes and messages can be tampered with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, Message
from inprocess import InProcessGrid, Node, nodes_for

from fedssd.core import tree
from fedssd.flower.samples import ServerSamples, deal, read_server
from fedssd.flower.server import serve
from fedssd.flower.settings import Settings
from fedssd.recipe import Recipe, load_recipe
from fedssd.simulation.result import Result

SMALL = {"rounds": 3, "epochs": 1, "clients": 3, "auxiliary": 8, "model": "mlp", "engine": "reference", "device": "cpu"}


class Lab:
    """A federation in this process: its samples, its nodes and a way to run it."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.recipe: Recipe = load_recipe(None, {**SMALL, **changes})
        self.file = folder / "recipe.toml"
        self.file.write_text(self.recipe.to_toml(), encoding="utf-8")
        self.files = deal(self.recipe, folder / "samples")
        self.samples: ServerSamples = read_server(folder / "samples" / "server" / "samples.npz", self.recipe)
        self.grid = InProcessGrid(self.nodes())

    def nodes(self) -> dict[int, Node]:
        return nodes_for(self.file, self.files, self.folder / "state")

    def client(self, node: int) -> int:
        return int(self.grid.nodes[node].context.node_config["partition-id"])

    def run(self, **settings: Any) -> Result:
        chosen = Settings(**{"wait": 0.5, "round_timeout": 1.0, **settings})
        return serve(self.grid, self.recipe, self.samples, chosen, self.folder / "run").result()

    def spoil(self, client: int, round_: int, change: Callable[[Message], Message | None]) -> None:
        """Let one reply of one client arrive otherwise than it was sent."""
        self.grid.tamper = lambda now, node, reply: (
            change(reply) if (now, self.client(node)) == (round_, client) else reply
        )


def same(left: Result, right: Result) -> bool:
    ours, theirs = tree.flatten(left.weights), tree.flatten(right.weights)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def sits_out(lab: Lab, node: int, round_: int) -> None:
    """The node is not connected while this round begins."""
    everybody = lab.grid.get_node_ids

    def connected() -> list[int]:
        done = max((int(message.metadata.group_id or 0) for message in lab.grid.sent), default=0)
        return [one for one in everybody() if not (one == node and done == round_ - 1)]

    lab.grid.get_node_ids = connected  # type: ignore[method-assign]


def replace_arrays(reply: Message, change: Callable[[Any], Any]) -> Message:
    record = reply.content.array_records["weights"]
    name = next(iter(record))
    record[name] = Array(change(record[name].numpy()))
    return reply


def with_metric(reply: Message, name: str, value: float) -> Message:
    reply.content.metric_records["metrics"][name] = value
    return reply
