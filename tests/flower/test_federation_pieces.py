"""The pieces of a federation, each alone: samples, settings, certificates, the app's folder, the audit, the imports."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import shlex
import stat
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from PIL import Image

import fedssd.flower
from fedssd.cli import main
from fedssd.errors import UserError
from fedssd.flower.app import settings_in, write_app
from fedssd.flower.certificates import node_key, write_certificates
from fedssd.flower.messages import Kind
from fedssd.flower.samples import deal, read_node, read_server
from fedssd.flower.settings import Settings, recipe_of, settings_of
from fedssd.recipe import load_recipe
from fedssd.simulation.setup import assemble

SOURCE = Path(__file__).resolve().parents[2] / "src" / "fedssd"
TABLE = Kind((2,), "float32", ("cat", "dog", "owl"))


def imports_of(file: Path) -> set[str]:
    """The modules a file names in its import statements, wherever they stand."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.quick
def test_flower_is_imported_in_three_places_for_what_each_needs() -> None:
    users = {
        str(file.relative_to(SOURCE)): names
        for file in SOURCE.rglob("*.py")
        if (names := {name for name in imports_of(file) if name.split(".")[0] == "flwr"})
    }
    assert users == {
        "flower/library.py": {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"},
        "flower/wire.py": {"flwr.proto.fab_pb2", "flwr.proto.fleet_pb2", "flwr.proto.node_pb2"},  # what travels
        "flower/superlink.py": {  # Flower's abstract class for who may give orders, and what it is told in
            "flwr.common.constant",
            "flwr.supercore.auth.typing",
            "flwr.superlink.auth_plugin",
        },
    }


def test_a_simulation_does_not_import_flower() -> None:
    code = (
        "import sys, fedssd, fedssd.cli.federation; "
        "fedssd.run('fedavg', rounds=1, epochs=1, clients=2, auxiliary=2, model='mlp'); "
        "assert not [m for m in sys.modules if m.split('.')[0] in ('flwr', 'grpc', 'cryptography')]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("module", "name"), [("node", "client_app"), ("server", "server_app")])
def test_the_app_folder_of_an_older_release_still_finds_its_apps(module: str, name: str) -> None:
    sys.modules.pop(f"fedssd.deployment.{module}", None)
    with pytest.warns(FutureWarning, match=f"import {name} from there"):
        former = importlib.import_module(f"fedssd.deployment.{module}")
    assert getattr(former, name) is getattr(fedssd.flower, name)


def test_the_pin_is_said_once() -> None:
    from fedssd.flower.command import PINNED

    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["optional-dependencies"]["flower"] == [f"flwr=={PINNED}"]
    assert f"flwr=={PINNED}\n" in (SOURCE.parents[1] / "constraints.txt").read_text(encoding="utf-8")


def test_another_flower_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedssd.flower import command

    assert (command.another_version() is None) == (importlib.metadata.version("flwr") == command.PINNED)
    monkeypatch.setattr(command, "version", lambda name: "9.9.9")
    assert command.another_version() == f"fedssd is tested with Flower {command.PINNED}, this is 9.9.9"


def test_dealt_samples_are_the_simulation_s(tmp_path: Path) -> None:
    recipe = load_recipe(None, {"clients": 4, "auxiliary": 5, "partition": "classes:3", "model": "mlp"})
    files = deal(recipe, tmp_path)
    federation = assemble(recipe)
    data, rows = federation.dataset, federation.partition.clients
    kind = Kind(data.shape, "uint8" if data.x_train.dtype == torch.uint8 else "float32", data.classes)
    for client, file in enumerate(files):
        x, y = read_node(file, kind)
        assert torch.equal(x, data.x_train[rows[client]])
        assert torch.equal(y, data.y_train[rows[client]])
    server = read_server(tmp_path / "server" / "samples.npz", recipe)
    assert server.kind == kind
    assert torch.equal(server.test[0], data.x_test)
    assert server.auxiliary is not None
    assert federation.auxiliary is not None
    assert torch.equal(server.auxiliary[1], federation.auxiliary.y)
    assert torch.equal(federation.pipeline.test(server.auxiliary[0], torch.float32), federation.auxiliary.x)


def test_a_node_s_table_is_scaled_by_the_server_s_columns(tmp_path: Path) -> None:
    """Mean 2 and deviation 1 at the server: the node's 5 becomes 3, whatever its own mean is."""
    (tmp_path / "server.csv").write_text("a,b,label\n1,7,cat\n3,7,dog\n1,7,owl\n3,7,cat\n1,7,dog\n3,7,owl\n")
    (tmp_path / "node.csv").write_text("a,b,label\n5,8,owl\n2,7,cat\n")
    server = read_server(tmp_path / "server.csv", load_recipe(None, {"auxiliary": 1, "model": "mlp"}))
    assert server.kind.classes == ("cat", "dog", "owl")
    assert server.kind.mean == (2.0, 7.0)
    x, y = read_node(tmp_path / "node.csv", server.kind)
    assert x.tolist() == [[3.0, 1.0], [0.0, 0.0]]  # a constant column has deviation 1
    assert y.tolist() == [2, 0]
    assert server.auxiliary is not None
    assert len(server.auxiliary[1]) == 3
    assert len(server.test[1]) == 3


def test_the_recipe_names_the_label_of_every_machine_s_table(tmp_path: Path) -> None:
    (tmp_path / "server.csv").write_text("a,kind,b\n1,cat,7\n3,dog,7\n1,cat,7\n3,dog,7\n")
    (tmp_path / "node.csv").write_text("a,kind,b\n5,dog,8\n2,cat,7\n")
    recipe = load_recipe(None, {"auxiliary": 1, "model": "mlp", "label": "kind"})
    server = read_server(tmp_path / "server.csv", recipe)
    assert (server.kind.classes, server.kind.mean) == (("cat", "dog"), (2.0, 7.0))
    assert read_node(tmp_path / "node.csv", server.kind, recipe.label)[1].tolist() == [1, 0]
    with pytest.raises(UserError, match="got a, kind, b"):
        read_node(tmp_path / "node.csv", server.kind)


def test_a_node_s_folder_may_lack_classes(tmp_path: Path) -> None:
    for name in ("dog", "owl"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "1.png")
    kind = Kind((3, 8, 8), "uint8", ("cat", "dog", "owl"))
    assert read_node(tmp_path, kind)[1].tolist() == [1, 2]
    (tmp_path / "wolf").mkdir()
    with pytest.raises(UserError, match="named after the classes cat, dog, owl"):
        read_node(tmp_path, kind)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": np.zeros((3, 4), np.float32), "y": np.zeros(3, np.int64)}, r"expected samples of float32 \[2\]"),
        ({"x": np.zeros((3, 2), np.float32), "y": np.array([0, 1, 3])}, "expected labels in 0…2"),
        ({"x": np.zeros((3, 2), np.float32), "y": np.zeros(2, np.int64)}, "3 samples and 2 labels"),
        ({"x": np.full((1, 2), np.nan, np.float32), "y": np.zeros(1, np.int64)}, "expected finite features"),
        ({"x": np.zeros((3, 2), np.float32)}, "add 'y'"),
    ],
)
def test_samples_that_do_not_fit_are_refused(arrays: dict[str, Any], reason: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "node.npz", **arrays)
    with pytest.raises(UserError, match=reason):
        read_node(tmp_path / "node.npz", TABLE)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"min-nodes": -1}, "min-nodes expects 0 or more"),
        ({"min-nodes": "two"}, "min-nodes expects a whole number"),
        ({"wait": 0}, "wait expects seconds above 0"),
        ({"round-timeout": float("inf")}, "round-timeout expects seconds above 0"),
        ({"weighting": "equals"}, "did you mean 'equal'"),
        ({"out": 3}, "out expects text"),
    ],
)
def test_bad_settings_are_one_line(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        settings_of(config)


def test_an_app_holds_its_recipe_and_every_setting(tmp_path: Path) -> None:
    recipe = load_recipe(None, {"method": "moon", "clients": 3})
    write_app(tmp_path / "My Lab", recipe, Settings(min_nodes=2, weighting="equal"))
    project = tomllib.loads((tmp_path / "My Lab" / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["name"] == "my-lab"
    assert settings_of(project["tool"]["flwr"]["app"]["config"]) == Settings(min_nodes=2, weighting="equal")
    assert settings_in(tmp_path / "My Lab") == Settings(min_nodes=2, weighting="equal")
    assert recipe_of(tmp_path / "My Lab" / "recipe.toml") == recipe
    assert recipe_of(tmp_path / "My Lab" / "recipe.toml", "rounds=7 moon.mu=0.5").rounds == 7
    with pytest.raises(UserError, match="new or empty folder"):
        write_app(tmp_path / "My Lab", recipe, Settings())


def test_certificates_say_who_the_server_is(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    made = write_certificates(keys, ["192.0.2.1", "server.example"], 2, days=30)
    authority = x509.load_pem_x509_certificate((keys / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((keys / "server.pem").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.1"]
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert 29 <= (server.not_valid_after_utc - datetime.now(UTC)).days <= 30
    public = server.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert public.curve.name == "secp384r1"
    for file in made:
        private = file.suffix in (".key", ".secret", ".token", ".json")
        assert stat.S_IMODE(file.stat().st_mode) == (0o600 if private else 0o644), file
    assert node_key(keys, 1).read_bytes().startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    before = node_key(keys, 0).read_bytes()
    with pytest.raises(UserError, match="exists already"):
        write_certificates(keys, ["192.0.2.1"], 2)
    assert node_key(keys, 0).read_bytes() == before


def test_the_commands_to_go_on_with_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = str(tmp_path / "a lab's $HOME")
    assert main(["federation", "init", app, "--clients", "3"]) == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("next:")]
    up, run = (shlex.split(command) for command in line.removeprefix("next:").split(", then "))
    assert (up[-2:], run[-2:]) == (["up", app], ["run", app])


@pytest.mark.parametrize("method", ["fedavg", "fedssd", "scaffold", "fedcurv"])
def test_the_audit_counts_what_a_round_records(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Tensors in the audit × clients are the bytes a simulated round moves."""
    import fedssd

    given = {"rounds": 1, "epochs": 1, "clients": 3, "auxiliary": 2, "model": "mlp"}
    flags = [word for key, value in given.items() for word in (f"--{key}", str(value))]
    assert main(["federation", "audit", "--method", method, *flags, "--json"]) == 0
    items = json.loads(capsys.readouterr().out)
    tensors = {
        way: sum(i["bytes"] for i in items if i["direction"] == way and i["what"].endswith("]"))
        for way in ("up", "down")
    }
    (line,) = fedssd.run(method, **given).rounds
    assert (3 * tensors["up"], 3 * tensors["down"]) == (line.bytes_up, line.bytes_down)


def test_the_audit_names_everything_a_message_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """The values beside the tensors are those of the messages, by their keys."""
    flags = ["--method", "fedssd", "--clients", "3", "--auxiliary", "2"]
    assert main(["federation", "audit", *flags, "--json"]) == 0
    items = json.loads(capsys.readouterr().out)
    named = [i for i in items if not i["what"].endswith("]")]
    values = {way: {i["name"] for i in named if i["direction"] == way} for way in ("up", "down")}
    assert values["down"] == {"run", "round", "accepted", "shape", "dtype", "classes"}
    beside = {"client", "round", "fresh", "num-examples", "seconds"}
    assert values["up"] - beside == {f"figure/{name}" for name in ("entropy", "penalty", "weight", "active", "count")}
    tensors = [i["name"] for i in items if i["direction"] == "up" and "[" in i["what"]]
    assert len(tensors) == 8  # cnn-small: weight and bias of four layers


def test_the_audit_of_an_app_looks_at_its_server_s_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "server.csv").write_text("a,b,label\n" + "1,7,cat\n3,7,dog\n2,6,owl\n" * 4)
    flags = ["--method", "fedssd", "--clients", "2", "--auxiliary", "1", "--model", "mlp"]
    app = str(tmp_path / "lab")
    assert main(["federation", "init", app, *flags, "--server-data", str(tmp_path / "server.csv")]) == 0
    capsys.readouterr()
    assert main(["federation", "audit", app, "--json"]) == 0
    items = {(i["direction"], i["name"]): i["what"] for i in json.loads(capsys.readouterr().out)}
    assert items["down", "credibility"] == "float32 [3, 3]"
    assert items["up", "update/params/body.1.weight"] == "float32 [128, 2]"


def test_commands_answer_mistakes_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app, fresh = str(tmp_path / "lab"), str(tmp_path / "fresh")
    assert main(["federation", "init", app, "--clients", "3"]) == 0
    for words, reason in (
        (["init", app], "new or empty folder"),
        (["up", str(tmp_path)], "made by `fedssd federation init`"),
        (["up", app, "--nodes", "4"], "--nodes expects 1 to 3"),
        (["init", fresh, "--faults", "nan=1"], "faults is for simulations"),
        (["init", fresh, "--on-bad-update", "keep"], "on_bad_update = keep is for simulations"),
        (["certs", fresh, "--nodes", "-1"], "--nodes expects 0 to 10000, got -1"),
        (["certs", fresh, "--nodes", "1000000000"], "--nodes expects 0 to 10000"),
        (["certs", fresh, "--days", "999999999"], "--days expects 1 to 36500"),
        (["certs", fresh, "--host", "ä"], "expected a host name"),
        (["certs", fresh, "--host", ""], "expected a host name"),
        (["certs", fresh, "--host", "a b"], "expected a host name"),
        (["certs", fresh, "--host", "https://server.example"], "without scheme or port"),
        (["certs", fresh, "--host", "server.example:8443"], "without scheme or port"),
        (["run", app, "--weighting", "fair"], "weighting"),
        (["run", app], "no federation is up"),
        (["audit", app, "--recipe", "recipe.toml"], "not both"),
    ):
        capsys.readouterr()
        assert main(["federation", *words]) == 2
        said = capsys.readouterr().err
        assert reason in said
        assert said.count("\n") == 1
    assert not Path(fresh).exists()
    assert main(["federation", "down", app]) == 0
    assert "nothing was running" in capsys.readouterr().out
