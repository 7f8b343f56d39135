"""``fedssd methods``: what there is, what it sends and keeps, what it costs, and the paper's values."""

from __future__ import annotations

import argparse
import json
from typing import Any

from fedssd.cli.parser import examples

EXAMPLES = examples(
    "fedssd methods                   all of them",
    "fedssd methods fedssd fednova    two",
    "fedssd methods my_method.py:MyLoss",
    "fedssd methods --json | jq '.[].name'",
)


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "methods",
        description="Every method: its half, formula and options, what it needs, what it sends and keeps in model "
        "sizes, what it costs.",
        epilog=EXAMPLES,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="show only these; also a file such as my.py:MyLoss")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Print the methods asked for."""
    from fedssd.reports.methods import as_text, catalogue, named, provenance

    entries = named(args.names) if args.names else catalogue()
    if args.json:
        print(json.dumps(entries, ensure_ascii=False))
        return 0
    print("\n\n".join("\n".join(as_text(entry)) for entry in entries))
    print(f"\n{provenance()}")
    if not args.names:
        print("Set an option with --fedssd.m-max 0.3; add local halves up, and choose a server half:")
        print("--local fedssd+fedprox --server fednova")
    return 0
