"""Every registered method over Flower's messages: bit for bit the reference engine's weights, replies in any order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from inprocess import InProcessGrid, nodes_for

from fedssd.core import tree
from fedssd.core.tree import Tree
from fedssd.deployment.samples import deal, read_server
from fedssd.deployment.server import serve
from fedssd.deployment.settings import Settings
from fedssd.engines.flower.memory import InContext
from fedssd.engines.flower.packing import unpack
from fedssd.experiment.recipe import load_recipe
from fedssd.experiment.run import run_recipe
from fedssd.methods.registry import LOCALS, SERVERS, build_local

SMALL = {"rounds": 3, "epochs": 1, "clients": 3, "auxiliary": 8, "model": "mlp", "engine": "reference", "device": "cpu"}


def assert_same(tmp_path: Path, **changes: object) -> None:
    """The federation's weights and record are the simulation's."""
    recipe = load_recipe(None, {**SMALL, **changes})
    file = tmp_path / "recipe.toml"
    file.write_text(recipe.to_toml(), encoding="utf-8")
    files = deal(recipe, tmp_path / "samples")
    grid = InProcessGrid(nodes_for(file, files), random.Random(7))
    samples = read_server(tmp_path / "samples" / "server" / "samples.npz", recipe)
    ours = serve(grid, recipe, samples, Settings(wait=1.0), tmp_path / "run").result()
    theirs = run_recipe(recipe)
    shared = build_local(recipe.method).shares_weights
    left = tree.flatten(ours.weights if shared else models_of(grid, recipe.rounds))
    right = tree.flatten(theirs.weights)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    for our_line, their_line in zip(ours.rounds, theirs.rounds, strict=True):
        known = their_line.keys() - {"seconds"} if shared else {"round", "clients", "dropped", "bytes_up", "bytes_down"}
        assert {key: our_line.get(key) for key in known} == {key: their_line[key] for key in known}


def models_of(grid: InProcessGrid, rounds: int) -> Tree:
    """The clients' own models, from the nodes' memories, stacked."""
    nodes = sorted(grid.nodes.values(), key=lambda node: int(node.context.node_config["partition-id"]))
    kept = [node.context.state.config_records[InContext.RECORD][str(rounds)] for node in nodes]
    return tree.stack([unpack(bytes(content))["model"] for content in kept])


@pytest.mark.parametrize("method", LOCALS)
def test_local_half(method: str, tmp_path: Path) -> None:
    assert_same(tmp_path, method=method)


@pytest.mark.parametrize("server", SERVERS)
def test_server_half(server: str, tmp_path: Path) -> None:
    assert_same(tmp_path, method="fedprox", server=server)


def test_a_sum_with_a_cohort_of_some(tmp_path: Path) -> None:
    """Two memories and two broadcasts at once, of which one is empty, and clients that sit out."""
    assert_same(tmp_path, method="fedssd+moon+fedprox", clients=4, participation=0.5, rounds=4, lr_decay=0.9)
