"""``fedssd federation serve``: the server of a federation on machines of their own."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssd.cli import output
from fedssd.cli.parser import a_path
from fedssd.errors import UserError

if TYPE_CHECKING:
    from fedssd.flower.serving import ServerProcesses

ACTIONS = "serve"


def register(actions: argparse._SubParsersAction[Any]) -> None:
    """Add the action."""
    action = actions.add_parser("serve", help="run the server for nodes on other machines, until it is ended")
    action.add_argument("keys", type=a_path, metavar="KEYS", help="the folder of `federation certs`")
    action.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="where the door listens (default: %(default)s)"
    )
    action.add_argument("--port", type=int, default=8443, metavar="N", help="its port (default: %(default)s)")
    action.add_argument(
        "--state", type=a_path, metavar="DIR", help="logs, the database and the runs' records (default: beside KEYS)"
    )
    action.add_argument(
        "--per-address",
        type=int,
        default=32,
        metavar="N",
        help="connections one address may hold; more where many nodes share one (default: %(default)s)",
    )
    action.add_argument(
        "--reply-mb",
        type=int,
        default=1024,
        metavar="N",
        help="megabytes a node may send a round (default: %(default)s)",
    )
    action.add_argument("--no-database", action="store_true", help="keep the SuperLink's state in memory")
    action.add_argument("--unit", action="store_true", help="print a systemd unit that does this, and exit")
    action.set_defaults(main=_serve)


def _serve(args: argparse.Namespace) -> int:
    from fedssd.flower.supervise import keep_running
    from fedssd.flower.unit import unit

    server = _server(args)
    if args.unit:
        words = [str(Path(sys.executable).parent / "fedssd"), "federation", "serve", str(server.keys)]
        words += ["--state", str(server.place), "--host", args.host, "--port", str(args.port)]
        words += ["--per-address", str(args.per_address), "--reply-mb", str(args.reply_mb)]
        words += ["--no-database"] if args.no_database else []
        print(unit("fedssd federation, the server", words, writable=[server.keys, server.place]))
        return 0
    keep_running(server, lambda text: print(text, flush=True))
    return 0


def _server(args: argparse.Namespace) -> ServerProcesses:
    from fedssd.flower.serving import Outside, ServerProcesses, usual_state

    for flag, value, most in (
        ("--port", args.port, 65535),
        ("--per-address", args.per_address, 1024),
        ("--reply-mb", args.reply_mb, 1 << 20),
    ):
        if not 1 <= value <= most:
            raise UserError(f"{flag} expects 1 to {most}, got {value}")
    if not args.keys.is_dir():
        raise UserError(f"expected the folder of `{output.program()} federation certs`, got {args.keys}")
    state = args.state or usual_state(args.keys)
    outside = Outside(args.host, args.port, args.per_address, args.reply_mb << 20)
    return ServerProcesses(args.keys, state, outside, not args.no_database)
