"""Where results go: a folder nobody uses yet, and what is in it after an interruption."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from fedssd.errors import UserError

if TYPE_CHECKING:
    from fedssd.reports.table import Table
    from fedssd.simulation.result import Result

ROOT = Path("runs")
REPORT = "report.html"
FEDERATION = "federation_app.py"  # in the folder of a Flower app


def folder(args: argparse.Namespace, *words: str) -> Path:
    """Where a command's results go: ``--out``, else ``runs/<words>``, numbered when taken; with ``--resume`` the same.

    A new call needs a free folder; one that goes on takes the newest.
    """
    if args.resume:
        return _resumable(args.out, *words)
    return asked_for(args.out) if args.out else _writable(unused("-".join(plain(word) for word in words)))


def unused(base: str, taken: Callable[[Path], bool] = Path.exists) -> Path:
    """``runs/<base>``, numbered when taken."""
    folder, number = ROOT / base, 2
    while taken(folder):
        folder, number = ROOT / f"{base}-{number}", number + 1
    return folder


def _resumable(out: Path | None, *words: str) -> Path:
    """The folder to go on in: the one asked for, or the newest of those :func:`folder` would have made."""
    if out is not None:
        if out.exists() and not out.is_dir():
            raise UserError(f"expected a folder for --out, got the file {out}: choose another")
        return _writable(out)
    base = "-".join(plain(word) for word in words)
    folder, number = ROOT / base, 2
    while (following := ROOT / f"{base}-{number}").exists():
        folder, number = following, number + 1
    return _writable(folder)


def plain(word: str) -> str:
    """A word that is safe in a folder's name: of a path the last part, without its ending."""
    name = word.rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^\w+.-]+", "-", re.sub(r"\.(npz|csv|py)\b", "", name)).strip("-.") or "data"


def asked_for(out: Path) -> Path:
    """The folder a user asked for, which has to be new or empty."""
    try:
        os.lstat(out)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # nothing there yet, or nothing there to look at: said below
    except (OSError, ValueError) as error:  # too long, or with characters no file system takes
        raise UserError(f"expected a folder's path for --out, got {str(out)[:40]!r}: {error.args[-1]}") from None
    if out.exists() and not out.is_dir():
        raise UserError(f"expected a folder for --out, got the file {out}: choose another")
    if out.is_dir() and any(out.iterdir()):
        raise UserError(f"expected a new or empty folder for --out, got {out}, which is not empty: choose another")
    return _writable(out)


def shared(folder: Path) -> Path:
    """A folder that may hold finished runs already, if it can be written to."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"expected a folder for --out, got the file {folder}: choose another")
    return _writable(folder)


def _writable(folder: Path) -> Path:
    """Whether the folder could be made, told before anything trains."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not there.is_dir():
        raise UserError(f"cannot make the folder {folder}: {there} is a file; choose another --out")
    try:
        with tempfile.TemporaryDirectory(dir=there):  # trying is the only sure way to know
            return folder
    except OSError:
        raise UserError(f"cannot make the folder {folder}: {there} is not writable; choose another --out") from None


def kept(folder: Path) -> str:
    """One sentence: which runs and rounds a folder holds after an interruption."""
    from fedssd.runs.read import is_finished, rounds_recorded

    records = sorted(folder.rglob("rounds.jsonl")) if folder.is_dir() else []
    rounds = sum(rounds_recorded(record.parent) for record in records)
    if rounds == 0:
        return f"no round had ended, so {folder} holds no results" if folder.exists() else "nothing was written"
    finished = sum(is_finished(record.parent) for record in records)
    of_runs = f" of {many(len(records), 'run')} ({finished} finished)" if len(records) > 1 else ""
    return f"{many(rounds, 'round')}{of_runs} kept in {folder}"


def interrupted(error: KeyboardInterrupt, folder: Path) -> KeyboardInterrupt:
    """The same interruption with a sentence: what is kept in the folder, and how to go on."""
    from fedssd.runs.folder import UNDER_WAY

    begun = any((folder / name).exists() for name in ("recipe.toml", "runs.json"))
    how = f"; go on with: {program()} {shlex.join(['resume', str(folder)])}" if begun else ""
    if (folder / UNDER_WAY).is_dir():
        how = "; the same command goes on"
    return type(error)(kept(folder) + how)


def leave_report(results: Sequence[Result], out: Path, title: str, paired: Table | None = None) -> None:
    """Write the page of these runs beside them, unless none has anything to show."""
    from fedssd.reports.page import report
    from fedssd.runs.folder import write_whole

    shown = [one for one in results if one.summary.accuracy is not None]
    if shown:
        write_whole(out / REPORT, report(shown, title, paired).encode())


def write_table(table: Table, out: Path) -> None:
    """Write a table for pages and for spreadsheets."""
    (out / "table.md").write_text(table.markdown(), encoding="utf-8")
    (out / "table.csv").write_text(table.csv(), encoding="utf-8")


def show_table(table: Table) -> None:
    """Print a table, with colours on a terminal that may have them."""
    print(table.text(colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))


def not_a_folder(path: Path) -> str:
    """What a path is in place of a folder, and the folder that was perhaps meant."""
    try:
        there = [str(place) for place in path.parent.iterdir() if place.is_dir()]
    except OSError:
        there = []
    close = get_close_matches(str(path), there, n=1)
    return ("a file" if path.exists() else "not there") + (f": did you mean {close[0]}?" if close else "")


def refuse_federation(folder: Path) -> None:
    """What Flower ran goes on over Flower: name the command."""
    from fedssd.runs.read import header_of

    app = next((place for place in (folder, *folder.resolve().parents) if (place / FEDERATION).is_file()), None)
    if app == folder:
        run = folder / "runs" / "federation"
        what = f"{folder} is a federation's app, and its runs are below it"
    elif header_of(folder).get("engine") == "flower":
        run, what = folder, f"{folder} is a federation's run"
    else:
        return
    command = ["federation", "run", os.path.relpath(app) if app else "APP", "--resume", str(run)]
    raise UserError(f"{what}: go on with {program()} {shlex.join(command)}")


def program() -> str:
    """How to call this program again from here: its name if it is on the path, else the way it was called."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return "python -m fedssd"
    if shutil.which("fedssd") or called.name != "fedssd":
        return "fedssd"
    return os.path.relpath(called)


def many(count: int, thing: str) -> str:
    """1 round, 2 rounds."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def ended(results: Sequence[Result]) -> int:
    """The exit status of what ran: 1 where a run failed or stopped early, which is said of each."""
    from fedssd.runs.checkpoint import how_to_recover
    from fedssd.runs.folder import RunFolder

    failed = [result for result in results if result.summary.failed]
    stopped = [result for result in results if result.summary.ended]
    for result in failed:
        summary, where = result.summary, f" {result.folder}" if result.folder else ""
        how = how_to_recover(RunFolder(result.folder) if result.folder else None)
        print(f"fedssd: run{where} failed in round {summary.rounds}: {summary.failed}; {how}", file=sys.stderr)
    for result in stopped:
        summary, where = result.summary, f" {result.folder}" if result.folder else ""
        how = f"stopped after round {summary.rounds} of {summary.of_rounds}"
        print(f"fedssd: run{where} {how}: {summary.ended}", file=sys.stderr)
    return 1 if failed or stopped else 0
