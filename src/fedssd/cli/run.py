"""``fedssd run``: train one method and record every round."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedssd.cli import output
from fedssd.cli.parser import RECIPE_NOTE, add_output_flags, add_recipe_flags, examples, overrides, recipe_source
from fedssd.cli.progress import listening, spoken

if TYPE_CHECKING:
    from fedssd.recipe import Recipe
    from fedssd.simulation.events import Listener
    from fedssd.simulation.result import Summary

Done = TypeVar("Done")
EXAMPLES = examples(
    "fedssd run                                               FedSSD on digits, with the recipe of that name",
    "fedssd run --local fedntd --partition classes:2 --seed 1",
    "fedssd run --local fedssd --fedssd.m-max 0.3             another strength",
    "fedssd run --local fedssd+fedprox --server fednova       two local halves added up, and another server half",
    "fedssd run --local my_method.py:MyLoss                   your own, from a file",
    "fedssd run --recipe runs/digits-fedssd-0/recipe.toml     the same run again",
)


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "run",
        usage="fedssd run [flags]",
        description=f"Train one method and record every round.\n{RECIPE_NOTE}",
        epilog=EXAMPLES,
        add_help=False,
    )
    add_recipe_flags(parser)
    add_output_flags(parser, "runs/<data>-<method>-<seed>")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the recipe, then say how it went and where it is."""
    from fedssd.recipe import load_recipe

    given = overrides(args, "run")
    source, remark = recipe_source(args, given)
    recipe = load_recipe(source, given)
    out = output.folder(args, recipe.data, recipe.method, str(recipe.seed))
    if args.resume:
        output.refuse_federation(out)
    return run(recipe, out, args, args.resume, remark)


def run(recipe: Recipe, out: Path, args: argparse.Namespace, resume: bool | str, remark: str = "") -> int:
    """Run a recipe into a folder, or go on with it there, and say how it went."""
    from fedssd.runs.loop import run_recipe

    what = f"{recipe.method} on {setting(recipe)}"
    result = train(args, out, recipe, what, lambda listen: run_recipe(recipe, out, listen, resume=resume), remark)
    output.leave_report([result], out, what)
    if args.json:
        print(json.dumps(result.summary.to_json()))
    else:
        print("\n".join(describe(result.summary, recipe)))
        print(f"results: {out}/ (report.html, recipe.toml, rounds.jsonl, summary.json)")
    return output.ended([result])


def train(
    args: argparse.Namespace,
    out: Path,
    recipe: Recipe,
    what: str,
    work: Callable[[Listener], Done],
    remark: str = "",
) -> Done:
    """Do what a command asks for, with its progress shown and tracked; an interruption says what was kept."""
    from fedssd.recipe import briefly

    opening = "\n".join(filter(None, (what, remark, briefly(recipe))))
    try:
        with listening(args.quiet, opening) as show, tracking(args.track, out, show) as listen:
            return work(listen)
    except KeyboardInterrupt as error:
        raise output.interrupted(error, out) from None


def tracking(name: str | None, out: Path, listen: Listener) -> AbstractContextManager[Listener]:
    """The listener, told to a tracker too where one is asked for; one that is not installed is refused at once."""
    if name is None:
        return nullcontext(listen)
    from fedssd.runs.tracking import tracked, tracker

    return tracked(tracker(name), out, listen)


def setting(recipe: Recipe) -> str:
    """What a run is about, in half a line."""
    share = "" if recipe.participation == 1 else f", {recipe.participation:g} of them a round"
    rounds, epochs = output.many(recipe.rounds, "round"), output.many(recipe.epochs, "epoch")
    return f"{recipe.data}, {recipe.partition}, {output.many(recipe.clients, 'client')}{share}, {rounds} of {epochs}"


def describe(summary: Summary, recipe: Recipe) -> list[str]:
    """The run in three lines."""
    from fedssd.recipe import briefly

    lines = []
    if summary.accuracy is not None and summary.best_accuracy is not None:
        lines.append(
            f"{recipe.method} on {recipe.data}, seed {recipe.seed}: global accuracy {100 * summary.accuracy:.2f} % "
            f"after {output.many(summary.rounds, 'round')} "
            f"(best {100 * summary.best_accuracy:.2f} % in round {summary.best_round})"
        )
    if summary.local_accuracy is not None and summary.forgetting is not None:
        lines.append(
            f"the clients' own models: {100 * summary.local_accuracy:.2f} % on average, "
            f"forgetting gap {round(100 * summary.forgetting, 2) + 0.0:.2f} points"
        )
    if summary.privacy is not None:
        lines.append(f"privacy: {summary.privacy}")
    if short := briefly(recipe):
        lines.append(short)
    if summary.diverged is not None:
        lines.append(f"training broke down in round {summary.diverged}: these figures mean nothing")
    if summary.dropped:
        taken = f"{output.many(summary.dropped, 'update')} did not go into the average (`dropped` in rounds.jsonl)"
        unchanged = summary.unchanged_rounds
        lines.append(f"{taken}; in {output.many(unchanged, 'round')} none did" if unchanged else taken)
    time = f"{summary.seconds:.1f} s" if summary.seconds < 10 else spoken(summary.seconds)
    lines.append(f"{size(summary.bytes_up)} up, {size(summary.bytes_down)} down, {time}")
    return lines


def size(count: int) -> str:
    """Bytes in a unit that leaves something to read."""
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
