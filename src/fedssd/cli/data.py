"""``fedssd data``: list, prepare and show datasets."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedssd.cli.parser import a_path, examples
from fedssd.cli.progress import spoken

if TYPE_CHECKING:
    from fedssd.data.dataset import Dataset

EXAMPLES = examples(
    "fedssd data list",
    "fedssd data prepare cifar10                                      downloads it",
    "fedssd data prepare cifar10 --from ~/cifar-10-python.tar.gz      reads the archive you have",
    "fedssd data show my_table.csv",
)
EVERY = 1.0  # seconds between progress lines


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command with its three actions."""
    parser = commands.add_parser("data", description="List, prepare and show datasets.", epilog=EXAMPLES)
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|prepare|show", title="actions")
    listing = actions.add_parser("list", help="the datasets that have a name")
    listing.add_argument("--json", action="store_true", help="print JSON instead of a table")
    listing.set_defaults(main=main)
    preparing = actions.add_parser("prepare", help="read an official archive into the cache, downloading it if needed")
    preparing.add_argument("name", help="cifar10, cifar100 or tiny-imagenet")
    have = "the official archive or its folder, if you have it"
    preparing.add_argument("--from", dest="source", type=a_path, metavar="PATH", help=have)
    preparing.add_argument("--quiet", action="store_true", help="no progress lines")
    preparing.set_defaults(main=main)
    showing = actions.add_parser("show", help="shapes, classes and counts of a dataset")
    showing.add_argument("name", help="a dataset's name, or a path to a folder, .npz or .csv file")
    showing.add_argument("--label", default="", metavar="NAME", help="the column of a .csv with the label")
    showing.add_argument("--json", action="store_true", help="print JSON instead of text")
    showing.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Do what the action says."""
    actions = {"list": _list, "prepare": _prepare, "show": _show}
    return actions[args.action](args)


def _list(args: argparse.Namespace) -> int:
    from fedssd.data import sources

    rows = sources.describe()
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))
        return 0
    for row in rows:
        state = "ready" if row.prepared else "to prepare"
        print(f"{row.name:<14} {state:<11} {row.what:<50} {row.origin}")
    print(f"{'PATH':<14} {'your own':<11} a folder with a folder of images for each class, a .npz or a .csv file")
    return 0


def _prepare(args: argparse.Namespace) -> int:
    from fedssd.data import sources

    started = time.monotonic()
    for remark in sources.remarks(args.name, args.source and sources.place(args.source)):
        print(f"note: {remark}", file=sys.stderr)
    path = sources.prepare(args.name, args.source, None if args.quiet else ProgressLines())
    dataset = sources.load(args.name)
    print(
        f"{args.name}: {len(dataset.y_train)} train and {len(dataset.y_test)} test samples, fingerprint "
        f"{dataset.fingerprint}, {time.monotonic() - started:.1f} s, in {path}"
    )
    return 0


def _show(args: argparse.Namespace) -> int:
    from fedssd.data import sources

    facts = _facts(sources.load(args.name, args.label))
    if args.json:
        print(json.dumps(facts))
        return 0
    print(f"{facts['name']}: samples of shape {facts['shape']} ({facts['type']}), fingerprint {facts['fingerprint']}")
    print(f"train {facts['train']}, test {facts['test']}, {len(facts['classes'])} classes")
    for name, train, test in zip(facts["classes"], facts["train_counts"], facts["test_counts"], strict=True):
        print(f"  {name:<24} {train:>6} train {test:>6} test")
    return 0


def _facts(dataset: Dataset) -> dict[str, Any]:
    import torch

    count = dataset.num_classes
    return {
        "name": dataset.name,
        "shape": list(dataset.shape),
        "type": str(dataset.x_train.dtype).removeprefix("torch."),
        "train": len(dataset.y_train),
        "test": len(dataset.y_test),
        "classes": list(dataset.classes),
        "train_counts": torch.bincount(dataset.y_train, minlength=count).tolist(),
        "test_counts": torch.bincount(dataset.y_test, minlength=count).tolist(),
        "fingerprint": dataset.fingerprint,
    }


class ProgressLines:
    """Prints at most a line a second to stderr: how far, and how long it will still take."""

    def __init__(self) -> None:
        self.what = ""
        self.started = self.printed = time.monotonic()
        self.first = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take note of progress; ``total`` 0 means unknown."""
        now = time.monotonic()
        if what != self.what:
            self.what, self.started, self.first = what, now, done
        if now - self.printed < EVERY:
            return
        self.printed = now
        if total <= 0:
            print(f"{what} {done}", file=sys.stderr)
            return
        speed = (done - self.first) / max(now - self.started, 1e-9)
        left = f", about {spoken((total - done) / speed)} left" if speed > 0 else ""
        print(f"{what} {done / total:.0%}{left}", file=sys.stderr)
