"""``python -m studies.paper run``: the paper's tables and figures, ours beside the published."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fedssd
from fedssd.cli import output
from fedssd.cli.compare import seed_count, whole
from fedssd.cli.flags import add_speech_flags
from fedssd.cli.parser import UsageError, a_path, examples, settings_given
from studies.paper.commands import PROGRAM
from studies.paper.commands.plan import show_cells
from studies.paper.missing import run_missing, tracking

if TYPE_CHECKING:
    from studies.paper.cell import Cell
    from studies.paper.cells import Place
    from studies.paper.paper import Experiment

DATASETS = ("cifar10", "cifar100", "tiny-imagenet")
Splits = Sequence[tuple[str, list[list[int]]]]  # a setting, and how many samples of each class a client holds
EXAMPLES = examples(
    "python -m studies.paper run table1 --dataset cifar10        Table 1's first column, three seeds",
    "python -m studies.paper run table2 --only table2-classes-2  one column",
    "python -m studies.paper run table2 --only '#K = 2' --methods FedSSD --plan   one cell: what would run",
    "python -m studies.paper run table2 --seeds 5 --out results/paper             more seeds beside those there",
    "python -m studies.paper run all --scale small               everything on digits, in minutes, on a CPU",
    "python -m studies.paper run figure-distribution             no training: who holds what",
    "python -m studies.paper run study --part screen --plan      the study of open choices: what would run",
    "python -m studies.paper run study --part report --only FedProx --only '#K = 2'   one method on one column",
)


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    from studies.paper.paper import EVERYTHING, EXPERIMENTS, STUDY
    from studies.paper.study.design import PARTS

    parser = commands.add_parser(
        "run",
        usage="python -m studies.paper run NAME [flags]",
        description="Run what is missing of a table or figure of the paper, and put it beside the published one.",
        epilog=EXAMPLES,
        add_help=False,
    )
    add = parser.add_argument
    names = ", ".join([*EXPERIMENTS, EVERYTHING])
    add("name", metavar="NAME", help=f"{names}, or {STUDY}: what the paper leaves open")
    add("--part", default=EVERYTHING, metavar="NAME", help=f"of the study: {', '.join(PARTS)} (default: %(default)s)")
    add(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="one column, by its recipe's name or its title; of a part of the study one choice, setting, composition, "
        "arm or label; there it may be repeated, for rows that go by all the names",
    )
    add(
        "--pipeline", metavar="NAME", help="of the study: one of the profile's, as its row has it (default: the chosen)"
    )
    add("--plan", action="store_true", help="say what would run, and run nothing")
    add("--dataset", choices=DATASETS, metavar="NAME", help=f"only the columns on it: {', '.join(DATASETS)}")
    add("--methods", metavar="A,B", help="only these methods (default: all of the table's)")
    add(
        "--seeds", metavar="N", help="how many seeds, from 0 on (default: 3, or 2 where small); of the study which: 3,4"
    )
    add("--rounds", metavar="N", help="communication rounds (default: the paper's, 8 where small)")
    add("--scale", choices=("full", "small"), default="full", metavar="NAME", help="full, or small: digits on a CPU")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of every recipe; may be repeated")
    add("--out", type=a_path, metavar="DIR", help="where runs and tables are (default: runs/reproduce, or -small)")
    add("--reuse", type=a_path, action="append", default=[], metavar="DIR", help="finished runs to take from elsewhere")
    add("--workers", default="0", metavar="N", help="processes; 0 is one a core, on a GPU one (default: %(default)s)")
    add("--figures", action="store_true", help="the report's figures as PNG and PDF, too (needs fedssd[figures])")
    add_speech_flags(parser)
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Find what is there, run what is not, write tables, figures and the report."""
    from fedssd.reports.plots import need_matplotlib, write_figures
    from fedssd.runs.read import look
    from fedssd.sweeps.cache import finished_cells, finished_runs
    from studies.paper.batches import alone
    from studies.paper.cells import places_of
    from studies.paper.paper import EVERYTHING, STUDY, experiments

    _check_reuse(args.reuse)
    if args.name == STUDY:
        from studies.paper.commands import study

        return study.main(args)
    for flag, given in (("part", args.part != EVERYTHING), ("pipeline", args.pipeline is not None)):
        if given:
            raise UsageError(f"{PROGRAM}: --{flag} is for the study")
    if len(args.only) > 1:
        got = " and ".join(map(repr, args.only))
        raise UsageError(f"{PROGRAM}: --only expects one column of the paper's tables, got {got}")
    wanted, small = experiments(args.name), args.scale == "small"
    if args.figures:
        need_matplotlib()
    count = seed_count(PROGRAM, args.seeds or ("2" if small else "3"))
    workers = whole(PROGRAM, "--workers", args.workers)
    methods = _methods(args.methods, wanted)
    found = {e.name: places_of(e, _changes(args), small, args.dataset) for e in wanted}
    if not any(found.values()):
        raise UsageError(f"{PROGRAM}: {args.name} has no column on {args.dataset}")
    if args.only:
        found = _only(args.only[0], found)
    wanted = [experiment for experiment in wanted if found[experiment.name]]
    cells = _cells(wanted, found, range(count), methods)
    out = _folder(args.out, small)
    track = tracking(args.track, out)
    if args.plan:
        there = [folder for folder in (out, *args.reuse) if folder.is_dir()]
        return show_cells(cells, finished_cells(there), args.json)
    with alone(out):
        ran = run_missing(cells, out, lambda: finished_runs([out, *args.reuse]), workers, args.quiet, track)
        done = finished_cells([out, *args.reuse])
        written = write(wanted, found, range(count), methods, out, done, "digits" if small else "")
    reused = [run for cell in cells if (run := done.get(cell.key)) and out.resolve() not in run.resolve().parents]
    title = f"{args.name}{' on digits' if small else ''}"
    for what in look([out, *reused]).damaged.values():
        if not args.quiet:
            print(f"left out: {what}", file=sys.stderr)
    pages = [fedssd.report([out, *reused], out / output.REPORT, title)] if done else []
    written += pages
    if pages and args.figures:
        written += write_figures([out, *reused], out / "figures")
    if args.json:
        print(json.dumps({"folder": str(out), "ran": ran, "written": [str(path) for path in written]}))
        return 0
    for path in written:
        if path.suffix == ".md":
            print(path.read_text(encoding="utf-8"))
    print(f"results: {out}/ ({', '.join(_named(written, out))})")
    return 0


