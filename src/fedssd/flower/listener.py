"""A listener for strangers: TLS, with bounds on what a connection may cost before it has said who it is.

uvicorn bounds neither how long a request's head takes nor how many connections one address holds, and asyncio gives
a TLS handshake a minute. A new certificate is taken in while connections stay.
"""

from __future__ import annotations

import asyncio
import collections
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fedssd.errors import UserError
from fedssd.flower.certificates import SOON, ends

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PROMPT = 10.0  # seconds for a TLS handshake, and for the head of a request
LONGEST_HEAD = 32 << 10  # bytes
IDLE = 10  # seconds a connection may rest between two requests
LOOK = 1.0  # seconds between two looks at the certificate
DAY = 86400.0  # seconds between two warnings of a certificate's end
PER_ADDRESS, ALTOGETHER = 32, 1024  # open connections


@dataclass(frozen=True)
class Listening:
    """Where to listen and as whom.

    Args:
        host: The address to listen on.
        port: Its port.
        certificate: A file with the certificate, in PEM.
        key: A file with its private key.
        per_address: How many connections one address may hold; several nodes may share one.
    """

    host: str
    port: int
    certificate: Path
    key: Path
    per_address: int = PER_ADDRESS


def serve(app: App, where: Listening, tell: Callable[[str], None]) -> None:
    """Serve an app until SIGTERM or SIGINT; ``tell`` hears of a new certificate and of one that cannot be used."""
    _allow_files(2 * ALTOGETHER)
    config = uvicorn.Config(
        app,
        http=_Prompt,
        ws="none",
        lifespan="off",
        ssl_certfile=str(where.certificate),
        ssl_keyfile=str(where.key),
        timeout_keep_alive=IDLE,
        access_log=False,
        server_header=False,
        date_header=False,
        log_level="error",
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"the certificate {where.certificate} cannot be used with {where.key}: {error}") from None
    assert config.ssl is not None
    config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    context = config.ssl

    async def main(door: _Entrance) -> None:
        watches = [asyncio.create_task(watch) for watch in (_renew(context, where, tell), _warn(where, tell))]
        with suppress(KeyboardInterrupt):
            await uvicorn.Server(config).serve(sockets=[door])
        for watch in watches:
            watch.cancel()

    with _open(where) as door, asyncio.Runner(loop_factory=_PromptLoop) as runner:
        runner.run(main(door))


def _open(where: Listening) -> _Entrance:
    try:
        family = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)[0][0]
        door = _Entrance(family, socket.SOCK_STREAM)
        door.per_address = where.per_address
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((where.host, where.port))
        door.listen(128)
        door.setblocking(False)
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen on {where.host} port {where.port}: {error}") from None
    return door


class _Entrance(socket.socket):
    """A listening socket that counts who is in, from before the handshake to the end."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.per_address, self._inside = PER_ADDRESS, collections.Counter[str]()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection of an address that has not too many; others are closed at once."""
        while True:
            handle, peer = self._accept()  # type: ignore[attr-defined]
            guest = _Guest(self.family, self.type, self.proto, fileno=handle)
            address = str(peer[0])
            if self._inside[address] < self.per_address and self._inside.total() < ALTOGETHER:
                guest.enter(self._inside, address)
                return guest, peer
            guest.close()


class _Guest(socket.socket):
    """A connection that is counted until it is closed."""

    _inside: collections.Counter[str] | None = None
    _address = ""

    def enter(self, inside: collections.Counter[str], address: str) -> None:
        """Count this connection among those of its address."""
        self._inside, self._address = inside, address
        inside[address] += 1

    def close(self) -> None:
        """Close and count no longer."""
        inside, self._inside = self._inside, None
        if inside is not None:
            inside[self._address] -= 1
            if not inside[self._address]:
                del inside[self._address]
        super().close()


class _PromptLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait a minute for a handshake."""

    async def create_server(self, *given: Any, **named: Any) -> Any:
        """As asyncio's, with our patience."""
        return await super().create_server(*given, **named, ssl_handshake_timeout=PROMPT)


class _Prompt(HttpToolsProtocol):
    """uvicorn's protocol, which ends a connection whose request does not begin, or does not end its head, in time."""

    _head: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head is not None:
            self._head_bytes += len(data)
            if self._head_bytes > LONGEST_HEAD:
                self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait_for_head()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._head is None:
            self._head_bytes = 0
            self._head = self.loop.call_later(PROMPT, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


async def _renew(context: ssl.SSLContext, where: Listening, tell: Callable[[str], None]) -> None:
    """Take in a new certificate for the connections to come; who is connected stays."""
    seen = _stamp(where)
    while True:
        await asyncio.sleep(LOOK)
        now = _stamp(where)
        if now == seen:
            continue
        try:
            ssl.create_default_context().load_cert_chain(where.certificate, where.key)  # half a pair would spoil ours
            context.load_cert_chain(where.certificate, where.key)
        except (OSError, ssl.SSLError) as error:  # the other file may follow
            tell(f"the new certificate {where.certificate} cannot be used yet: {error}")
        else:
            tell(f"a new certificate is in use: {where.certificate}")
        seen = now


async def _warn(where: Listening, tell: Callable[[str], None]) -> None:
    """Say every day that a certificate ends soon."""
    while True:
        with suppress(UserError):
            if (days := (ends(where.certificate) - datetime.now(UTC)).days) <= SOON:
                tell(f"the certificate {where.certificate} ends in {days} days: renew it")
        await asyncio.sleep(DAY)


def _stamp(where: Listening) -> list[int]:
    with suppress(OSError):
        return [
            value for file in (where.certificate, where.key) for value in (file.stat().st_mtime_ns, file.stat().st_ino)
        ]
    return []


def _allow_files(wanted: int) -> None:
    """Let this process hold so many connections, where the machine lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
