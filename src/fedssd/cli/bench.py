"""``fedssd bench``: your own method against committed results, on the same splits and seeds."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from fedssd.cli import output
from fedssd.cli.compare import seed_count, whole
from fedssd.cli.flags import add_speech_flags
from fedssd.cli.missing import run_missing, tracking
from fedssd.cli.parser import UsageError, a_path, examples, settings_given

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
    from fedssd.reports.html import write_report
    from fedssd.reports.paired_table import paired_table, table_for_a_paper
    from fedssd.reports.statistics import pair
    from fedssd.runs.archive import packs_below
    from fedssd.runs.read import read_run
    from fedssd.sweeps import bench
    from fedssd.sweeps.batches import alone
    from fedssd.sweeps.cache import finished_cells, finished_runs

    count, workers = seed_count("fedssd bench", args.seeds), whole("fedssd bench", "--workers", args.workers)
    wanted = None if args.against is None else [name.strip() for name in args.against.split(",") if name.strip()]
    if wanted == []:
        raise UsageError(f"fedssd bench: --against expects at least one method, got {args.against!r}")
    if args.results is not None and not args.results.is_dir() and not packs_below(args.results):
        why = output.not_a_folder(args.results)
        raise UsageError(f"fedssd bench: --results expects a folder with runs, got {args.results}, which is {why}")
    method = with_paths(args.method)
    base = bench.base_recipe(args.dataset, method, _options(args.set))
    others = bench.rivals(base, range(count), args.results or bench.COMMITTED, wanted)
    committed = max(seed for runs in others.values() for seed in runs) + 1
    if count > committed:
        why = "committed for this setting, and a run without a rival cannot be compared"
        raise UsageError(f"fedssd bench: --seeds expects at most {committed} here, as many as are {why}, got {count}")
    cells = bench.own_cells(base, range(count))
    bench.refuse_other_splits(bench.origins(cells), others)
    name = method.rsplit(":", 1)[-1]
    usual = output.unused(output.plain(f"bench-{name}-{args.dataset}"), lambda f: bench.holds_another(f, method))
    out = output.shared(args.out or usual)
    track = tracking(args.track, out)
    with alone(out):
        there = out / bench.fingerprint(method)  # runs of this very content: what it was before counts for nothing
        ran = run_missing(cells, there, lambda: finished_runs([there], method), workers, args.quiet, track)
        done = finished_cells([there], method)
        own = {cell.recipe.seed: done[cell.key] for cell in cells}
        bench.refuse_other_splits({seed: bench.origin(run) for seed, run in own.items()}, others)

        def final(run: Path) -> float:
            return percent(read_run(run))

        mine = {seed: final(run) for seed, run in own.items()}
        rivals = [pair(m, {seed: final(run) for seed, run in runs.items()}, mine) for m, runs in others.items()]
        accuracies = list(mine.values())
        table, for_a_paper = (build(name, accuracies, rivals) for build in (paired_table, table_for_a_paper))
        texts = {"bench.md": table.markdown(), "bench.csv": table.csv(), "bench.tex": for_a_paper.latex()}
        for file, text in texts.items():
            (out / file).write_text(text, encoding="utf-8")
        runs = [*own.values(), *(run for found in others.values() for run in found.values())]
        write_report(runs, out / "report.html", f"{name} on {args.dataset}", table)
    if args.json:
        gains = {rival.method: rival.gains for rival in rivals}
        print(json.dumps({"folder": str(out), "ran": ran, "accuracies": accuracies, "gains": gains}))
        return 0
    print(table.text())
    print(f"results: {out}/ (report.html, bench.md, bench.csv, bench.tex, a folder for each run)")
    return 0


def _options(words: list[str]) -> dict[str, str]:
    """What ``--set`` changes of the method, or of where it runs; the recipe is that of the committed runs."""
    from fedssd.recipe import KEYS, MACHINE

    changes = settings_given(words, "fedssd bench")
    for key in changes:
        if key in KEYS and key not in MACHINE:
            why = f"{key} is a key of the recipe, which stays that of the committed runs"
            raise UsageError(f"fedssd bench: --set is for options of your method, such as myloss.beta=0.5; {why}")
    return changes