def _cells(
    wanted: Sequence[Experiment],
    found: Mapping[str, Sequence[Place]],
    seeds: Sequence[int],
    methods: Sequence[str] | None,
) -> list[Cell]:
    """Every cell of these columns and methods, and of a table FedAvg's, which its gains are measured against."""
    from studies.paper.cells import cells_of, fedavg_of

    cells: list[Cell] = []
    for experiment in wanted:
        for place in found[experiment.name]:
            own = cells_of(place, seeds, methods)
            cells += [*(fedavg_of(place, seeds) if own and is_table(experiment) else []), *own]
    return list({cell.name: cell for cell in cells}.values())


def is_table(experiment: Experiment) -> bool:
    from studies.paper.report import figure_data

    return experiment.name not in ("figure-distribution", *figure_data.OF_RUNS)


def _named(written: Sequence[Path], out: Path) -> list[str]:
    """What to open first: the page, then the tables, each once for its several kinds of file, then folders."""
    found = [path.relative_to(out) for path in written]
    files = dict.fromkeys(path.stem for path in found if len(path.parts) == 1 and path.suffix != ".html")
    kinds = {stem: [p.suffix for p in found if p.parts == (p.name,) and p.stem == stem] for stem in files}
    pages = [path.name for path in found if path.suffix == ".html"]
    folders = dict.fromkeys(f"{path.parts[0]}/" for path in found if len(path.parts) > 1)
    return [*pages, *(f"{stem}{'|'.join(suffixes)}" for stem, suffixes in kinds.items()), *folders]


def _check_reuse(folders: Sequence[Path]) -> None:
    from fedssd.runs.archive import packs_below

    for folder in folders:
        if not folder.is_dir() and not packs_below(folder):
            what = f"{folder}, which is {output.not_a_folder(folder)}"
            raise UsageError(f"{PROGRAM}: --reuse expects a folder with runs, got {what}")


