"""``fedssd partition``: show, and save, who would hold what."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from fedssd.data import auxiliary, sources
from fedssd.data.dataset import Dataset
from fedssd.data.partition import SPECS, Partition, split
from fedssd.data.picture import picture
from fedssd.errors import UserError


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser("partition", help="show how a partition deals a dataset out to clients")
    parser.add_argument("--data", default="digits", help="a dataset's name or path (default: %(default)s)")
    parser.add_argument("--partition", default="dirichlet:0.5", help=f"{', '.join(SPECS)} (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=10, help="how many clients (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the split (default: %(default)s)")
    parser.add_argument(
        "--auxiliary", type=int, default=0, help="samples per class to take out for the server (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="file to save the partition in, as JSON with its hash")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Make the split, save it if asked, and print it."""
    if args.out is not None and args.out.exists():
        raise UserError(f"expected a new file for --out, got {args.out}, which exists: choose another or remove it")
    dataset = sources.load(args.data)
    dealt = split(args.partition, dataset.y_train, dataset.num_classes, args.clients, args.seed)
    rows, partition, notes = auxiliary.take(
        dataset.y_train, dealt, dataset.num_classes, args.auxiliary, "heldout", args.seed
    )
    if args.out is not None:
        partition.save(args.out)
    if args.json:
        print(json.dumps(_facts(partition, dataset, len(rows), notes)))
        return 0
    print(picture(partition, dataset.y_train, dataset.classes))
    for line in _remarks(len(rows), notes, args.out):
        print(line)
    return 0


def _facts(partition: Partition, dataset: Dataset, taken: int, notes: list[str]) -> dict[str, Any]:
    return {
        "data": dataset.name,
        "fingerprint": dataset.fingerprint,
        "partition": partition.spec,
        "seed": partition.seed,
        "hash": partition.hash,
        "classes": list(dataset.classes),
        "sizes": partition.sizes,
        "counts": partition.counts(dataset.y_train, dataset.num_classes).tolist(),
        "auxiliary": taken,
        "notes": notes,
    }


def _remarks(taken: int, notes: list[str], out: Path | None) -> list[str]:
    lines = [f"auxiliary set: {taken} samples taken out of the clients"] if taken else []
    lines += notes
    return [*lines, f"saved in {out}"] if out is not None else lines
