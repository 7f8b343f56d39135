"""What the door lets through and what it refuses, asked of the door alone: no SuperLink and no socket is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.node_pb2 import Node
from signing import Key, without

from fedssd.flower import door, relay
from fedssd.flower.door import FLEET, OBJECT, SMALL, Door
from fedssd.flower.enrolment import FILE, Enrolled, Enrolment, revoke, write_enrolment
from fedssd.flower.journal import Sparing
from fedssd.flower.listener import Scope

PULL, PUSH, OBJECTS = (f"/v1/fleet/{name}" for name in ("pull-messages", "push-messages", "push-object"))
OURS, THEIRS = Key(), Key()


class Upstream:
    """Stands for the SuperLink: it keeps what came through."""

    def __init__(self) -> None:
        self.got: list[tuple[bytes, bytes]] = []

    async def ask(self, scope: Scope, body: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        self.got.append((scope["raw_path"], body))
        return 200, [(b"content-type", b"application/protobuf")], b"answered"


class House:
    """A door with two clients, and what is behind it."""

    def __init__(self, folder: Path, reply: int = 1 << 30) -> None:
        self.file = folder / FILE
        write_enrolment(self.file, [Enrolled(0, OURS.line), Enrolled(1, THEIRS.line)])
        self.behind, self.told = Upstream(), list[str]()
        enrolment = Enrolment(self.file, self.told.append)
        self.door = Door(enrolment, self.behind, Sparing(self._note), reply)  # type: ignore[arg-type]

    def _note(self, what: str, **facts: Any) -> None:
        self.told.append(f"{what} {facts}")

    def ask(self, path: str, headers: Any = None, content: Any = b"", method: str = "POST") -> int:
        """The status of one request."""
        return self.ask_all([(path, headers, content, method)])[0]

    def ask_all(self, requests: list[tuple[str, Any, Any, str]]) -> list[int]:
        async def go() -> list[int]:
            transport = httpx.ASGITransport(self.door)
            async with httpx.AsyncClient(transport=transport, base_url="https://door") as client:
                found = []
                for path, headers, content, method in requests:
                    reply = await client.request(method, path, headers=headers, content=content)
                    assert reply.status_code == 200 or not reply.content, "a refusal says nothing"
                    found.append(reply.status_code)
                return found

        return asyncio.run(go())


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def message(node: int, sender: int) -> bytes:
    said = PushMessagesRequest(node=Node(node_id=node))
    said.messages_list.add().metadata.src_node_id = node
    said.messages_list.add().metadata.src_node_id = sender
    return said.SerializeToString()


def test_the_ten_paths_of_a_node_go_through(house: House) -> None:
    assert len(FLEET) == 10
    for path in FLEET:
        assert house.ask(path.decode(), OURS.headers(), message(7, 7)) == 200
    assert {path for path, _ in house.behind.got} == FLEET
    assert any("came in" in line for line in house.told)


@pytest.mark.parametrize(
    "path",
    [
        "/docs",
        "/openapi.json",
        "/health",
        "/",
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/pull-app-messages",
        "/v1/runtime/responses",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/%70ull-messages",
        "//v1/fleet/pull-messages",
        "/v1/fleet/pull-messages/",
        "/v1/fleet/%2e%2e/control/start-run",
        "/V1/fleet/pull-messages",
        "/v1/fleet/pull-messages?x=1",
    ],
)
def test_nothing_else_is_there_even_for_a_client(path: str, house: House) -> None:
    assert house.ask(path, OURS.headers()) == 404
    assert not house.behind.got


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH"])
def test_nothing_but_a_post(method: str, house: House) -> None:
    assert house.ask(PULL, OURS.headers(), method=method) == 404


Headers = Callable[[], list[tuple[str, str]]]


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        (lambda: [], "0 headers flwr-public-key"),
        (lambda: Key().headers(), "not enrolled"),
        (lambda: OURS.headers(public=THEIRS.pem), "not signed with the key of client 1"),
        (lambda: OURS.headers(ahead=-400), "signed 400 s ago"),
        (lambda: OURS.headers(ahead=20), "ahead"),
        (lambda: OURS.headers() + THEIRS.headers()[:1], "2 headers flwr-public-key"),
        (lambda: OURS.headers() + OURS.headers()[1:2], "2 headers flwr-timestamp"),
        (lambda: without(OURS.headers(), "flwr-signature"), "0 headers flwr-signature"),
        (lambda: [*without(OURS.headers(), "flwr-signature"), ("flwr-signature", "é")], "base64"),
        (lambda: [*without(OURS.headers(), "flwr-signature"), ("flwr-signature", "AAAA")], "not signed"),
        (lambda: [*without(OURS.headers(), "flwr-timestamp"), ("flwr-timestamp", "now")], "cannot be read"),
        (lambda: [*without(OURS.headers(), "flwr-timestamp"), ("flwr-timestamp", "2026-01-01T00:00:00")], "cannot be"),
        (lambda: [*without(OURS.headers(), "flwr-timestamp"), ("flwr-timestamp", "9" * 5000)], "cannot be read"),
    ],
)
def test_who_is_not_a_client_is_refused_before_the_body(headers: Headers, why: str, house: House) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    named = [(name, value.encode()) for name, value in headers()]

    async def go() -> int:
        sent: list[Any] = []

        async def send(event: Any) -> None:
            sent.append(event)

        scope = {"type": "http", "method": "POST", "raw_path": PULL.encode(), "query_string": b"", "client": ("a", 1)}
        scope["headers"] = [(name.encode(), value) for name, value in named]
        await house.door(scope, body, send)  # type: ignore[arg-type]
        return int(sent[0]["status"])

    assert asyncio.run(go()) == 401
    assert why in house.told[-1]
    assert not house.behind.got


def test_a_revoked_key_is_out_at_the_next_request(house: House) -> None:
    assert house.ask(PULL, OURS.headers()) == 200
    revoke(house.file, 0)
    assert house.ask(PULL, OURS.headers()) == 401
    assert "the key of client 0 is revoked" in house.told[-1]
    assert house.ask(PULL, THEIRS.headers()) == 200


def test_a_broken_enrolment_leaves_what_was_known(house: House) -> None:
    assert house.ask(PULL, OURS.headers()) == 200
    house.file.write_text("{", encoding="utf-8")
    assert house.ask(PULL, OURS.headers()) == 200
    assert house.ask(PULL, Key().headers()) == 401
    assert len([line for line in house.told if "still holds" in line]) == 1


def test_a_message_in_another_s_name_is_refused(house: House) -> None:
    """Flower 1.41 itself takes it."""
    assert house.ask(PUSH, OURS.headers(), message(7, 8)) == 403
    assert house.ask(PUSH, OURS.headers(), b"\xff\xff") == 400
    assert not house.behind.got
    assert house.ask(PUSH, OURS.headers(), message(7, 7)) == 200


async def pieces(size: int) -> AsyncIterator[bytes]:
    """A body that does not say how long it is."""
    for _ in range(0, size, 1 << 16):
        yield bytes(1 << 16)


@pytest.mark.parametrize(("path", "most"), [(PULL, SMALL), (PUSH, SMALL), (OBJECTS, OBJECT)])
def test_a_body_that_is_too_long_is_refused(path: str, most: int, house: House) -> None:
    assert house.ask(path, OURS.headers(), bytes(most + 1)) == 413
    assert house.ask(path, OURS.headers(), pieces(most + 1)) == 413
    assert not house.behind.got


def test_a_message_has_so_many_bytes_of_objects(tmp_path: Path) -> None:
    house = House(tmp_path, reply=10 << 20)
    object_ = (OBJECTS, OURS.headers(), bytes(4 << 20), "POST")
    assert house.ask_all([object_] * 3) == [200, 200, 413]
    push = (PUSH, OURS.headers(), message(7, 7), "POST")
    assert house.ask_all([push, object_, object_, object_]) == [200, 200, 200, 413]


def test_requests_without_end_are_refused_and_others_are_not(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "RATE", 0.0)
    monkeypatch.setattr(door, "BURST", 5.0)
    pull = (PULL, OURS.headers(), b"", "POST")
    assert house.ask_all([pull] * 7) == [200] * 5 + [429] * 2
    assert house.ask(PULL, THEIRS.headers()) == 200


def test_messages_without_end_are_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MESSAGES", 0.0)
    monkeypatch.setattr(door, "MESSAGES_AT_ONCE", 2.0)
    push = (PUSH, OURS.headers(), message(7, 7), "POST")
    assert house.ask_all([push] * 3) == [200, 200, 429]
    assert house.ask(PULL, OURS.headers()) == 200


def test_what_was_used_comes_back_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(door.time, "monotonic", lambda: clock[0])
    allowance = door._Allowance(rate=2.0, most=3.0)
    assert [allowance.take() for _ in range(4)] == [True, True, True, False]
    clock[0] += 1.0
    assert [allowance.take() for _ in range(3)] == [True, True, False]
    clock[0] += 1000.0
    assert [allowance.take() for _ in range(4)] == [True, True, True, False]


def test_a_body_that_does_not_come_is_not_waited_for(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "PIECE", 0.05)
    never = asyncio.Event()

    async def slow() -> dict[str, Any]:
        await never.wait()
        return {}

    async def go() -> int:
        sent: list[Any] = []

        async def send(event: Any) -> None:
            sent.append(event)

        scope = {"type": "http", "method": "POST", "raw_path": PULL.encode(), "query_string": b"", "client": None}
        scope["headers"] = [(name.encode(), value.encode()) for name, value in OURS.headers()]
        await house.door(scope, slow, send)
        return int(sent[0]["status"])

    assert asyncio.run(go()) == 408
