"""``fedssd report``: one page that opens offline, with everything some runs have to show."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssd.cli import output
from fedssd.cli.parser import a_path, examples
from fedssd.errors import UserError

if TYPE_CHECKING:
    from fedssd.runs.read import Found

NAMED = 3  # runs that are left out, in a line
EXAMPLES = examples(
    "fedssd report runs/compare-digits                     writes runs/compare-digits/report.html",
    "fedssd report runs/a runs/b --out both.html           several folders on one page",
    "fedssd report results/digits.runs.jsonl.gz            packed runs; writes digits.html where you are",
    "fedssd report runs/compare-digits --figures           PNG and PDF for a paper's column, too",
)


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "report",
        usage="fedssd report DIR… [flags]",
        description="Write one page that opens offline: tables, curves, matrices and provenance of all runs found.",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    add("folders", nargs="+", type=a_path, metavar="DIR", help="folders with runs, at any depth, or packed runs")
    add("--out", type=a_path, metavar="FILE", help=f"the page (default: {output.REPORT} in the first folder)")
    add("--title", metavar="TEXT", help="its title (default: the name of the first)")
    add("--figures", action="store_true", help="the figures as PNG and PDF, too (needs fedssd[figures])")
    parser.add_argument("--json", action="store_true", help="print what was written as one line of JSON")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Read the runs, write the page and, if asked, the figures."""
    from fedssd.reports.page import write_report
    from fedssd.reports.plots import FORMATS, need_matplotlib, write_figures
    from fedssd.runs.archive import SUFFIX, runs_below
    from fedssd.runs.read import look

    for folder in args.folders:
        if not folder.is_dir() and not runs_below(folder):
            raise UserError(f"expected a folder with runs, got {folder}, which is {output.not_a_folder(folder)}")
    name = args.folders[0].resolve().name.removesuffix(SUFFIX)
    file = args.out or (args.folders[0] / output.REPORT if args.folders[0].is_dir() else Path(f"{name}.html"))
    if file.is_dir() or not file.parent.is_dir():
        raise UserError(f"expected a file in a folder that is there for --out, got {file}")
    if args.figures:
        need_matplotlib()
    found = look(args.folders)
    _refuse(found, args.folders)  # whatever is wrong is said before anything is written
    title = args.title or name
    written = [write_report(args.folders, file, title)]
    if args.figures:
        written += write_figures(args.folders, file.with_name("figures"))
    if args.json:
        left_out = {
            "unfinished": [str(run) for run in found.unfinished],
            "damaged": [str(run) for run in found.damaged],
        }
        print(json.dumps({"written": [str(path) for path in written], **left_out}))
        return 0
    print(f"{written[0]} ({written[0].stat().st_size / 1e6:.1f} MB): open it in a browser, it needs no network")
    if args.figures:
        count = (len(written) - 1) // len(FORMATS)
        print(f"{output.many(count, 'figure')} as PNG and PDF in {file.with_name('figures')}/")
    if found.unfinished:
        print(f"left out: {_under_way(found.unfinished)}", file=sys.stderr)
    _say_damaged(found)
    return 0


def _refuse(found: Found, folders: Sequence[Path]) -> None:
    """A damaged run that was asked for by its own name, and folders without anything to show."""
    asked = {folder.resolve() for folder in folders}
    for run, what in found.damaged.items():
        if not found.results or run.resolve() in asked:
            raise UserError(what)
    if not found.results and found.unfinished:
        raise UserError(f"expected a finished run in {', '.join(map(str, folders))}: {_under_way(found.unfinished)}")


def _say_damaged(found: Found) -> None:
    if found.damaged:
        print(f"left out: {_listed(found.damaged.values(), '; ')}", file=sys.stderr)


def _listed(words: Collection[object], between: str = ", ") -> str:
    more = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return between.join(map(str, list(words)[:NAMED])) + more


def _under_way(runs: Sequence[Path]) -> str:
    """Which runs have no summary yet, and what goes on with them: of a comparison or a sweep its own folder.

    What ``reproduce`` or ``bench`` began goes on when that is called again.
    """
    from fedssd.runs.folder import UNDER_WAY
    from fedssd.sweeps.grid import PLAN

    whole = dict.fromkeys(next((up for up in run.parents if (up / PLAN).is_file()), run) for run in runs)
    known = dict.fromkeys(
        "the same `studies.paper` or `fedssd bench`"
        if UNDER_WAY in folder.parts
        else f"`{output.program()} {shlex.join(['resume', str(folder)])}`"
        for folder in whole
    )
    commands = list(known)[:NAMED]
    state = "is still running or was interrupted" if len(runs) == 1 else "are still running or were interrupted"
    return f"{_listed(runs)} {state}, which {' and '.join(commands)} {'goes' if len(commands) == 1 else 'go'} on with"
