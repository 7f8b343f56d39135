"""The door of a federation: what of the SuperLink is reached from outside, by whom, and how much of it.

Before a byte of a request's body is read, its path is one of the ten that a node needs, its key is enrolled, and its
signature is that key's. Flower checks that a node speaks with its own key; the door also checks that every message it
pushes names it as the sender, which Flower 1.41 does not. Everything else of the SuperLink (its control and runtime
interfaces, its documentation, registering a key) is not there for whoever comes from outside.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import collections
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedssd.errors import UserError
from fedssd.flower.enrolment import Enrolled, Enrolment
from fedssd.flower.journal import Fact, Journal, Sparing
from fedssd.flower.listener import PER_ADDRESS, Listening, Receive, Scope, Send, serve
from fedssd.flower.relay import RefusedError, Relay, answer, read_body, refuse
from fedssd.flower.wire import DecodeError, PushMessagesRequest

ACTIONS = (
    "activate-node deactivate-node send-node-heartbeat pull-messages push-messages get-run get-fab push-object "
    "pull-object confirm-message-received"
)
FLEET = {f"/v1/fleet/{name}".encode() for name in ACTIONS.split()}  # not register-node and unregister-node
PUSH_MESSAGES, PUSH_OBJECT = b"/v1/fleet/push-messages", b"/v1/fleet/push-object"
AHEAD, BEHIND = 5.0, 305.0  # seconds a node's clock may differ from ours, as Flower has it
SMALL, OBJECT = 1 << 20, 6 << 20  # bytes of a body; Flower cuts arrays into objects of 5 MiB
REPLY = 1 << 30  # bytes of objects a node may push with one message, where nothing smaller is known
RATE, BURST = 200.0, 2000.0  # requests a second, and how many may come at once; a node with a small CNN makes 25
MESSAGES, MESSAGES_AT_ONCE = 1.0, 20.0  # of them pushing messages, each of which makes rows in a database
AT_ONCE = 8  # requests of one client that are worked on; a node makes three


@dataclass
class _Allowance:
    """A bucket that fills at a steady rate, and empties with use."""

    rate: float
    most: float
    left: float = field(init=False)
    _then: float = field(default_factory=lambda: time.monotonic())

    def __post_init__(self) -> None:
        self.left = self.most

    def take(self) -> bool:
        """Take one, if there is one."""
        now = time.monotonic()
        self.left, self._then = min(self.most, self.left + (now - self._then) * self.rate), now
        if self.left < 1:
            return False
        self.left -= 1
        return True


@dataclass
class _Guest:
    """What one client has used."""

    requests: _Allowance = field(default_factory=lambda: _Allowance(RATE, BURST))
    messages: _Allowance = field(default_factory=lambda: _Allowance(MESSAGES, MESSAGES_AT_ONCE))
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    pushed: int = 0  # bytes of objects since its last message


class Door:
    """An ASGI app between nodes and the SuperLink.

    Args:
        enrolment: Who may come in.
        relay: The way to the SuperLink.
        journal: Where refusals go, and who came in.
        reply: How many bytes of objects a node may push with one message.
    """

    def __init__(self, enrolment: Enrolment, relay: Relay, journal: Sparing, reply: int = REPLY) -> None:
        self._enrolment, self._relay, self._journal, self._reply = enrolment, relay, journal, reply
        self._guests: dict[int, _Guest] = collections.defaultdict(_Guest)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        who: Enrolled | None = None
        try:
            who = self._who(scope)
            new = who.client not in self._guests
            guest = self._guests[who.client]
            most = _longest_body(scope)
            self._bound(guest, scope["raw_path"])
            if new:
                self._journal.add("came in", (who.client,), client=who.client, address=_address(scope))
            async with guest.places:
                body = await read_body(receive, most)
                self._check(guest, scope["raw_path"], body)
                status, headers, content = await self._relay.ask(scope, body)
                await answer(send, status, headers, content)
        except RefusedError as error:
            client, address = None if who is None else who.client, _address(scope)
            kind = (error.status, address, client)
            self._journal.add("refused", kind, status=error.status, why=str(error), address=address, client=client)
            await refuse(send, error.status)

    def _who(self, scope: Scope) -> Enrolled:
        """The client whose key has signed a request for a path that exists."""
        if scope["method"] != "POST" or scope["raw_path"] not in FLEET or scope["query_string"]:
            raise RefusedError(404, "not a path of a node")
        key, stamp, signature = (_header(scope["headers"], name) for name in ("public-key", "timestamp", "signature"))
        entry = self._enrolment.of(_decoded(key))
        if entry is None:
            raise RefusedError(401, "a key that is not enrolled")
        if entry.revoked is not None:
            raise RefusedError(401, f"the key of client {entry.client} is revoked")
        age = _age(stamp)
        if not -AHEAD < age < BEHIND:
            raise RefusedError(401, f"signed {-age:.0f} s ahead" if age < 0 else f"signed {age:.0f} s ago")
        try:
            entry.public.verify(_decoded(signature), stamp, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise RefusedError(401, f"not signed with the key of client {entry.client}") from None
        return entry

    def _bound(self, guest: _Guest, path: bytes) -> None:
        if not guest.requests.take():
            raise RefusedError(429, f"more than {RATE:g} requests a second")
        if path == PUSH_MESSAGES and not guest.messages.take():
            raise RefusedError(429, f"more than {MESSAGES:g} message a second")

    def _check(self, guest: _Guest, path: bytes, body: bytes) -> None:
        """Raise RefusedError for objects without end, and for a message in another's name."""
        if path == PUSH_OBJECT:
            guest.pushed += len(body)
            if guest.pushed > self._reply:
                raise RefusedError(413, f"more than {self._reply} bytes with one message")
        elif path == PUSH_MESSAGES:
            try:
                said = PushMessagesRequest.FromString(body)
            except DecodeError:
                raise RefusedError(400, "not a message of Flower's") from None
            if any(one.metadata.src_node_id != said.node.node_id for one in said.messages_list):
                raise RefusedError(403, "speaks for another node")
            guest.pushed = 0