def _changes(args: argparse.Namespace) -> dict[str, str]:
    given = {} if args.rounds is None else {"rounds": args.rounds}
    return given | settings_given(args.set, PROGRAM)


def _only(name: str, found: Mapping[str, Sequence[Place]]) -> dict[str, list[Place]]:
    """That column wherever it is, by its recipe's name or its title."""
    from studies.paper.report.row_names import plain

    wanted = plain(name)
    chosen = {
        table: [place for place in places if wanted in (plain(place.column.recipe), plain(place.column.title))]
        for table, places in found.items()
    }
    if not any(chosen.values()):
        known = ", ".join(dict.fromkeys(place.column.recipe for places in found.values() for place in places))
        raise UsageError(f"{PROGRAM}: --only expects one of {known}, or a column's title, got {name!r}")
    return chosen


def _methods(text: str | None, wanted: Sequence[Experiment]) -> list[str] | None:
    if text is None:
        return None
    known = list(dict.fromkeys(m for experiment in wanted for column in experiment.columns for m in column.methods))
    given = [name.strip() for name in text.split(",") if name.strip()]
    if not given:
        raise UsageError(f"{PROGRAM}: --methods expects at least one of {', '.join(known)}, got {text!r}")
    for name in given:
        if name.casefold() not in known:  # a page calls it FedProx
            raise UsageError(f"{PROGRAM}: --methods expects some of {', '.join(known)}, got {name!r}")
    return [name.casefold() for name in given]


def _of_clients(wanted: Sequence[str], done: Mapping[str, Path], seeds: Sequence[int]) -> dict[str, str]:
    """What two of the paper's figures say of one client each, as tables, where these experiments have runs for them."""
    from studies.paper.report import kept, learnt

    titles = {
        "client-8.md": ("What client 8 keeps of the global model", kept.section, {"table1", "table3"}),
        "client-0.md": ("What client 0 makes of each class", learnt.section, {"figure-classes"}),
    }
    found = {file: (title, section(done, seeds)) for file, (title, section, of) in titles.items() if of & set(wanted)}
    return {file: f"## {title}\n\n{text}" for file, (title, text) in found.items() if text}


def _folder(out: Path | None, small: bool) -> Path:
    folder = out or output.ROOT / f"reproduce{'-small' if small else ''}"
    return output.shared(folder)


def write(
    wanted: Sequence[Experiment],
    found: Mapping[str, Sequence[Place]],
    seeds: Sequence[int],
    methods: Sequence[str] | None,
    out: Path,
    done: Mapping[str, Path],
    stand_in: str,
    known_splits: Splits | None = None,
) -> list[Path]:
    """The tables as Markdown, CSV and LaTeX; figures as SVG, and the numbers behind them.

    Who holds what is found from the data, unless it is known.
    """
    from studies.paper.cells import split_counts
    from studies.paper.report import figure_data, figure_pictures, reproduction
    from studies.paper.report.shaded_grids import split_picture

    texts: dict[str, str] = {}
    for experiment in wanted:
        columns, name = found[experiment.name], experiment.name
        if name == "figure-distribution":
            splits = known_splits or [(stand_in or p.column.title, split_counts(p.base)) for p in columns]
            texts[f"{name}.csv"] = figure_data.distribution(splits)
            texts[f"{name}.svg"] = split_picture(splits)
        elif name in figure_data.OF_RUNS:
            runs = figure_data.runs_of(columns, done, seeds, methods)
            headed = [(reproduction.heading(title, stand_in), run) for title, run in runs]
            texts[f"{name}.csv"] = figure_data.OF_RUNS[name](headed)
            if picture := figure_pictures.OF_RUNS[name](runs, stand_in):
                texts[f"{name}.svg"] = picture
        else:
            sides = reproduction.compare_with_paper(columns, done, seeds, methods, stand_in)
            texts[f"{name}.md"] = f"## {experiment.title}\n\n{reproduction.markdown(sides)}"
            texts[f"{name}.csv"] = reproduction.figures(sides).csv()
            texts[f"{name}.tex"] = reproduction.latex(experiment, sides)
    texts |= {} if stand_in else _of_clients([experiment.name for experiment in wanted], done, seeds)
    for file, text in texts.items():
        (out / file).write_text(text, encoding="utf-8")
    return [out / file for file in texts]
