"""Honest federations over the door, on two machines: a new certificate and a revoked key while a run goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from cryptography import x509
from network import two_machines
from safetensors.torch import load_file
from test_door import Place, until

from fedssd.core import tree
from fedssd.flower.app import write_app
from fedssd.flower.approval import approve, read_code
from fedssd.flower.certificates import node_key, renew_server, write_certificates
from fedssd.flower.command import program
from fedssd.flower.enrolment import FILE, revoke
from fedssd.flower.samples import SAMPLES, deal
from fedssd.flower.settings import Settings, recipe_of
from fedssd.recipe import load_recipe
from fedssd.runs.loop import run_recipe

pytestmark = pytest.mark.slow
SMALL = {"rounds": 3, "epochs": 1, "auxiliary": 8, "model": "mlp", "engine": "reference", "device": "cpu"}
CLIENTS, PORT = 3, 8443


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """`federation serve` on one machine and three `federation node` on another."""
    folder = tmp_path_factory.mktemp("lab")
    recipe = load_recipe(None, {**SMALL, "clients": CLIENTS})
    deal(recipe, folder / "samples")
    write_app(folder / "app", recipe, Settings(server_data=str(folder / "samples" / "server" / SAMPLES)))
    with two_machines() as net, ExitStack() as stack:
        found = Place(net, folder, PORT, stack)
        write_certificates(found.keys, [net.server], CLIENTS, passphrase="open sesame")
        fedssd = [sys.executable, "-m", "fedssd", "federation"]
        where = ["--host", net.server, "--port", str(PORT), "--state", str(folder / "state")]
        found.begin("serve", net.at_server, [*fedssd, "serve", str(found.keys), *where])
        until(lambda: "door: https://" in found.said("serve"), "the server starts")
        for node in range(CLIENTS):
            state, samples = folder / f"node-{node}", folder / "samples" / f"node-{node}" / SAMPLES
            approve(state, read_code(folder / "app"))
            command = [*fedssd, "node", found.address, "--client", str(node), "--data", str(samples)]
            command += ["--key", str(node_key(found.keys, node)), "--authority", str(found.keys / "ca.crt")]
            found.begin(f"node {node}", net.outside, [*command, "--state", str(state)])
        for node in range(CLIENTS):
            until(lambda node=node: "is connected" in found.said(f"node {node}"), "the nodes come in")  # type: ignore[misc]
        yield found


def start_run(lab: Place, name: str, changes: str, app: str = "app") -> Path:
    """Start a run on the server; its folder."""
    out = lab.folder / name
    config = f'out="{out}" set="{changes}" wait=60.0 round-timeout=60.0'
    home = ["env", f"FLWR_HOME={lab.keys / 'operator'}"]
    command = [*home, program("flwr"), "run", str(lab.folder / app), "--stream", "--run-config", config]
    lab.begin(name, lab.net.at_server, command)
    return out


def serial_outside(lab: Place) -> int:
    """The serial number of the certificate that a node sees now."""
    code = f"import ssl; print(ssl.get_server_certificate(({lab.net.server!r}, {lab.port})))"
    said = subprocess.run([*lab.net.outside, sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return x509.load_pem_x509_certificate(said.stdout.encode()).serial_number


def test_a_run_over_a_changed_certificate_is_the_simulation_s(lab: Place) -> None:
    before = serial_outside(lab)
    out = start_run(lab, "first", "rounds=3")
    until(lambda: "round 1 of 3" in lab.said("first"), "the first round is over")
    renew_server(lab.keys, [lab.net.server], "open sesame")
    until(lambda: "a new certificate is in use" in lab.said("serve"), "the door takes it in")
    assert "round 3 of 3" not in lab.said("first")
    after = serial_outside(lab)
    assert after != before
    assert after == x509.load_pem_x509_certificate((lab.keys / "server.pem").read_bytes()).serial_number
    until((out / "summary.json").exists, "the run ends", 300)
    theirs = tree.flatten(run_recipe(recipe_of(lab.folder / "app" / "recipe.toml", "rounds=3")).weights)
    ours = load_file(out / "weights.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_code_that_no_node_has_approved_runs_on_none(lab: Place) -> None:
    """One byte more than what was approved; on a node of Flower's alone any code runs, see test_door."""
    shutil.copytree(lab.folder / "app", lab.folder / "changed")
    with (lab.folder / "changed" / "federation_app.py").open("a", encoding="utf-8") as file:
        file.write("\n")
    out = start_run(lab, "unapproved", "rounds=1", "changed")
    for node in range(CLIENTS):
        until(lambda node=node: "code that is not approved" in lab.said(f"node {node}"), "it is refused", 200)  # type: ignore[misc]
    until(lambda: lab.said("unapproved").count("cannot take part") >= CLIENTS, "the run hears of it", 200)
    assert not (out / "weights.safetensors").exists()


def test_a_revoked_node_is_out_and_the_run_goes_on(lab: Place) -> None:
    out = start_run(lab, "second", "rounds=5")
    until(lambda: "round 2 of 5" in lab.said("second"), "the third round begins", 300)
    revoke(lab.keys / FILE, 1)
    until(lambda: "the key of client 1 is revoked" in lab.said("serve"), "the door refuses it", 60)
    until(lambda: "supernode has ended" in lab.said("node 1"), "its SuperNode ends", 60)
    until((out / "summary.json").exists, "the run ends", 400)
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
    assert [line["dropped"] for line in lines[:2]] == [{}, {}]
    assert [line["dropped"] for line in lines[3:]] == [{"1": "its key is revoked"}] * 2
