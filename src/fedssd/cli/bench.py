"""``fedssd bench``: your own method against committed results, on the same splits and seeds."""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssd.cli import output
from fedssd.cli.compare import seed_count, whole
from fedssd.cli.parser import UsageError, a_path, add_speech_flags, examples, settings_given
from fedssd.cli.run import setting, train
from fedssd.errors import DamagedError, UserError, perhaps

if TYPE_CHECKING:
    from fedssd.recipe import Recipe
    from fedssd.simulation.result import Result

CHECKOUT, PACKAGE = Path(__file__).parents[3] / "results", Path(__file__).parents[1] / "results"
COMMITTED = CHECKOUT if (CHECKOUT / "digits.runs.jsonl.gz").is_file() else PACKAGE
EXAMPLES = examples(
    "fedssd bench my_method.py:MyLoss                          on digits, against all that is committed",
    "fedssd bench my_method.py:MyLoss --set myloss.beta=0.5    with another strength",
    "fedssd bench my_method.py:MyLoss --dataset cifar10 --against fedavg,fedssd",
)


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    from fedssd.recipe import NAMED

    parser = commands.add_parser(
        "bench",
        usage="fedssd bench FILE.py:NAME [flags]",
        description="Run your own method where committed results were made, and compare seed by seed.",
        epilog=EXAMPLES,
        add_help=False,
    )
    add = parser.add_argument
    add("method", metavar="FILE.py:NAME", help="your method; a sum such as my_method.py:MyLoss+fedprox works too")
    add("--dataset", default="digits", metavar="NAME", help=f"one of {', '.join(NAMED)} (default: %(default)s)")
    add("--against", metavar="A,B", help="only these methods (default: all that are committed for this setting)")
    add("--seeds", default="3", metavar="N", help="how many seeds, from 0 on (default: %(default)s)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of your method, or where it runs (device, engine); may be repeated",
    )
    add("--results", type=a_path, metavar="DIR", help="where committed runs are (default: those that come with fedssd)")
    add(
        "--out",
        type=a_path,
        metavar="DIR",
        help="where yours go (default: runs/bench-<name>-<dataset>, numbered beside another file's)",
    )
    add("--workers", default="0", metavar="N", help="processes; 0 is one a core, on a GPU one (default: %(default)s)")
    add_speech_flags(parser)
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Find the committed runs, run the user's where they are missing, write and print the table."""
    from fedssd.methods.registry import with_paths
    from fedssd.reports.comparison import percent
    from fedssd.reports.paired_table import paired_table, table_for_a_paper
    from fedssd.reports.statistics import pair
    from fedssd.runs.archive import packs_below
    from fedssd.sweeps.cache import finished, run_many

    count, workers = seed_count("fedssd bench", args.seeds), whole("fedssd bench", "--workers", args.workers)
    wanted = None if args.against is None else [name.strip() for name in args.against.split(",") if name.strip()]
    if wanted == []:
        raise UsageError(f"fedssd bench: --against expects at least one method, got {args.against!r}")
    place: Path = args.results or COMMITTED
    if not place.is_dir() and not packs_below(place):
        why = output.not_a_folder(place)
        raise UsageError(f"fedssd bench: --results expects a folder with runs, got {place}, which is {why}")
    method = with_paths(args.method)
    base = setting_of(args.dataset, method, _options(args.set))
    others = rivals(base, count, place, wanted)
    most = 1 + max(run.summary.seed for runs in others.values() for run in runs)
    if count > most:
        why = "committed for this setting, and a run without a rival cannot be compared"
        raise UsageError(f"fedssd bench: --seeds expects at most {most} here, as many as are {why}, got {count}")
    recipes = [base.replace(seed=seed).resolved() for seed in range(count)]
    refuse_other_splits(recipes, others)
    name = method.rsplit(":", 1)[-1]
    usual = output.unused(output.plain(f"bench-{name}-{args.dataset}"), lambda folder: holds_another(folder, method))
    out = output.shared(args.out or usual)
    left = len(recipes) - len(finished(recipes, out))
    what = f"{name}: {output.many(count, 'seed')} on {setting(base)}, {count - left} finished"
    own = train(args, out, base, what, lambda listen: run_many(recipes, cache=out, workers=workers, listen=listen))
    mine = {run.summary.seed: percent(run) for run in own}
    theirs = {method: {run.summary.seed: percent(run) for run in runs} for method, runs in others.items()}
    table, for_a_paper = (build(name, mine, theirs) for build in (paired_table, table_for_a_paper))
    texts = {"bench.md": table.markdown(), "bench.csv": table.csv(), "bench.tex": for_a_paper.latex()}
    for file, text in texts.items():
        (out / file).write_text(text, encoding="utf-8")
    runs = [*own, *(run for found in others.values() for run in found)]
    output.leave_report(runs, out, f"{name} on {args.dataset}", table)
    if args.json:
        gains = {method: pair(mine, found).values for method, found in theirs.items()}
        print(json.dumps({"folder": str(out), "ran": left, "accuracies": list(mine.values()), "gains": gains}))
        return output.ended(own)
    print(table.text())
    print(f"results: {out}/ (report.html, bench.md, bench.csv, bench.tex, a folder for each run)")
    return output.ended(own)


