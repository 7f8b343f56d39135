"""Every registered method over Flower's messages: bit for bit the reference engine's weights, replies in any order."""

from __future__ import annotations

import itertools
import pickle
import random
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from flwr.app import Context, Message, MessageType, RecordDict
from inprocess import InProcessGrid, become_a_server, nodes_for
from lab import SMALL, Lab
from safetensors.torch import load_file

from fedssd.cli import main
from fedssd.core import tree
from fedssd.core.tree import Tree
from fedssd.data.sources import load
from fedssd.flower.client import client_app
from fedssd.flower.memory import InContext
from fedssd.flower.messages import Kind, ask, read_greeting
from fedssd.flower.packing import unpack
from fedssd.flower.samples import deal, read_server
from fedssd.flower.server import serve, server_app
from fedssd.flower.settings import Settings
from fedssd.methods.registry import LOCALS, SERVERS, build_local
from fedssd.recipe import load_recipe
from fedssd.runs.loop import run_recipe


def assert_same(tmp_path: Path, order: random.Random | None = None, /, **changes: object) -> None:
    """The federation's weights and record are the simulation's."""
    recipe = load_recipe(None, {**SMALL, **changes})
    file = tmp_path / "recipe.toml"
    file.write_text(recipe.to_toml(), encoding="utf-8")
    files = deal(recipe, tmp_path / "samples")
    grid = InProcessGrid(nodes_for(file, files), order or random.Random(7))
    samples = read_server(tmp_path / "samples" / "server" / "samples.npz", recipe)
    ours = serve(grid, recipe, samples, Settings(wait=1.0), tmp_path / "run").result()
    theirs = run_recipe(recipe)
    shared = build_local(recipe.method).shares_weights
    left = tree.flatten(ours.weights if shared else models_of(grid, recipe.rounds))
    right = tree.flatten(theirs.weights)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    for one, other in zip(ours.rounds, theirs.rounds, strict=True):
        our_line, their_line = one.to_json(), other.to_json()
        known = their_line.keys() - {"seconds"} if shared else {"round", "clients", "dropped", "bytes_up", "bytes_down"}
        assert {key: our_line.get(key) for key in known} == {key: their_line[key] for key in known}


def table_of_whole_numbers(file: Path) -> Path:
    rows = [f"{4 * (row % 3) + row % 4},{row * row % 11},{row % 3}" for row in range(90)]
    file.write_text("\n".join(["a,b,label", *rows]) + "\n")
    return file


def test_a_table_of_whole_numbers_is_dealt_as_the_model_takes_it(tmp_path: Path) -> None:
    assert_same(tmp_path, data=str(table_of_whole_numbers(tmp_path / "t.csv")), model="mlp", auxiliary=2)


def test_machines_files_of_whole_numbers_are_floats_where_the_model_takes_no_others(tmp_path: Path) -> None:
    dataset = load(str(table_of_whole_numbers(tmp_path / "t.csv")))
    recipe = load_recipe(None, {**SMALL, "model": "mlp", "clients": 2, "participation": 1.0, "auxiliary": 2})
    (tmp_path / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    found = []
    for kind in (np.int64, np.float32):
        files = [tmp_path / f"{machine}-{np.dtype(kind)}.npz" for machine in ("server", "one", "two")]
        for part, file in enumerate(files):
            x, y = dataset.x_train[part::3].numpy().astype(kind), dataset.y_train[part::3].numpy()
            np.savez(file, x=x, y=y, classes=np.array(dataset.classes))
        grid = InProcessGrid(nodes_for(tmp_path / "recipe.toml", files[1:]), random.Random(7))
        served = serve(grid, recipe, read_server(files[0], recipe), Settings(wait=1.0), tmp_path / str(np.dtype(kind)))
        found.append(tree.flatten(served.result().weights))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[1])


class Arranged(random.Random):
    """Shuffles three replies into one given order, and leaves others as they are."""

    def __init__(self, order: tuple[int, ...]) -> None:
        self.order = order

    def shuffle(self, x: Any) -> None:
        if len(x) == len(self.order):
            x[:] = [x[place] for place in self.order]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_every_order_of_replies_comes_to_the_same(order: tuple[int, ...], tmp_path: Path) -> None:
    assert_same(tmp_path, Arranged(order), method="scaffold", rounds=2)


def test_flower_s_simulated_nodes_hold_their_share_of_the_recipe_s_data(tmp_path: Path) -> None:
    """Its nodes are told nothing but their number and how many there are, and its server no samples."""
    recipe = load_recipe(None, {**SMALL, "method": "fedssd"})
    file = tmp_path / "recipe.toml"
    file.write_text(recipe.to_toml(), encoding="utf-8")
    grid = InProcessGrid(nodes_for(file, [tmp_path] * recipe.clients))
    for node in grid.nodes.values():
        del node.context.node_config["data-path"]
        node.context.node_config["num-partitions"] = recipe.clients
    config = {"wait": 1.0, "out": str(tmp_path / "run")}
    server_app(file)(grid, Context(1, 1, {}, RecordDict(), config))
    ours, theirs = load_file(tmp_path / "run" / "weights.safetensors"), tree.flatten(run_recipe(recipe).weights)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_app_can_be_pickled(tmp_path: Path) -> None:
    """Flower's simulation sends it to its workers that way, with Ray's cloudpickle, even after it was used."""
    file = tmp_path / "recipe.toml"
    file.write_text(load_recipe(None, SMALL).to_toml(), encoding="utf-8")
    app = client_app(file)
    become_a_server()
    letter = Message(ask(Kind((1, 8, 8), "float32", tuple("0123456789")), "run"), 1, MessageType.QUERY)
    config = {"partition-id": 1, "num-partitions": 3}
    for one in (app, pickle.loads(cloudpickle.dumps(app))):
        answer = one(letter, Context(1, 1, config, RecordDict(), {}))
        assert read_greeting(answer.content).client == 1


@pytest.mark.parametrize("config", [{}, {"num-partitions": 4}, {"num-partitions": 3, "data-path": ""}])
def test_another_node_must_say_where_its_samples_are(config: dict[str, object], tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(load_recipe(None, SMALL).to_toml(), encoding="utf-8")
    (node,) = nodes_for(file, [tmp_path]).values()
    del node.context.node_config["data-path"]
    node.context.node_config.update(config)
    become_a_server()
    kind = Kind((1, 8, 8), "float32", tuple("0123456789"))
    answer = node.handle(Message(ask(kind, "run"), 1, MessageType.QUERY))
    assert "clients, and Flower simulates 4" in answer.error.reason or "needs data-path" in answer.error.reason


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


def test_a_run_leaves_what_a_simulation_leaves(tmp_path: Path) -> None:
    Lab(tmp_path, method="fedssd").run()
    simulated = tmp_path / "simulated"
    recipe = str(tmp_path / "recipe.toml")
    assert main(["run", "--recipe", recipe, "--out", str(simulated), "--json"]) == 0
    left, theirs = ({file.name for file in folder.iterdir()} for folder in (tmp_path / "run", simulated))
    assert left == theirs
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "fedssd, a federation of 3" in page
