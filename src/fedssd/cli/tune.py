"""``fedssd tune``: as many values for every method, chosen on some seeds and reported on others."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from fedssd.cli import output
from fedssd.cli.compare import seed_list, whole
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
from fedssd.cli.sweep import parse_grid

if TYPE_CHECKING:
    from fedssd.simulation.events import Listener
    from fedssd.sweeps.tune import Tuned

TUNING = "100,101,102"
METHODS = "fedavg,fedprox,fedssd"
EXAMPLES = examples(
    "fedssd tune --methods fedavg,fedprox,fedssd             five strengths each around its default",
    "fedssd tune --methods fedavg,fedprox --grid fedprox.mu=0.001,0.01,0.1",
    "fedssd tune --grid lr=0.01,0.03 --seeds 10,11,12        a rate for all methods, too",
)


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "tune",
        usage="fedssd tune [flags]",
        description="Try as many values for every method on tuning seeds, and compare the best on others.\n"
        f"{RECIPE_NOTE}",
        epilog=EXAMPLES,
        add_help=False,
    )
    group = parser.add_argument_group("tuning")
    group.add_argument("--methods", default=METHODS, metavar="A,B", help="what to compare (default: %(default)s)")
    group.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="values of a method's option, or of a key for all methods; may be repeated (default: five strengths each)",
    )
    group.add_argument("--tuning-seeds", default=TUNING, metavar="N,N", help="seeds that choose (default: %(default)s)")
    group.add_argument("--seeds", default="0,1,2", metavar="N,N", help="seeds that are reported (default: %(default)s)")
    group.add_argument("--workers", default="0", metavar="N", help="processes; 0 is one a core (default: %(default)s)")
    add_recipe_flags(parser, leave_out=("method", "seed"))
    add_output_flags(parser, "runs/tune-<data>")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Tune what the command line names."""
    from fedssd.recipe import load_recipe
    from fedssd.reports.comparison import tabulate
    from fedssd.sweeps.tune import grids, tune

    methods = [name.strip() for name in args.methods.split(",") if name.strip()]
    tuning, seeds = seed_list("fedssd tune", args.tuning_seeds), seed_list("fedssd tune", args.seeds)
    if not methods or not tuning or not seeds:
        raise UsageError("fedssd tune: expected at least one of --methods, --tuning-seeds and --seeds each")
    workers = whole("fedssd tune", "--workers", args.workers)
    given = overrides(args, "tune")
    source, remark = recipe_source(args, given)
    recipe = load_recipe(source, given, methods)
    cells = grids(methods, recipe, parse_grid(args.grid) if args.grid else {})
    out = output.folder(args, "tune", recipe.data)
    count = sum(len(found) for found in cells.values() if len(found) > 1)
    what = f"{output.many(count, 'cell')} × {output.many(len(tuning), 'tuning seed')} on {setting(recipe)}"

    def work(listen: Listener) -> Tuned:
        return tune(recipe, cells, tuning, seeds, out, workers, listen)

    tuned = train(args, out, recipe, what, work, remark)
    table = tabulate(tuned.results)
    output.write_table(table, out)
    output.leave_report(tuned.results, out, what)
    (out / "tuned.json").write_text(json.dumps(facts(tuned), indent=2) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps({"folder": str(out), **facts(tuned)}))
        return 0
    for method, values in tuned.chosen.items():
        tried = sum(one.method == method for one in tuned.tried)
        words = ", ".join(f"{key}={value}" for key, value in values.items())
        print(f"{method}: {words}, the best of {tried}" if tried else f"{method}: nothing to tune")
    output.show_table(table)
    print(f"chosen on seeds {args.tuning_seeds}, reported on {args.seeds}")
    print(f"results: {out}/ (report.html, tuned.json, table.md, table.csv, a folder for each run)")
    return 0


def facts(found: Tuned) -> dict[str, Any]:
    """All that was tried and chosen, as JSON holds it."""
    return {
        "chosen": found.chosen,
        "tried": [one._asdict() for one in found.tried],
        "runs": [one.summary.to_json() for one in found.results],
    }