def setting_of(dataset: str, method: str, changes: Mapping[str, str]) -> Recipe:
    """The setting of the committed runs on a dataset, for this method."""
    from fedssd.recipe import NAMED, PAPER_METHODS, load_recipe
    from fedssd.recipe.resolve import with_printed

    if dataset not in NAMED:
        raise UserError(f"unknown dataset {dataset!r}: expected one of {', '.join(NAMED)}{perhaps(dataset, NAMED)}")
    methods = (*PAPER_METHODS, method)
    recipe = load_recipe(dataset, {**changes, "method": method}, methods)
    return recipe if dataset == "digits" else with_printed(recipe, methods)


def rivals(base: Recipe, count: int, place: Path, wanted: Sequence[str] | None = None) -> dict[str, list[Result]]:
    """Committed runs of other methods on exactly this setting, FedAvg first; none may be damaged."""
    from fedssd.recipe import PAPER_METHODS
    from fedssd.runs.read import look, read_run
    from fedssd.sweeps.cache import recipes_of_finished

    for what in look([place]).damaged.values():
        raise DamagedError(what)
    there = list(recipes_of_finished([place]))
    runs = {recipe.hash: run for recipe, run in there}  # of repeats the last
    known = dict.fromkeys((*PAPER_METHODS, *sorted({recipe.method for recipe, _ in there})))
    found: dict[str, list[Result]] = {}
    for method in known if wanted is None else wanted:
        keys = [base.replace(method=method, seed=seed).resolved().hash for seed in range(count)]
        if any(key in runs for key in keys):
            found[method] = [read_run(runs[key]) for key in keys if key in runs]
        elif wanted is not None:
            raise UserError(f"{place} holds no finished run of {method} on this setting: leave it out of --against")
    if not found:
        raise UserError(
            f"{place} holds no finished run on the setting of {base.data}.toml: name another with --results"
        )
    return found


def refuse_other_splits(recipes: Sequence[Recipe], others: Mapping[str, Sequence[Result]]) -> None:
    """Paired differences need the same data dealt out the same way; looked at, and the method tried, before it trains.

    What ``paired`` asks of results, asked of recipes.
    """
    from fedssd.simulation.setup import assemble_all

    own = {one.recipe.seed: (one.partition.hash, one.dataset.fingerprint) for one in assemble_all(recipes)}
    for method, runs in others.items():
        for run in runs:
            mine, theirs = own[run.recipe.seed], (run.provenance.get("split_hash"), run.provenance.get("data"))
            if mine != theirs:
                where = f"{method} seed {run.recipe.seed} in {run.folder}"
                raise UserError(f"{where} had another split or other data: {theirs}, yours {mine}")


def holds_another(folder: Path, method: str) -> bool:
    """Whether a folder has runs of another method than this, such as another file's class of the same name."""
    for file in folder.rglob("recipe.toml"):
        with suppress(OSError, ValueError, RecursionError):
            if tomllib.loads(file.read_text(encoding="utf-8")).get("method") != method:
                return True
    return False


def _options(words: list[str]) -> dict[str, str]:
    """What ``--set`` changes of the method, or of where it runs; the recipe is that of the committed runs."""
    from fedssd.recipe import KEYS, MACHINE

    changes = settings_given(words, "fedssd bench")
    for key in changes:
        if key in KEYS and key not in MACHINE:
            why = f"{key} is a key of the recipe, which stays that of the committed runs"
            raise UsageError(f"fedssd bench: --set is for options of your method, such as myloss.beta=0.5; {why}")
    return changes
