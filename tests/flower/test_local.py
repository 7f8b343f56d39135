"""A federation on one machine before anything is started: its samples, its keys and what its programs are told."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.common.config import parse_config_args

from fedssd.cli import main
from fedssd.errors import UserError
from fedssd.flower.app import write_app
from fedssd.flower.certificates import node_key
from fedssd.flower.command import Ending, FlowerCommand
from fedssd.flower.local import SUPEREXEC, SUPERLINK, LocalFederation
from fedssd.flower.messages import Kind
from fedssd.flower.private_files import write_new
from fedssd.flower.processes import Processes
from fedssd.flower.samples import read_node
from fedssd.flower.settings import Settings, recipe_of
from fedssd.recipe import Recipe, load_recipe
from fedssd.simulation.setup import assemble

SMALL = {"clients": 2, "partition": "iid", "auxiliary": 8, "model": "mlp", "device": "cpu"}
DIGITS = Kind((1, 8, 8), "float32", tuple("0123456789"))
OWN = """
from dataclasses import dataclass

from fedssd.methods.moon import MOON


@dataclass(frozen=True)
class Mine(MOON):
    pass
"""
ODD = 'a "lab"\'s \\ 😀 #1'


def made_ready(app: Path, **changes: Any) -> LocalFederation:
    """The trial of an app whose recipe was just written, as `up` has it before it starts something."""
    app.mkdir(exist_ok=True)
    (app / "federation_app.py").touch()
    (app / "recipe.toml").write_text(load_recipe(None, {**SMALL, **changes}).to_toml(), encoding="utf-8")
    trial = LocalFederation(app)
    trial._prepare(lambda text: None)
    return trial


def assert_nodes_hold_the_simulation_s(trial: LocalFederation) -> None:
    federation = assemble(trial.recipe)
    assert len(list(trial.samples.glob("node-*"))) == trial.recipe.clients
    for client, rows in enumerate(federation.partition.clients):
        x, y = read_node(trial.samples / f"node-{client}" / "samples.npz", DIGITS)
        assert torch.equal(x, federation.dataset.x_train[rows])
        assert torch.equal(y, federation.dataset.y_train[rows])
        assert node_key(trial.keys, client).is_file()


def test_a_changed_recipe_is_dealt_out_anew(tmp_path: Path) -> None:
    """Otherwise a federation that is brought up again would train on what an earlier recipe gave its nodes."""
    for changes in ({}, {"partition": "classes:5"}, {"seed": 3}, {"clients": 3}, {"clients": 2}):
        assert_nodes_hold_the_simulation_s(made_ready(tmp_path / "app", **changes))


def test_samples_of_somebody_s_own_stay(tmp_path: Path) -> None:
    app = tmp_path / "lab"
    own = app / ".federation" / "samples" / "node-0" / "samples.npz"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"mine")
    made_ready(app)
    assert own.read_bytes() == b"mine"


def test_what_was_half_dealt_out_is_dealt_out_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Recipe, folder: Path) -> None:
        (folder / "node-0").mkdir(parents=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedssd.flower.local.deal", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made_ready(tmp_path / "other")
    assert_nodes_hold_the_simulation_s(made_ready(tmp_path / "other"))


def test_keys_stay_as_long_as_they_are_whole(tmp_path: Path) -> None:
    keys = made_ready(tmp_path / "app").keys
    before = {file.name: file.read_bytes() for file in keys.iterdir()}
    made_ready(tmp_path / "app")
    assert {file.name: file.read_bytes() for file in keys.iterdir()} == before
    (keys / "node-1.key.pub").unlink()  # as a start leaves them that was killed
    made_ready(tmp_path / "app")
    after = {file.name: file.read_bytes() for file in keys.iterdir()}
    assert after.keys() == before.keys()
    assert all(after[name] != before[name] for name in before)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ("partition=classes:5", "dealt out by partition = iid, and this run has classes:5"),
        ("clients=3", "dealt out by clients = 2, and this run has 3"),
        ("seed=1", "set partition_seed = 0"),
        ("seed=1 partition_seed=0 rounds=7 method=moon", ""),
    ],
)
def test_a_run_has_the_samples_its_recipe_says(
    changes: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = made_ready(tmp_path / "app")
    monkeypatch.setattr(trial.processes, "running", lambda: [SUPERLINK, SUPEREXEC])
    monkeypatch.setattr(trial.flwr, "run", lambda app, settings, hear: Ending("1", "finished:completed", ""))
    if reason:
        with pytest.raises(UserError, match=reason):
            trial.run({"set": changes})
    else:
        assert trial.run({"set": changes}).completed


def test_what_is_set_reaches_the_run_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = made_ready(tmp_path / "app").app
    monkeypatch.setattr(Processes, "running", lambda processes: [SUPERLINK, SUPEREXEC])
    assert main(["federation", "run", str(app), "--set", "data=it's a file.npz", "--set", "rounds=7"]) == 2
    assert "data = digits, and this run has it's a file.npz:" in capsys.readouterr().err
    with pytest.raises(UserError, match="No closing quotation"):
        recipe_of(app / "recipe.toml", "data=it's")


def test_an_app_finds_its_user_s_files_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's programs run in folders of their own, and what is above the app does not travel with it."""
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    x, y = np.zeros((20, 1, 8, 8), np.float32), np.arange(20) % 2
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    monkeypatch.chdir(tmp_path)
    flags = ["--method", "fedprox+mine.py:Mine", "--data", "own.npz", "--clients", "2", "--auxiliary", "1"]
    assert main(["federation", "init", "app", *flags]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    recipe = recipe_of(tmp_path / "app" / "recipe.toml")
    assert recipe.data == str(tmp_path / "own.npz")
    assert recipe.method == f"fedprox+{tmp_path}/mine.py:Mine"
    LocalFederation(tmp_path / "app")._prepare(lambda text: None)


def test_half_a_federation_is_ended_before_it_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SuperLink that was killed leaves the others running: neither command sends its user to the other in vain."""
    trial = made_ready(tmp_path / "app")
    monkeypatch.setattr(trial.processes, "running", lambda: [SUPEREXEC, "node-0"])
    with pytest.raises(UserError, match="has ended: start it with `fedssd federation down`, then `up`"):
        trial.run({})
    with pytest.raises(UserError, match="up in part, so end it with `fedssd federation down` first: superexec, node-0"):
        trial.up()


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    """What Flower reads of a node's configuration, of its own and of an app is what was meant."""
    app = tmp_path / ODD
    write_app(app, load_recipe(None, SMALL), Settings(server_data=str(app)))
    project = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["flwr"]["app"]["config"]["server-data"] == str(app)
    trial = LocalFederation(app)
    config = parse_config_args([trial._node_config(1)])
    data, state = app / ".federation" / "samples" / "node-1" / "samples.npz", app / ".federation" / "node-1" / "state"
    assert config == {"partition-id": 1, "data-path": str(data), "state-path": str(state)}
    flwr = FlowerCommand(tmp_path / "home", "trial")
    write_new(tmp_path / "token", b"a token")
    flwr.configure("127.0.0.1:1", app / "ca.crt", tmp_path / "token")
    known = tomllib.loads((tmp_path / "home" / "config.toml").read_text(encoding="utf-8"))
    assert known["superlink"]["trial"]["root-certificates"] == str(app / "ca.crt")
