"""``fedssd methods``: what there is, as formulas, options and the paper's values."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fedssd.cli.parser import examples

if TYPE_CHECKING:
    from fedssd.core.contract import Local, Server

EXAMPLES = examples(
    "fedssd methods                   all of them",
    "fedssd methods fedssd            one",
    "fedssd methods my_method.py:MyLoss",
    "fedssd methods --json | jq '.[].name'",
)


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "methods",
        description="Every method: its formula, its options with defaults, the paper's values, and what it needs.",
        epilog=EXAMPLES,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="show only these; also a file such as my.py:MyLoss")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Print the methods asked for."""
    from fedssd.methods.registry import LOCALS, SERVERS, local_kinds

    locals_asked = (
        [name for name in args.names if name in LOCALS or name not in SERVERS] if args.names else list(LOCALS)
    )
    servers_asked = [name for name in SERVERS if name != "fedavg" and (name in args.names or not args.names)]
    methods = [facts(kind) for name in locals_asked for kind in local_kinds(name)]
    methods += [server_facts(SERVERS[name]) for name in servers_asked]
    if args.json:
        print(json.dumps(methods, ensure_ascii=False))
        return 0
    print("\n\n".join("\n".join(_lines(method)) for method in methods))
    if not args.names:
        print("\nset an option with --set fedssd.m_max=0.3; add local halves up with --method fedssd+fedprox;")
        print("any local half goes with any server half: --method fedssd --server fednova")
    return 0


def server_facts(kind: type[Server]) -> dict[str, Any]:
    """What a user can know about a server half."""
    return {
        "name": kind.name,
        "half": "server",
        "formula": kind.formula,
        "paper": kind.paper,
        "options": {field.name: field.default for field in fields(kind)},
        "strength": None,
        "published": {},
        "needs": ["auxiliary set"] if kind.needs_auxiliary else [],
    }


def facts(kind: type[Local]) -> dict[str, Any]:
    """What a user can know about a method."""
    from fedssd.core.contract import Local

    def own(text: str) -> str:
        """A user's method that says nothing must not pass for FedAvg."""
        return "" if kind is not Local and text in (Local.formula, Local.paper) else text

    needs = {"auxiliary set": kind.needs_auxiliary, "projection head": kind.needs_head}
    return {
        "name": kind.name,
        "half": "local",
        "formula": own(kind.formula),
        "paper": own(kind.paper),
        "options": {field.name: field.default for field in fields(kind)},
        "strength": kind.strength,
        "published": {dataset: dict(values) for dataset, values in kind.published.items()},
        "needs": [need for need, wanted in needs.items() if wanted],
    }


def _lines(method: dict[str, Any]) -> list[str]:
    options = ", ".join(f"{name} = {value}" for name, value in method["options"].items())
    published = "; ".join(
        f"{dataset} " + ", ".join(f"{name} = {value:g}" for name, value in values.items())
        for dataset, values in method["published"].items()
    )
    rows = {
        "loss" if method["half"] == "local" else "server half": method["formula"],
        "options": options,
        "paper's values": published,
        "needs": ", ".join(method["needs"]),
        "from": method["paper"],
    }
    return [method["name"], *(f"  {title:<15} {text}" for title, text in rows.items() if text)]
