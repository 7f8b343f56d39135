"""``fedssd compare``: several methods over several seeds, and the table of what came out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssd.cli import output
from fedssd.cli.parser import (
    RECIPE_NOTE,
    UsageError,
    add_output_flags,
    add_recipe_flags,
    examples,
    overrides,
    recipe_source,
)
from fedssd.cli.run import setting, train

if TYPE_CHECKING:
    from fedssd.recipe import Recipe
    from fedssd.simulation.events import Listener
    from fedssd.simulation.result import Result

SEEDS = "0,1,2"
MOST_SEEDS = 1000  # of a count: a recipe is made for each before anything else is said
EXAMPLES = examples(
    "fedssd compare                                         the paper's seven methods on digits, three seeds",
    "fedssd compare --methods fedavg,fedssd --seeds 0,1,2,3,4",
    "fedssd compare --partition classes:2 --rounds 50       a harder split",
    "fedssd compare --methods fedssd,my_method.py:MyLoss    yours against ours",
)


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    from fedssd.recipe import PAPER_METHODS

    parser = commands.add_parser(
        "compare",
        usage="fedssd compare [flags]",
        description=f"Train several methods over several seeds and print a table.\n{RECIPE_NOTE}",
        epilog=EXAMPLES,
        add_help=False,
    )
    group = parser.add_argument_group("comparison")
    paper = ",".join(PAPER_METHODS)
    group.add_argument("--methods", default=paper, metavar="A,B", help=f"what to compare (default: {paper})")
    group.add_argument("--seeds", default=SEEDS, metavar="N,N", help="seeds of each method (default: %(default)s)")
    group.add_argument("--workers", default="0", metavar="N", help="processes; 0 is one a core (default: %(default)s)")
    add_recipe_flags(parser, leave_out=("method", "seed"))
    add_output_flags(parser, "runs/compare-<data>")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Compare what the command line names."""
    from fedssd.recipe import load_recipe

    methods = [name.strip() for name in args.methods.split(",") if name.strip()]
    seeds = seed_list("fedssd compare", args.seeds)
    workers = whole("fedssd compare", "--workers", args.workers)
    given = overrides(args, "compare")
    source, remark = recipe_source(args, given)
    recipe = load_recipe(source, given, methods)
    out = output.folder(args, "compare", recipe.data)
    return compare(recipe, methods, seeds, workers, out, args, args.resume, remark)


def compare(
    recipe: Recipe,
    methods: Sequence[str],
    seeds: Sequence[int],
    workers: int,
    out: Path,
    args: argparse.Namespace,
    resume: bool,
    remark: str = "",
) -> int:
    """Run everything, write table, curves and page, print the table and say where things are."""
    from fedssd.reports.comparison import tabulate
    from fedssd.reports.figures import learning_curves
    from fedssd.reports.plots import available, svg
    from fedssd.sweeps import grid

    what = f"{output.many(len(methods), 'method')} × {output.many(len(seeds), 'seed')} on {setting(recipe)}"

    def work(listen: Listener) -> list[Result]:
        return grid.compare(recipe, methods, seeds, out, workers, listen, resume)

    results = train(args, out, recipe, what, work, remark)
    table = tabulate(results)
    output.write_table(table, out)
    if available():
        (out / "curves.svg").write_text(svg(learning_curves(results, setting(recipe))), encoding="utf-8")
    output.leave_report(results, out, what)
    if args.json:
        print(json.dumps({"folder": str(out), "runs": [result.summary.to_json() for result in results]}))
    else:
        output.show_table(table)
        drawn = "curves.svg, " if available() else ""
        print(f"results: {out}/ (report.html, table.md, table.csv, {drawn}a folder for each run)")
        if not drawn:
            print("left out: curves.svg, which needs matplotlib: pip install 'fedssd[figures]'")
    return output.ended(results)


def whole(command: str, flag: str, text: str, expected: str = "a whole number that is not negative") -> int:
    """A whole number that is not negative, or one line that says which flag expects it."""
    if not text.strip().isdecimal() or len(text) > 18:
        raise UsageError(f"{command}: {flag} expects {expected}, got {text.strip()!r}")
    return int(text)


def seed_list(command: str, text: str) -> list[int]:
    """The seeds behind ``0,1,2``."""
    expected = "whole numbers joined by commas, such as 0,1,2"
    return [whole(command, "--seeds", word, expected) for word in text.split(",") if word.strip()]


def seed_count(command: str, text: str) -> int:
    """How many seeds, from 0 on."""
    expected = "how many seeds, such as 3 for 0, 1 and 2"
    count = whole(command, "--seeds", text, expected)
    if not 1 <= count <= MOST_SEEDS:
        bound = "at least 1" if count < 1 else f"at most {MOST_SEEDS}"
        raise UsageError(f"{command}: --seeds expects {bound}, got {count}")
    return count
