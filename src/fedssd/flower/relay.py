"""Pass requests on to an upstream server: the body is read whole within bounds first, then the answer."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import httpx

from fedssd.flower.listener import Receive, Scope, Send

PIECE = 30.0  # seconds between two pieces of a body, and for the reader of an answer to take it
WHOLE = 300.0  # seconds for a body
UPSTREAM = 120.0  # seconds for the upstream server's answer
STEP = 256 << 10  # bytes of an answer that are sent at once
LONGEST_ANSWER = 64 << 20  # bytes; Flower's objects have 5 MiB, an app 10 MB
CONNECTIONS = 64  # to the upstream server

Headers = list[tuple[bytes, bytes]]
OURS = {b"host", b"connection", b"content-length", b"transfer-encoding", b"accept-encoding", b"keep-alive", b"expect"}
THEIRS = {b"connection", b"transfer-encoding", b"content-length", b"server", b"date", b"keep-alive"}


class RefusedError(Exception):
    """A request that ends with a status and no content."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Relay:
    """The way to one upstream server, whose certificate an authority of ours signed."""

    def __init__(self, upstream: str, authority: Path) -> None:
        self._client = httpx.AsyncClient(
            base_url=upstream,
            verify=ssl.create_default_context(cafile=str(authority)),
            timeout=httpx.Timeout(UPSTREAM),
            limits=httpx.Limits(max_connections=CONNECTIONS),
            trust_env=False,
        )

    async def ask(self, scope: Scope, body: bytes) -> tuple[int, Headers, bytes]:
        """Return the upstream server's status, headers and content."""
        headers = [(name, value) for name, value in scope["headers"] if name not in OURS]
        headers.append((b"accept-encoding", b"identity"))
        try:
            async with self._client.stream(scope["method"], scope["path"], headers=headers, content=body) as reply:
                content = bytearray()
                async for piece in reply.aiter_raw():
                    content += piece
                    if len(content) > LONGEST_ANSWER:
                        raise RefusedError(502, f"an answer of more than {LONGEST_ANSWER} bytes")
        except httpx.HTTPError as error:
            raise RefusedError(502, f"the server behind the door does not answer: {type(error).__name__}") from None
        kept = [(name.lower(), value) for name, value in reply.headers.raw if name.lower() not in THEIRS]
        return reply.status_code, kept, bytes(content)


async def read_body(receive: Receive, most: int) -> bytes:
    """Return a request's body; raises RefusedError where it is too long or too slow."""
    pieces, size = [], 0
    try:
        async with asyncio.timeout(WHOLE):
            while True:
                event = await asyncio.wait_for(receive(), PIECE)
                if event["type"] == "http.disconnect":
                    raise RefusedError(408, "hung up")
                pieces.append(event.get("body", b""))
                size += len(pieces[-1])
                if size > most:
                    raise RefusedError(413, f"a body of more than {most} bytes")
                if not event.get("more_body"):
                    return b"".join(pieces)
    except TimeoutError:
        raise RefusedError(408, "a body that does not come") from None


async def answer(send: Send, status: int, headers: Headers, content: bytes) -> None:
    """Send an answer piece by piece; a reader that does not take a piece in time gets no more."""
    length = (b"content-length", str(len(content)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    with suppress(TimeoutError):
        for start in range(0, len(content), STEP):
            piece = content[start : start + STEP]
            await asyncio.wait_for(send({"type": "http.response.body", "body": piece, "more_body": True}), PIECE)
        await asyncio.wait_for(send({"type": "http.response.body", "body": b""}), PIECE)


async def refuse(send: Send, status: int) -> None:
    """Answer with a status, nothing else, and hang up."""
    await answer(send, status, [(b"connection", b"close")], b"")
