"""Attacks from another machine on a plain SuperLink, where they work, and on ours, where they do not."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from evil import evil_app
from network import Apart, two_machines
from signing import Key

from fedssd.flower.certificates import node_key, write_certificates
from fedssd.flower.command import environment, program

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
UNTIL_ENDED = '"$@" & pid=$!; cat > /dev/null; kill $pid; wait $pid'  # whatever kills the tests ends the program


@dataclass
class Place:
    """A SuperLink on the server's machine, its keys, and what another machine can try against it."""

    net: Apart
    folder: Path
    port: int
    stack: ExitStack
    logs: dict[str, Path] = field(default_factory=dict)

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    @property
    def address(self) -> str:
        return f"{self.net.server}:{self.port}"

    def begin(self, name: str, where: tuple[str, ...], command: list[str]) -> None:
        """Start a program on one of the machines, and end it with the tests."""
        self.logs[name] = self.folder / f"{name}.log"
        log = self.stack.enter_context(self.logs[name].open("wb"))
        words = ["sh", "-c", UNTIL_ENDED, "sh", *where, *command]
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(self.folder / name),
            cwd=self.folder,
            start_new_session=True,
        )

        def end() -> None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)

        self.stack.callback(end)

    def said(self, name: str) -> str:
        """All a program has said."""
        return self.logs[name].read_text(encoding="utf-8", errors="replace")

    def try_(self, what: str, *keys: Path, inside: bool = False, **other: Any) -> Any:
        """Run an attack on the other machine, or on the server's own; what came of it."""
        where = self.net.at_server if inside else self.net.outside
        host, port = other.get("host", self.net.server), other.get("port", self.port)
        own = (host, host) if inside else (self.net.bad, self.net.good)
        authority = other.get("authority", self.keys / "ca.crt")
        words = [*where, sys.executable, str(HERE / "attacks.py"), what, host, str(port), str(authority), *own]
        done = subprocess.run([*words, *map(str, keys)], capture_output=True, text=True)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def flwr(self, name: str, where: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
        """Flower's own command, with nothing but the address and ca.crt, or with what a name's home has."""
        home = self.folder / name
        if not (home / "config.toml").exists():
            home.mkdir()
            text = f'[superlink]\ndefault = "x"\n[superlink.x]\naddress = "{self.address}"\n'
            (home / "config.toml").write_text(f'{text}root-certificates = "{self.keys / "ca.crt"}"\n', encoding="utf-8")
        command = [*where, program("flwr"), *words]
        return subprocess.run(command, env=environment(home), cwd=self.folder, capture_output=True, text=True)


def until(true: Callable[[], Any], what: str, seconds: float = 300.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.2)


@contextmanager
def place(folder: Path) -> Iterator[Place]:
    """Two machines, with keys for two nodes at the server."""
    with two_machines() as net, ExitStack() as stack:
        port = 8443
        if not net.real:
            with socket.socket() as probe:
                probe.bind((net.server, 0))
                port = probe.getsockname()[1]
        write_certificates(folder / "keys", [net.server, "127.0.0.1", "localhost"], 3)
        for name in ("stranger", "registered"):
            Key().write(folder / f"{name}.key")
        yield Place(net, folder, port, stack)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Flower's SuperLink as its documentation starts it, with TLS and node authentication."""
    with place(tmp_path_factory.mktemp("plain")) as found:
        keys = found.keys
        secret = ["--superexec-auth-secret-file", str(keys / "superexec.secret")]
        command = [program("flower-superlink"), "--host", found.net.server, "--port", str(found.port)]
        command += ["--isolation", "process", "--enable-supernode-auth", "--ssl-ca-certfile", str(keys / "ca.crt")]
        command += ["--ssl-certfile", str(keys / "server.pem"), "--ssl-keyfile", str(keys / "server.key"), *secret]
        found.begin("superlink", found.net.at_server, command)
        until(lambda: "Application startup complete" in found.said("superlink"), "the SuperLink starts")
        command = [program("flower-superexec"), "--runtime-api-address", found.address]
        found.begin("superexec", found.net.at_server, [*command, "--root-certificates", str(keys / "ca.crt"), *secret])
        for node in range(3):
            public = f"{node_key(keys, node)}.pub"
            assert found.flwr("operator", found.net.at_server, "supernode", "register", public).returncode == 0
        command = [program("flower-supernode"), "--superlink", found.address, "--node-config", "partition-id=2"]
        command += ["--root-certificates", str(keys / "ca.crt"), "--auth-supernode-private-key", str(node_key(keys, 2))]
        found.begin("node", found.net.outside, command)
        until(lambda: "SuperNode ID:" in found.said("node"), "a node comes in")
        yield found


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """`fedssd federation serve`."""
    with place(tmp_path_factory.mktemp("ours")) as found:
        command = [sys.executable, "-m", "fedssd", "federation", "serve", str(found.keys)]
        command += ["--host", found.net.server, "--port", str(found.port), "--state", str(found.folder / "state")]
        command += ["--reply-mb", "10"]
        found.begin("serve", found.net.at_server, command)
        until(lambda: f"door: https://{found.address}" in found.said("serve"), "the server starts")
        assert "https://127" not in found.said("serve").replace(found.address, "")
        yield found


def inner(found: Place) -> dict[str, Any]:
    """How the SuperLink behind the door is reached by who knows everything but the token."""
    book = json.loads((found.folder / "state" / "processes.json").read_text(encoding="utf-8"))
    authority = found.folder / "state" / "inner" / "ca.crt"
    return {"host": "127.0.0.1", "port": book["superlink"]["port"], "authority": authority}


def test_paths_that_are_no_node_s_business(plain: Place, ours: Place) -> None:
    open_, shut = plain.try_("paths"), ours.try_("paths")
    assert [open_[f"GET {path}"] for path in ("/docs", "/openapi.json", "/health")] == [200] * 3
    assert open_["POST /v1/control/list-nodes"] == 200
    assert open_["POST /v1/runtime/get-nodes"] != 404
    assert open_["POST /v1/fleet/register-node"] != 404
    assert list(open_.values()).count(404) < len(open_) / 2  # of the ways around, Flower knows some and not others
    assert shut == dict.fromkeys(open_, 404)


def test_flower_s_own_command_in_a_stranger_s_hands(plain: Place, ours: Place, tmp_path: Path) -> None:
    """Nodes are listed and keys registered, and code runs on the server, with the address and ca.crt alone."""
    app, proof = evil_app(tmp_path)
    config = f'proof="{proof}"'
    key = str(plain.folder / "stranger.key.pub")
    for words in (("supernode", "list"), ("supernode", "register", key), ("run", str(app), "--run-config", config)):
        allowed = plain.flwr("thief", plain.net.outside, *words)
        assert allowed.returncode == 0, allowed.stdout + allowed.stderr
        assert ours.flwr("thief", ours.net.outside, *words).returncode != 0
    until((proof / "server").exists, "a stranger's code runs on the server")
    until((proof / "node-2").exists, "and on a node")
    assert plain.try_("come_in", plain.folder / "stranger.key") == {"node": True}
    assert ours.try_("come_in", ours.folder / "stranger.key") == {"activate": 401}


def test_behind_the_door(plain: Place, ours: Place) -> None:
    """From outside the SuperLink is not there; on its own machine it wants the token."""
    behind = inner(ours)
    if ours.net.real:
        assert ours.try_("reach", port=behind["port"]) == "ConnectionRefusedError"
    assert plain.try_("paths", inside=True)["POST /v1/control/list-nodes"] == 200
    assert ours.try_("paths", inside=True, **behind)["POST /v1/control/list-nodes"] == 401
    assert ours.flwr("keys/operator", ours.net.at_server, "supernode", "list").returncode == 0


def test_a_key_that_the_operator_registered_and_nobody_enrolled(plain: Place, ours: Place) -> None:
    for found, home in ((plain, "operator"), (ours, "keys/operator")):
        public = str(found.folder / "registered.key.pub")
        assert found.flwr(home, found.net.at_server, "supernode", "register", public).returncode == 0
    assert plain.try_("come_in", plain.folder / "registered.key") == {"node": True}
    assert ours.try_("come_in", ours.folder / "registered.key") == {"activate": 401}


def test_headers_that_say_something_wrong(plain: Place, ours: Place) -> None:
    """Flower refuses these itself, and so does the door before it reads a body."""
    for found in (plain, ours):
        keys = [node_key(found.keys, 0), node_key(found.keys, 1), found.folder / "registered.key"]
        got = found.try_("identities", *keys)
        assert got.pop("own") == 200
        if found is plain:
            got.pop("stranger")  # whether it is let in depends on who registered it
        assert set(got.values()) == {401}, got


def test_connections_that_are_held_open(plain: Place, ours: Place) -> None:
    held, given_up = (found.try_("half_open", node_key(found.keys, 0)) for found in (plain, ours))
    print(f"half-open: plain {held}, ours {given_up}, {memory(ours)}")
    assert held["left"] >= 300
    assert (given_up["honest"], given_up["left"]) == (200, 0)


def test_a_body_without_end(plain: Place, ours: Place) -> None:
    swallowed = plain.try_("endless", plain.folder / "stranger.key")
    stranger = ours.try_("endless", ours.folder / "stranger.key")
    client = ours.try_("endless", node_key(ours.keys, 0))
    print(f"a body without end: plain {swallowed}, ours {stranger} and, of a client, {client}, {memory(ours)}")
    assert swallowed["megabytes"] == 64
    assert stranger["megabytes"] < 16
    assert client["megabytes"] < 16
    assert {stranger["status"], client["status"]} <= {401, 413, 0}


def test_a_body_that_does_not_come(plain: Place, ours: Place) -> None:
    assert plain.try_("slow_body", node_key(plain.keys, 0)) == 0
    assert ours.try_("slow_body", node_key(ours.keys, 0)) == 408


def test_objects_without_end(plain: Place, ours: Place) -> None:
    """Of 20 MiB with no message ours takes the 10 a message may have."""
    assert 413 not in plain.try_("objects", node_key(plain.keys, 0))
    found = ours.try_("objects", node_key(ours.keys, 0))
    assert 413 not in found[:2]
    assert found[2:] == [413] * 3


@pytest.mark.parametrize("who", ["a stranger", "a client"])
def test_requests_in_a_flood(who: str, ours: Place) -> None:
    attacker = ours.folder / "stranger.key" if who == "a stranger" else node_key(ours.keys, 1)
    got = ours.try_("flood", attacker, node_key(ours.keys, 0))
    print(f"flood of {who}: {got}, {memory(ours)}")
    assert got["sent"] > 0
    assert set(got["statuses"]) == {"401"} if who == "a stranger" else "200" not in got["statuses"]
    assert set(got["honest"]) == {200}


def memory(found: Place) -> str:
    """The most memory the server's programs have had, all together, and that it is less than a gigabyte."""
    book = json.loads((found.folder / "state" / "processes.json").read_text(encoding="utf-8"))
    peaks = {
        name: int(PEAK.findall(Path(f"/proc/{one['pid']}/status").read_text("utf-8"))[0]) for name, one in book.items()
    }
    assert {"door", "superlink", "superexec"} <= set(peaks)
    assert sum(peaks.values()) < 1 << 20
    return ", ".join(f"{name} {peak >> 10} MiB" for name, peak in peaks.items())
