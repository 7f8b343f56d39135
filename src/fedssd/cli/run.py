"""``fedssd run``: train one method and record every round."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssd.cli import flags, output
from fedssd.cli.parser import examples
from fedssd.cli.progress import listening, spoken
from fedssd.cli.report import leave_report

if TYPE_CHECKING:
    from fedssd.recipe import Recipe
    from fedssd.simulation.result import Summary

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
        description=f"Train one method and record every round.\n{flags.RECIPE_NOTE}",
        epilog=EXAMPLES,
        add_help=False,
    )
    flags.add_recipe_flags(parser)
    flags.add_output_flags(parser, "runs/<data>-<method>-<seed>")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Run the recipe, then say how it went, where it is and what to try next."""
    from fedssd.recipe import load_recipe

    given = flags.overrides(args, "run")
    source, remark = flags.recipe_source(args, given)
    recipe = load_recipe(source, given)
    find = output.resumable if args.resume else output.choose
    out = find(args.out, recipe.data, recipe.method, str(recipe.seed))
    if args.resume:
        output.refuse_federation(out)
    return train(recipe, out, args, args.resume, next_command(source, given, recipe), remark)


def train(
    recipe: Recipe, out: Path, args: argparse.Namespace, resume: bool | str, following: str, remark: str = ""
) -> int:
    """Run a recipe into a folder, or go on with it there, and say how it went."""
    from fedssd.runs.loop import run_recipe
    from fedssd.runs.tracking import tracked, tracker

    try:
        opening = opened(f"{recipe.method} on {setting(recipe)}", recipe, remark)
        with listening(args.quiet, opening) as show, tracked(tracker(args.track), out, show) as listen:
            result = run_recipe(recipe, out, listen, resume=resume)
    except KeyboardInterrupt as error:
        raise output.interrupted(error, out) from None
    leave_report(out, f"{recipe.method} on {setting(recipe)}", args.quiet)
    if args.json:
        print(json.dumps(result.summary.to_json()))
        return output.ended([result])
    print("\n".join(describe(result.summary, recipe)))
    print(f"results: {out}/ (report.html, recipe.toml, rounds.jsonl, summary.json)")
    if not result.summary.failed:
        print(f"next:    {following}")
    return output.ended([result])


def setting(recipe: Recipe) -> str:
    """What a run is about, in half a line."""
    share = "" if recipe.participation == 1 else f", {recipe.participation:g} of them a round"
    rounds, epochs = output.many(recipe.rounds, "round"), output.many(recipe.epochs, "epoch")
    return f"{recipe.data}, {recipe.partition}, {output.many(recipe.clients, 'client')}{share}, {rounds} of {epochs}"


def opened(text: str, recipe: Recipe, remark: str = "") -> str:
    """What is about to run, with a remark on where its recipe comes from, and whether it is a short run."""
    from fedssd.recipe import briefly

    return "\n".join(filter(None, (text, remark, briefly(recipe))))


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


def next_command(source: str | Path | None, given: dict[str, str | bool], recipe: Recipe) -> str:
    """The same setting against FedAvg, over three seeds; against FD where different models rule FedAvg out."""
    from fedssd.recipe.resolve import model_names

    several = len(set(model_names(recipe))) > 1
    first, second = ("fd", "fedmd") if several and recipe.server == "fedavg" else ("fedavg", "fedssd")
    rival = first if recipe.method != first else second
    same = as_flags(source, {key: value for key, value in given.items() if key not in ("method", "seed")})
    words = ["compare", *same, "--methods", f"{rival},{recipe.method}", "--seeds", "0,1,2"]
    return f"{output.program()} {shlex.join(words)}"


def as_flags(source: str | Path | None, given: dict[str, str | bool]) -> list[str]:
    """What was given on the command line, written as flags again."""
    words = ["--recipe", str(source)] if source else []
    for key, value in given.items():
        name = key.replace("_", "-")
        if key.startswith("options."):
            words += ["--set", f"{key.removeprefix('options.')}={value}"]
        elif isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", value]
    return words
