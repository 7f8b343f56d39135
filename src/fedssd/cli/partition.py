"""``fedssd partition``: show, and save, who would hold what."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssd.cli.parser import a_path, examples
from fedssd.errors import UserError

if TYPE_CHECKING:
    from fedssd.data.dataset import Dataset
    from fedssd.data.partition import Partition

EXAMPLES = examples(
    "fedssd partition                                      digits over 10 clients",
    "fedssd partition --partition classes:2 --clients 20   two classes a client",
    "fedssd partition --data cifar10 --partition dirichlet:0.1 --json",
)
RULES = "iid, dirichlet:δ, dirichlet-plain:δ or classes:k"
AUXILIARY = "samples per class to take out for the server"


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "partition",
        usage="fedssd partition [flags]",
        description="Show how a partition deals a dataset out to clients: a table of clients and classes.",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    add("--data", default="digits", metavar="NAME", help="a dataset's name or path (default: %(default)s)")
    add("--label", default="", metavar="NAME", help="the column of a .csv with the label, if it has another name")
    add("--partition", default="dirichlet:0.5", metavar="NAME", help=f"{RULES} (default: %(default)s)")
    add("--clients", type=int, default=10, metavar="N", help="how many clients (default: %(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="seed of the split (default: %(default)s)")
    add("--auxiliary", type=int, default=0, metavar="N", help=f"{AUXILIARY} (default: %(default)s)")
    add("--out", type=a_path, metavar="FILE", help="file to save the partition in, as JSON with its hash")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Make the split, save it if asked, and print it."""
    from fedssd.data import auxiliary, sources
    from fedssd.data.partition import split
    from fedssd.data.picture import picture

    if args.out is not None and args.out.exists():
        raise UserError(f"expected a new file for --out, got {args.out}, which exists: choose another or remove it")
    dataset = sources.load(args.data, args.label)
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
    from fedssd.data.partition import label_distance

    counts = partition.counts(dataset.y_train, dataset.num_classes)
    return {
        "data": dataset.name,
        "fingerprint": dataset.fingerprint,
        "partition": partition.spec,
        "seed": partition.seed,
        "hash": partition.hash,
        "classes": list(dataset.classes),
        "sizes": partition.sizes,
        "counts": counts.tolist(),
        "label_distance": label_distance(counts)._asdict(),
        "auxiliary": taken,
        "notes": notes,
    }


def _remarks(taken: int, notes: list[str], out: Path | None) -> list[str]:
    lines = [f"auxiliary set: {taken} samples taken out of the clients"] if taken else []
    lines += notes
    return [*lines, f"saved in {out}"] if out is not None else lines
