"""``fedssd report``: one page that opens offline, with everything some runs have to show."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedssd.cli import places
from fedssd.cli.parser import a_path, examples
from fedssd.errors import UserError

NAME = "report.html"
NAMED = 3  # unfinished runs in a line
EXAMPLES = examples(
    "fedssd report runs/compare-digits                     writes runs/compare-digits/report.html",
    "fedssd report runs/a runs/b --out both.html           several folders on one page",
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
    add("folders", nargs="+", type=a_path, metavar="DIR", help="folders with runs, at any depth")
    add("--out", type=a_path, metavar="FILE", help=f"the page (default: {NAME} in the first folder)")
    add("--title", metavar="TEXT", help="its title (default: the first folder's name)")
    add("--figures", action="store_true", help="the figures as PNG and PDF, too (needs fedssd[figures])")
    parser.add_argument("--json", action="store_true", help="print what was written as one line of JSON")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Read the runs, write the page and, if asked, the figures."""
    from fedssd.report.html import write_report
    from fedssd.report.paper import need_matplotlib, write_figures
    from fedssd.report.records import shown, unfinished

    for folder in args.folders:
        if not folder.is_dir():
            raise UserError(f"expected a folder with runs, got {folder}, which is {places.not_a_folder(folder)}")
    file = args.out or args.folders[0] / NAME
    if file.is_dir() or not file.parent.is_dir():
        raise UserError(f"expected a file in a folder that is there for --out, got {file}")
    if args.figures:
        need_matplotlib()
    left_out = unfinished(args.folders)
    if not shown(args.folders) and left_out:  # whatever is wrong is said before anything is written
        raise UserError(f"expected a finished run in {', '.join(map(str, args.folders))}: {_under_way(left_out)}")
    title = args.title or args.folders[0].resolve().name
    written = [write_report(args.folders, file, title)]
    if args.figures:
        written += write_figures(args.folders, file.with_name("figures"))
    if args.json:
        print(json.dumps({"written": [str(path) for path in written], "unfinished": [str(run) for run in left_out]}))
        return 0
    print(f"{written[0]} ({written[0].stat().st_size / 1e6:.1f} MB): open it in a browser, it needs no network")
    if args.figures:
        print(f"{len(written) - 1} figures in {written[1].parent}/")
    if left_out:
        print(f"left out: {_under_way(left_out)}", file=sys.stderr)
    return 0


def _under_way(runs: Sequence[Path]) -> str:
    """Which runs have no summary yet, and what goes on with them: of a comparison or a sweep its own folder."""
    from fedssd.experiment.many import PLAN

    more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
    named = ", ".join(map(str, runs[:NAMED])) + more
    whole = dict.fromkeys(next((up for up in run.parents if (up / PLAN).is_file()), run) for run in runs)
    commands = [f"`{places.program()} {shlex.join(['resume', str(folder)])}`" for folder in list(whole)[:NAMED]]
    state = "is still running or was interrupted" if len(runs) == 1 else "are still running or were interrupted"
    return f"{named} {state}, which {' and '.join(commands)} {'goes' if len(commands) == 1 else 'go'} on with"


def leave_report(out: Path, title: str) -> Path:
    """The page of the runs in a folder, beside them; what every command that runs something ends with."""
    from fedssd.report.html import write_report

    return write_report([out], out / NAME, title)
