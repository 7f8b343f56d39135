"""``fedssd federation node|approve``: a node, and which code may run on it."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from fedssd.cli import output
from fedssd.cli.parser import a_path
from fedssd.errors import UserError

ACTIONS = "node|approve"


def register(actions: argparse._SubParsersAction[Any]) -> None:
    """Add the actions."""
    action = actions.add_parser("node", help="run a node, until it is ended")
    action.add_argument("server", metavar="HOST:PORT", help="the server's door")
    action.add_argument("--client", type=int, required=True, metavar="N", help="the client's number, from 0")
    action.add_argument("--data", type=a_path, required=True, metavar="PATH", help="its samples, which stay here")
    action.add_argument("--key", type=a_path, required=True, metavar="FILE", help="its private key, of keygen")
    action.add_argument("--authority", type=a_path, required=True, metavar="FILE", help="the federation's ca.crt")
    _add_state(action)
    action.add_argument("--unit", action="store_true", help="print a systemd unit that does this, and exit")
    action.set_defaults(main=_node)
    action = actions.add_parser("approve", help="show an app's files, recipe and hash; on a node, let it run there")
    action.add_argument("app", type=a_path, metavar="APP", help="an app's folder, or a .fab that a node keeps waiting")
    _add_state(action, "the node that may run it (default: only show the app)")
    action.add_argument("--yes", action="store_true", help="do not ask")
    action.set_defaults(main=_approve)


def _add_state(action: argparse.ArgumentParser, does: str = "") -> None:
    what = does or "logs, what its method remembers, approved code (default: node-state)"
    action.add_argument("--state", type=a_path, metavar="DIR", default=None if does else Path("node-state"), help=what)


def _node(args: argparse.Namespace) -> int:
    from fedssd.flower.node import Membership, Node
    from fedssd.flower.supervise import keep_running
    from fedssd.flower.unit import unit

    host, _, port = args.server.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise UserError(f"expected the server's door as HOST:PORT, without scheme, got {args.server!r}")
    if args.client < 0:
        raise UserError(f"--client expects a number from 0, got {args.client}")
    for path in (args.data, args.key, args.authority):
        if not path.exists():
            raise UserError(f"expected a file or folder, got {path}, which does not exist")
    if args.unit:
        files = {flag: getattr(args, flag).resolve() for flag in ("data", "key", "authority", "state")}
        words = [str(Path(sys.executable).parent / "fedssd"), "federation", "node", args.server]
        words += ["--client", str(args.client)]
        words += [word for flag, path in files.items() for word in (f"--{flag}", str(path))]
        readable = [files["data"], files["key"], files["authority"]]
        print(unit("fedssd federation, a node", words, [files["state"]], readable))
        return 0
    member = Membership(args.server, args.authority, args.key, args.client, args.data)
    keep_running(Node(member, args.state), lambda text: print(text, flush=True))
    return 0


def _approve(args: argparse.Namespace) -> int:
    from fedssd.flower.approval import approve, code_hash, describe, read_code

    content = read_code(args.app)
    print(describe(content))
    print(f"\n{code_hash(content)}")
    if args.state is None:
        program = f"{output.program()} federation approve {shlex.quote(str(args.app))} --state node-state"
        print(f"compare it with the server's operator; on a node: {program}")
        return 0
    if not args.yes and not _agreed(args.state):
        raise UserError("not approved")
    approve(args.state, content)
    print(f"approved: it may run on the node of {args.state}")
    return 0


def _agreed(state: Path) -> bool:
    if not sys.stdin.isatty():
        raise UserError("nobody is there to be asked: --yes approves")
    return input(f"may this run on the node of {state}? yes or no: ").strip() == "yes"