def _header(headers: Iterable[tuple[bytes, bytes]], name: str) -> bytes:
    """The one value of a header that says who it is; a second one might be what another program reads."""
    found = [value for key, value in headers if key == f"flwr-{name}".encode()]
    if len(found) != 1:
        raise RefusedError(401, f"{len(found)} headers flwr-{name}")
    return found[0]


def _decoded(value: bytes) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise RefusedError(401, "a header that is not base64") from None


def _age(stamp: bytes) -> float:
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(stamp.decode("ascii"))).total_seconds()
    except (ValueError, TypeError, OverflowError):  # TypeError: a time without a zone
        raise RefusedError(401, "a time that cannot be read") from None


def _longest_body(scope: Scope) -> int:
    """How long a body may be; raises RefusedError where its head already says it is longer."""
    most = OBJECT if scope["raw_path"] == PUSH_OBJECT else SMALL
    for name, value in scope["headers"]:
        if name == b"content-length" and (not value.isdigit() or int(value) > most):
            raise RefusedError(413, f"a body of more than {most} bytes")
    return most


def _address(scope: Scope) -> str:
    return str((scope.get("client") or ("unknown",))[0])


def main(words: Sequence[str]) -> None:
    """Open the door of a federation until this process is ended."""
    parser = argparse.ArgumentParser(prog="fedssd.flower.door")
    for name in ("host", "superlink"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("certificate", "key", "enrolment", "authority"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    for name, default in (("port", 8443), ("per-address", PER_ADDRESS), ("reply", REPLY)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(words)

    def say(text: str) -> None:
        print(text, flush=True)

    journal = Journal(args.enrolment.parent, "door", say)

    def note(what: str, **facts: Fact) -> None:
        say(f"{what}: {', '.join(f'{name} {value}' for name, value in facts.items() if value is not None)}")
        journal.add(what, **facts)

    tell = journal.also(say)
    door = Door(
        Enrolment(args.enrolment, tell), Relay(f"https://{args.superlink}", args.authority), Sparing(note), args.reply
    )
    serve(door, Listening(args.host, args.port, args.certificate, args.key, args.per_address), tell)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"fedssd: {error}")
