"""``fedssd resume``: go on with a run, a comparison or a sweep where it stopped."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedssd.cli import compare, output, run, sweep
from fedssd.cli.parser import a_path, add_speech_flags, examples
from fedssd.errors import UserError

EXAMPLES = examples(
    "fedssd resume runs/digits-fedssd-0                 from the last whole checkpoint to the end",
    "fedssd resume runs/digits-fedssd-0 --rounds 200    more rounds than were asked for at first",
    "fedssd resume runs/digits-fedssd-0 --from last-good    from before a model went bad",
    "fedssd resume runs/compare-digits                  what is finished is not run again",
)


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "resume",
        usage="fedssd resume DIR [flags]",
        description="Go on with a run, a comparison or a sweep where it stopped, as if it had not.",
        epilog=EXAMPLES,
        add_help=False,
    )
    group = parser.add_argument_group("what goes on")
    group.add_argument("folder", type=a_path, metavar="DIR", help="the folder of a run, a comparison or a sweep")
    group.add_argument("--rounds", metavar="N", help="go on to this many rounds (default: as many as were asked for)")
    group.add_argument(
        "--from",
        dest="start",
        default="last",
        choices=("last", "last-good"),
        help="a run's last checkpoint, or the one before its model went bad (default: %(default)s)",
    )
    group.add_argument("--workers", default="0", metavar="N", help="processes; 0 is one a core (default: %(default)s)")
    add_speech_flags(parser.add_argument_group("output"))
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Go on with what the folder holds."""
    from fedssd.data.arrays import OWN
    from fedssd.recipe import load_recipe
    from fedssd.sweeps.grid import PLAN

    if (args.folder / PLAN).is_file():
        return _many(args)
    output.refuse_federation(args.folder)
    if not (args.folder / "recipe.toml").is_file():
        raise UserError(f"expected the folder of a run, a comparison or a sweep, got {_got(args.folder)}")
    recipe = load_recipe(args.folder / "recipe.toml", _rounds(args))
    if recipe.data == OWN:
        raise UserError(
            f"{args.folder} ran on {OWN}, which no file holds: call fedssd.run(…, out=…, resume=True) again"
        )
    start = True if args.start == "last" else args.start
    return run.run(recipe, args.folder, args, start)


def _got(folder: Path) -> str:
    """What is there instead of a run, and what was perhaps meant."""
    if not folder.is_dir():
        return f"{folder}, which is {output.not_a_folder(folder)}"
    if any(folder.rglob("under-way")) or any(folder.glob("*.tex")):
        return f"{folder}, the folder of `studies.paper` or `fedssd bench`: the same command goes on with it"
    below = sorted({file.parent for name in ("runs.json", "recipe.toml") for file in folder.glob(f"*/{name}")})
    named = ", ".join(map(str, below[:3])) + (", …" if len(below) > 3 else "")
    return f"{folder}, which is none itself: name one of those in it, {named}" if below else f"{folder}: it holds none"


def _many(args: argparse.Namespace) -> int:
    from fedssd.recipe import Recipe, check, merge
    from fedssd.sweeps.grid import read_plan

    if args.start != "last":
        raise UserError(f"--from {args.start} is for one run, and {args.folder} holds many: name the folder of one")
    workers = compare.whole("fedssd resume", "--workers", args.workers)
    asked = read_plan(args.folder).asked
    if asked.get("command") not in ("compare", "sweep"):
        raise UserError(
            f"{args.folder} was begun by `studies.paper` or `fedssd bench`: the same command goes on with it"
        )
    methods, seeds = asked.get("methods", []), asked["seeds"]
    recipe = check(merge(Recipe(), {**asked["base"], **_rounds(args)}, str(args.folder)), methods)
    if asked["command"] == "sweep":
        return sweep.sweep(recipe, asked["grid"], seeds, workers, args.folder, args, True)
    return compare.compare(recipe, methods, seeds, workers, args.folder, args, True)


def _rounds(args: argparse.Namespace) -> dict[str, str]:
    return {} if args.rounds is None else {"rounds": args.rounds}
