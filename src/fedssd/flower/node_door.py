"""The door of a node, turned inward: its SuperNode reaches the federation through it, and code comes in if approved.

A server can otherwise run anything on a node: an app is code, and Flower's own check of apps knows only those of its
Hub. The SuperNode talks to this door on loopback, the door to the server over TLS.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fedssd.errors import UserError
from fedssd.flower.approval import Gate
from fedssd.flower.door import FLEET, OBJECT
from fedssd.flower.listener import Listening, Receive, Scope, Send, serve
from fedssd.flower.relay import RefusedError, Relay, answer, read_body, refuse
from fedssd.flower.wire import DecodeError, GetFabResponse

CODE = b"/v1/fleet/get-fab"


class NodeDoor:
    """An ASGI app between a SuperNode and the server's door.

    Args:
        relay: The way to the server's door.
        gate: Which code passes.
        tell: Hears of what does not go through.
    """

    def __init__(self, relay: Relay, gate: Gate, tell: Callable[[str], None]) -> None:
        self._relay, self._gate, self._tell = relay, gate, tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        path = scope["raw_path"]
        try:
            if scope["method"] != "POST" or path not in FLEET or scope["query_string"]:
                raise RefusedError(404, "not a path of a node")
            body = await read_body(receive, OBJECT)
            status, headers, content = await self._relay.ask(scope, body)
            if path == CODE and status == 200 and not self._approved(content):
                raise RefusedError(403, "code that is not approved")
            await answer(send, status, headers, content)
        except RefusedError as error:
            self._tell(f"{path.decode()} is refused with {error.status}: {error}")
            await refuse(send, error.status)

    def _approved(self, content: bytes) -> bool:
        try:
            return self._gate.passes(GetFabResponse.FromString(content).fab.content)
        except DecodeError:
            return False


def main(words: Sequence[str]) -> None:
    """Open the door of a node until this process is ended."""
    parser = argparse.ArgumentParser(prog="fedssd.flower.node_door")
    for name in ("port", "server"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("authority", "certificate", "key", "state"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    args = parser.parse_args(words)

    def say(text: str) -> None:
        print(text, flush=True)

    door = NodeDoor(Relay(f"https://{args.server}", args.authority), Gate(args.state, say), say)
    serve(door, Listening("127.0.0.1", int(args.port), args.certificate, args.key), say)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"fedssd: {error}")
