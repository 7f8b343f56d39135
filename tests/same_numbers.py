"""Hold two source trees of fedssd against each other: do they come to the same numbers, to the bit?

    python tests/same_numbers.py db18e6d HEAD                  # all sections but c
    python tests/same_numbers.py db18e6d . --only a,b          # some, with the working tree as it is
    python tests/same_numbers.py db18e6d . --only a --case moon

BASE and HEAD are git revisions or folders. Both run here, with this interpreter, as bits depend on torch and processor.

  a  final weights, rounds and summary of every method on both engines, of sums, mixed models, faults, batch norm, uint8
     images, fp64, seeds side by side, sweeps, resumed runs, Flower in one process, and models and arrays of one's own
  b  who holds what, initial weights, and the hash and content of every recipe of BASE, committed runs included; what
     `reproduce` would run, and what committed runs came to
  c  what command lines print, word for word, and the files of a comparison and a sweep: for commits that only move code
  d  the generated tables of BASE's pages, as numbers, wherever HEAD has them
  e  runs killed by SIGKILL and resumed by HEAD, against BASE's that were not
  f  BASE's folders in HEAD's hands: interrupted, finished, a federation's app

A line is printed for everything that differs, and a count for every section; the exit status is 1 if anything differs.
What was changed on purpose is for people to list. What BASE refuses and HEAD does counts as new; what HEAD records
beside what BASE recorded is no difference.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from tree_beginnings import beginnings
from tree_kills import kills, old_folders
from tree_pages import command_lines, page_tables
from two_trees import (
    ENGINES,
    IMAGES,
    SMALL,
    Case,
    FailedError,
    Flat,
    Tree,
    both,
    chosen,
    differences,
    emptied,
    outcome,
    outcomes,
    tree_of,
)

PAIRS = ("fedssd+fedprox/fedavg", "fedprox+moon/fedavg", "fedcurv+fedntd/fedavg", "fedssd/fednova", "moon/median",
         "scaffold/ida")  # fmt: skip
ALIKE: set[frozenset[str]] = set()  # cases that come to the same weights by what they are


@dataclass(frozen=True)
class Verdict:
    """How a case ended: the same, new (BASE refuses it), or what differs."""

    case: Case
    differs: list[str]
    new: bool = False
    found: Flat | None = None  # what BASE came to


# (a) runs ------------------------------------------------------------------------------------------------------------


def trained(*words: str, more: tuple[str, ...] = ()) -> Callable[[Tree, Path], Flat]:
    """What a run, and perhaps its resumption for more rounds, leaves."""

    def ask(tree: Tree, folder: Path) -> Flat:
        tree.run(folder, "run", *words, "--out", "run", "--quiet")
        if more:
            tree.run(folder, "resume", "run", *more, "--quiet")
        return outcome(folder / "run")

    return ask


def several(*words: str) -> Callable[[Tree, Path], Flat]:
    """What a comparison or a sweep leaves."""

    def ask(tree: Tree, folder: Path) -> Flat:
        tree.run(folder, *words, "--out", "runs", "--quiet")
        return outcomes(folder / "runs")

    return ask


def own(method: str, engine: str) -> Callable[[Tree, Path], Flat]:
    def ask(tree: Tree, folder: Path) -> Flat:
        tree.drive(folder, "own", method, engine, "run")
        return outcome(folder / "run")

    return ask


def federated(*words: str) -> Callable[[Tree, Path], Flat]:
    """What a federation over Flower, all in one process, leaves."""

    def ask(tree: Tree, folder: Path) -> Flat:
        tree.run(folder, "federation", "init", "lab", *words)
        tree.drive(folder, "flower", "lab", "run")
        return outcome(folder / "run")

    return ask


def halves(base: Tree, head: Tree, folder: Path) -> Iterator[tuple[str, str]]:
    """Every local half with FedAvg, and FedAvg with every server half, of both trees."""
    known = [json.loads(tree.run(folder, "methods", "--json")) for tree in (base, head)]
    for method in {entry["name"]: entry for entries in known for entry in entries}.values():
        if "local" in method["half"]:
            yield method["name"], "fedavg"
        else:
            yield "fedavg", method["name"]


def runs(base: Tree, head: Tree, place: Path) -> Iterator[Case]:
    for engine in ENGINES:
        case = partial(both, base, head, "a")
        on = ["--engine", engine]
        for local, server in halves(base, head, place):
            yield case(f"{local}/{server} {engine}", trained(*SMALL, *on, *chosen(local, server)))
        for pair in PAIRS:
            yield case(f"{pair} {engine}", trained(*SMALL, *on, *chosen(*pair.split("/"))))
        for local, server in (("fd", "fedavg"), ("fedmd", "fedavg"), ("cronus", "fedavg"), ("fedavg", "feddf")):
            mixed = [*SMALL, *on, *chosen(local, server), "--model", "mlp,cnn-small"]
            yield case(f"{local}/{server} mixed {engine}", trained(*mixed))
        faults = [*SMALL, *on, *chosen("fedssd", "fedavg"), "--faults", "nan=1,flip=1x10,drop=0.2"]
        yield case(f"faults {engine}", trained(*faults))
        yield case(f"half the clients {engine}", trained(*SMALL, *on, "--local", "moon", "--participation", "0.5"))
        yield case(f"decay {engine}", trained(*SMALL, *on, "--lr-decay", "0.9", "--weight-decay", "0.001"))
        yield case(f"fp64 {engine}", trained(*SMALL, *on, *chosen("fedssd", "fedavg"), "--precision", "fp64"))
        yield case(f"uint8 images {engine}", trained(*IMAGES, *on, "--model", "cnn", "--local", "moon"))
        yield case(f"batch norm {engine}", own("fedavg", engine))
        yield case(f"batch norm fedssd {engine}", own("fedssd", engine))
        stopped = [*SMALL, *on, "--local", "scaffold", "--server", "fednova", "--checkpoint-every", "1"]
        yield case(f"on from round 2 {engine}", trained(*stopped, "--rounds", "2", more=("--rounds", "4")))
        seeds = ["--methods", "fedavg,moon", "--seeds", "0,1,2", "--workers", "1", *on]
        yield case(f"seeds side by side {engine}", several("compare", *SMALL, *seeds))
        for grid in ("weight_decay=0,0.01", "local=fedprox,scaffold"):
            swept = ["--grid", grid, "--seeds", "0,1", "--workers", "2", *on]
            yield case(f"sweep {grid} {engine}", several("sweep", *SMALL, *swept))
    for local, server in (("fedssd", "fedavg"), ("scaffold", "fednova"), ("moon", "fedavg"), ("fedmd", "fedavg")):
        lab = [*SMALL, *chosen(local, server), "--engine", "reference", "--partition", "classes:6"]
        yield both(base, head, "a", f"flower {local}/{server}", federated(*lab))


def collisions(verdicts: list[Verdict]) -> Iterator[str]:
    """Runs of different names that come to the same weights on BASE: such settings could not show a change."""
    named = defaultdict(set)
    for verdict in verdicts:
        if verdict.case.section == "a" and verdict.found:
            arrays = tuple(sorted((key, value) for key, value in verdict.found.items() if key.startswith("weights")))
            if arrays:
                named[arrays].add(verdict.case.name.removesuffix(" reference").removesuffix(" vectorised"))
    for names in named.values():
        if len(names) > 1 and frozenset(names) not in ALIKE:
            yield f"a {' = '.join(sorted(names))}: the same weights, so these cases cannot show a change"


# all sections --------------------------------------------------------------------------------------------------------

SECTIONS: dict[str, Callable[[Tree, Tree, Path], Iterator[Case]]] = {
    "a": runs,
    "b": beginnings,
    "c": command_lines,
    "d": page_tables,
    "e": kills,
    "f": old_folders,
}


def judged(case: Case, place: Path) -> Verdict:
    """Both trees asked, each in a new folder beside the samples."""
    answers: list[Flat | FailedError] = []
    for name in ("base", "head"):
        folder = emptied(place / f"{case.section} {case.name}".replace("/", "-") / name)
        (folder / "samples").symlink_to(place / "samples")
        try:
            answers.append(getattr(case, name)(folder))
        except FailedError as error:
            answers.append(error)
    base, head = answers
    if isinstance(base, FailedError):
        if isinstance(head, FailedError) or base.status != 2:
            return Verdict(case, [f"BASE: {base}; HEAD: {head if isinstance(head, FailedError) else 'runs'}"])
        return Verdict(case, [], new=True)
    if isinstance(head, FailedError):
        return Verdict(case, [f"HEAD: {head}"])
    return Verdict(case, differences(base, head), found=base)


def write_samples(folder: Path) -> None:
    """Noisy images of three classes, bytes of 32×32×3."""
    folder.mkdir()
    draws = np.random.default_rng(5)
    y = np.arange(96) % 3
    x = 60 * draws.normal(size=(96, 32, 32, 3)) + draws.uniform(0, 255, size=(3, 32, 32, 3))[y]
    np.savez(folder / "images.npz", x=x.clip(0, 255).astype(np.uint8), y=y)


def told(verdicts: list[Verdict], sections: list[str], shown: int) -> bool:
    """Print what differs and the counts; whether everything is the same."""
    lines = []
    for verdict in verdicts:
        for line in verdict.differs[:shown]:
            lines.append(f"{verdict.case.section} {verdict.case.name}: {line}")
        if len(verdict.differs) > shown:
            lines.append(f"{verdict.case.section} {verdict.case.name}: … {len(verdict.differs) - shown} more")
        if verdict.new:
            lines.append(f"{verdict.case.section} {verdict.case.name}: new")
    same = list(collisions(verdicts))
    print("\n".join([*lines, *same]))
    for section in sections:
        own = [verdict for verdict in verdicts if verdict.case.section == section]
        differ, new = sum(bool(verdict.differs) for verdict in own), sum(verdict.new for verdict in own)
        print(f"{section}: {len(own)} cases, {differ} differ, {new} new")
    return not same and not any(verdict.differs for verdict in verdicts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", metavar="BASE", help="the older tree: a git revision or a folder")
    parser.add_argument("head", metavar="HEAD", help="the newer one")
    parser.add_argument("--only", default="a,b,d,e,f", help="sections (default: all but c)")
    parser.add_argument("--case", default="", metavar="WORD", help="only cases with this in their name")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="cases at once (default: 2)")
    parser.add_argument("--lines", type=int, default=3, metavar="N", help="lines for a case that differs (default: 3)")
    args = parser.parse_args()
    sections = args.only.split(",")
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the process that forks, and the same for both trees
    with tempfile.TemporaryDirectory(prefix="same-numbers-") as temporary:
        place = Path(temporary).resolve()
        base, head = tree_of("BASE", args.base, place), tree_of("HEAD", args.head, place)
        write_samples(place / "samples")
        cases = [
            case for section in sections for case in SECTIONS[section](base, head, place) if args.case in case.name
        ]
        verdicts = []
        with ThreadPoolExecutor(args.jobs) as pool:
            for verdict in pool.map(partial(judged, place=place), cases):
                verdicts.append(verdict)
                note = "differs" if verdict.differs else "new" if verdict.new else "same"
                print(
                    f"[{len(verdicts)}/{len(cases)}] {verdict.case.section} {verdict.case.name}: {note}",
                    file=sys.stderr,
                )
        return 0 if told(verdicts, sections, args.lines) else 1


if __name__ == "__main__":
    sys.exit(main())
