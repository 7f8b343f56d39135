"""A real federation on this machine: SuperLink and SuperNodes as processes, TLS, node authentication, own samples."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from evil import evil_app
from safetensors.torch import load_file

from fedssd.core import tree
from fedssd.errors import UserError
from fedssd.flower.app import write_app
from fedssd.flower.certificates import AUTHORITY, node_key, write_certificates
from fedssd.flower.command import FlowerCommand
from fedssd.flower.enrolment import read_public
from fedssd.flower.local import LocalFederation
from fedssd.flower.private_files import write_new
from fedssd.flower.processes import HOST
from fedssd.flower.serving import DOOR, SUPERLINK
from fedssd.flower.settings import Settings, recipe_of
from fedssd.recipe import load_recipe
from fedssd.runs.loop import run_recipe

SMALL = {"rounds": 3, "epochs": 1, "auxiliary": 8, "model": "mlp", "engine": "reference", "device": "cpu"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    with connected(tmp_path_factory.mktemp("federation") / "app", 2) as trial:
        yield trial


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    with connected(tmp_path_factory.mktemp("federation") / "app", 3) as trial:
        yield trial


@contextmanager
def connected(app: Path, nodes: int) -> Iterator[LocalFederation]:
    """So many connected nodes; at the end, neither a process nor a port is left."""
    write_app(app, load_recipe(None, {**SMALL, "clients": nodes}), Settings())
    trial = LocalFederation(app)
    with ended_with_us(app):
        trial.up()
        groups = [entry["pid"] for entry in trial.processes.known().values()]
        ports = [entry["port"] for entry in trial.processes.known().values()]
        yield trial
        trial.down()
    for group in groups:
        with pytest.raises(ProcessLookupError):
            os.killpg(group, 0)
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port), 1)


@contextmanager
def ended_with_us(app: Path) -> Iterator[None]:
    """Whatever kills the tests, a helper that waits for their end takes the federation down."""
    script = 'cat > /dev/null; exec "$0" -m fedssd federation down "$1"'
    command = ["sh", "-c", script, sys.executable, str(app)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True):
        yield


def assert_same_as_simulated(trial: LocalFederation, out: Path, changes: str, rounds: int) -> None:
    """The deployment's final weights are the simulation's, bit for bit."""
    changes, heard = f"rounds={rounds} {changes}".strip(), list[str]()
    outcome = trial.run({"out": str(out), "set": changes, "wait": 60.0, "round-timeout": 120.0}, heard.append)
    assert outcome.completed, (outcome, heard)
    theirs = tree.flatten(run_recipe(recipe_of(trial.app / "recipe.toml", changes)).weights)
    ours = load_file(out / "weights.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert [line for line in heard if line.startswith(f"round {rounds} of {rounds}")]


def test_fedssd_is_the_simulation(pair: LocalFederation, tmp_path: Path) -> None:
    """Few rounds of few nodes, as Flower starts a process for every message; more of both are in the longer checks."""
    assert_same_as_simulated(pair, tmp_path / "run", "", rounds=2)
    written = [tmp_path / "run", *(tmp_path / "run").rglob("*"), pair.place, pair.place / "superlink.db"]
    assert all(stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600) for path in written)


@pytest.fixture(params=["the door", "the SuperLink"])
def stranger(request: pytest.FixtureRequest, pair: LocalFederation, tmp_path: Path) -> FlowerCommand:
    """Somebody with a home of their own: at the door with ca.crt, or inside with the SuperLink's certificate."""
    command = FlowerCommand(tmp_path / "home", "theirs")
    inside = request.param == "the SuperLink"
    address = pair.server.address(SUPERLINK if inside else DOOR)
    write_new(tmp_path / "token", b"a guess")
    command.configure(address, (pair.place / "inner" if inside else pair.keys) / AUTHORITY, tmp_path / "token")
    return command


def comes_in(trial: LocalFederation, key: Path) -> bool:
    """Whether a SuperNode with this key is let in; it is a process of the trial, under a number that no client has."""
    trial.start_node(7, key=key)
    try:
        trial.processes.wait_until("node-7", lambda: "SuperNode ID:" in trial.processes.log("node-7"))
    except UserError:
        return False
    return trial.processes.stop("node-7") == ["node-7"]


@pytest.mark.slow
def test_a_stranger_registers_no_key(pair: LocalFederation, stranger: FlowerCommand, tmp_path: Path) -> None:
    """Neither who knows the address and has ca.crt, nor another user of the machine."""
    write_certificates(tmp_path / "keys", [HOST], 1)
    key = node_key(tmp_path / "keys", 0)
    assert not comes_in(pair, key)
    with pytest.raises(UserError, match="flwr supernode failed"):
        stranger.register(read_public(key.with_suffix(".key.pub")))
    pair.flwr.register(read_public(key.with_suffix(".key.pub")))  # the operator, but nobody has enrolled it
    assert not comes_in(pair, key)


def test_a_stranger_runs_no_code(stranger: FlowerCommand, tmp_path: Path) -> None:
    """A run is code on the server and on every node; against a SuperLink without a door it works, see test_door."""
    app, proof = evil_app(tmp_path)
    with pytest.raises(UserError, match="flwr run failed"):
        stranger.run(app, {"proof": str(proof)}, lambda line: None)
    assert not list(proof.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedssd", "fedavg", "moon", "scaffold", "fedcurv"])
def test_methods_are_the_simulation(trial: LocalFederation, tmp_path: Path, method: str) -> None:
    assert_same_as_simulated(trial, tmp_path / "run", f"method={method}", rounds=3)


@pytest.mark.slow
def test_ten_rounds_reach_the_simulation_s_accuracy(trial: LocalFederation, tmp_path: Path) -> None:
    """FedSSD on digits with the convolutional network, long enough to learn something."""
    changes = "rounds=10 epochs=2 model=cnn-small batch=32 lr=0.05"
    run = tmp_path / "run"
    outcome = trial.run({"out": str(run), "set": changes, "wait": 60.0, "round-timeout": 120.0})
    assert outcome.completed
    theirs = run_recipe(recipe_of(trial.app / "recipe.toml", changes))
    ours = [json.loads(line) for line in (run / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
    assert [line["global"]["acc"] for line in ours] == [line.accuracy for line in theirs.rounds]
    assert ours[-1]["global"]["acc"] > 0.5
