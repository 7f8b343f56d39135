"""``python -m studies.paper``: the paper's tables and figures run again, and a study of what it leaves open."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import fedssd
from fedssd import Recipe, UserError
from studies.paper import choose, tables
from studies.paper.design import PARTS
from studies.paper.evidence import Evidence
from studies.paper.paper import EXPERIMENTS, NAMES, THEIRS, experiment
from studies.paper.progress import progress
from studies.paper.results import PACKS, ROOT, Runs
from studies.paper.study_tables import TABLES as STUDY
from studies.paper.theory import command as theory
from studies.paper.trials import Study, Trial

TABLES = ("table1", "table2", "table3", "participation", "epochs")
EXAMPLES = """examples:
  python -m studies.paper tables                                    the paper's tables from results/, in seconds
  python -m studies.paper run table1 --dataset cifar10              trains what results/ and runs/paper lack of a column
  python -m studies.paper run table2 --only '#K = 2' --methods fedssd --seeds 5
  python -m studies.paper plan study --part report --only FedProx   what would run of the study, and what was never run
  python -m studies.paper run all --scale small                     every table on digits, in minutes, on a CPU
"""


@dataclass(frozen=True)
class Row:
    """What a plan shows in a line: some runs that go together."""

    words: tuple[str, str, str]  # the table or part, the column or choice, the method
    recipes: tuple[Recipe, ...]


def rows(args: argparse.Namespace, study: Study) -> list[Row]:
    """What a command names, by table, column and method, or by part, choice and label."""
    if args.name == "study":
        parts = PARTS if args.part == "all" else (args.part,)
        found = [(part, trial) for part in parts for trial in named(args.only, study.trials(part), study)]
        beside = [(part, one) for part, trial in found for one in study.compared_with(trial)] if args.only else []
        both = [*found, *beside]
        every = [one for place, one in enumerate(both) if one not in both[:place]]
        return [Row((part, _title(one.group), f"{one.label}, {one.arm}"), tuple(one.recipes)) for part, one in every]
    small, wanted = args.scale == "small", [EXPERIMENTS[args.name]] if args.name in EXPERIMENTS else []
    wanted = wanted or ([EXPERIMENTS[name] for name in TABLES] if args.name == "all" else [experiment(args.name)])
    methods = None if args.methods is None else {THEIRS, *args.methods.lower().split(",")}
    if unknown := (methods or set()) - NAMES.keys():
        raise UserError(f"--methods expects some of {', '.join(NAMES)}, got {', '.join(sorted(unknown))}")
    seeds = range(args.seeds or (2 if small else 3))
    changes = {} if args.rounds is None else {"rounds": args.rounds}
    found_rows = []
    for one in wanted:
        for column, base in tables.places(one, small, args.dataset or ""):
            if not args.only or plain(args.only[0]) in (plain(column.recipe), plain(column.title)):
                for method in dict.fromkeys(
                    (THEIRS, *column.methods) if column.methods else ()
                ):  # gains are over FedAvg
                    if methods is None or method in methods:
                        recipes = tuple(base.replace(method=method, seed=seed, **changes) for seed in seeds)
                        found_rows.append(Row((one.name, column.title, method), recipes))
    return found_rows


def named(only: Sequence[str], trials: Sequence[Trial], study: Study) -> list[Trial]:
    """Those that go by all of these names: of a choice, column, composition, label or arm, or what a table calls it."""
    known, wanted = study.titles(), {plain(name) for name in only}

    def own(trial: Trial) -> set[str]:
        words = (trial.group, trial.label, trial.arm)
        return {plain(one) for one in (*words, *(known.get(one, one) for one in words))}

    return [trial for trial in trials if wanted <= own(trial)]


def plain(name: str) -> str:
    """A name without case and blanks; ``delta`` is δ and ``alpha =`` is α =."""
    return "".join(name.split()).casefold().replace("delta", "δ").replace("alpha=", "α=").replace(".α=", ".alpha=")


def _title(group: str) -> str:
    return next((column.title for column in EXPERIMENTS["table2"].columns if column.recipe == group), group)


def plan(args: argparse.Namespace) -> None:
    """Say what would run and what is there, and run nothing."""
    runs = _runs(args)
    lines, left = [], 0
    for row in _rows(args):
        done = [one.seed for one in row.recipes if runs.find(one) is not None]
        left += len(row.recipes) - len(done)
        never = "never run" if not done else "" if len(done) == len(row.recipes) else "in part"
        seeds = ", ".join(str(one.seed) for one in row.recipes)
        lines.append([*row.words, seeds, f"{len(done)} of {len(row.recipes)}", never])
    print(_aligned([["of", "column or choice", "method", "seeds", "finished", ""], *lines]))
    print(f"{left} runs to go")


def run(args: argparse.Namespace) -> None:
    """Train what is missing, a row at a time; what is finished stays, whatever ends it."""
    runs, out = _runs(args), args.out
    for row in _rows(args):
        if any(runs.find(one) is None for one in row.recipes):
            print(f"{' · '.join(row.words)}", file=sys.stderr)
            missing = [one for one in row.recipes if runs.find(one) is None]
            runs.add(fedssd.run_many(missing, cache=out, workers=args.workers, listen=progress()))
    if args.name != "study":
        show(args, runs)


def show(args: argparse.Namespace, runs: Runs | None = None) -> None:
    """Print the paper's tables from finished runs, the study's with ``--all``, and name what was never run."""
    runs, small = runs or _runs(args), args.scale == "small"
    wanted = [experiment(args.name)] if args.name not in ("all", "study") else [EXPERIMENTS[name] for name in TABLES]
    texts = {one.name: f"# {one.title}\n\n{tables.section(one, runs, small)}" for one in wanted}
    if args.all or args.name == "study":
        evidence = _evidence(runs)
        texts |= {f"study-{name}": f"# {name}\n\n{build(evidence)}" for name, build in STUDY.items()}
    for name, text in texts.items():
        print(text)
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{name}.md").write_text(text, encoding="utf-8")
    if args.figures:
        from studies.paper.pictures import draw_all

        draw_all(_evidence(runs), args.out)
    print(f"results: {args.out}/")


def check(args: argparse.Namespace) -> int:
    """Whether chosen.toml is what the rules give; ``choose`` prints that."""
    evidence = _evidence(_runs(args))
    found = choose.choices(evidence.study, evidence.mean)
    if args.command == "choose":
        print("runs are missing: nothing follows" if found is None else choose.as_toml(found))
        return 0
    if found != evidence.study.chosen:
        print("chosen.toml is not what the rules give: python -m studies.paper choose", file=sys.stderr)
        return 1
    return 0


def write_pages(args: argparse.Namespace) -> int:
    """Put what results/ holds into the pages; with ``--check`` name those that are stale."""
    from studies.paper.pages import Pages, stale

    found = stale(Pages(_runs(args)))
    for path, text in found.items():
        print(f"{'stale' if args.check else 'wrote'} {path.relative_to(ROOT)}")
        if not args.check:
            path.write_text(text, encoding="utf-8")
    return 1 if found and args.check else 0


def draw(args: argparse.Namespace) -> None:
    """Draw the figures of the paper, the study and the pages."""
    from studies.paper.pictures import draw_all

    args.out.mkdir(parents=True, exist_ok=True)
    for path in draw_all(_evidence(_runs(args)), args.out):
        print(path)


def _runs(args: argparse.Namespace) -> Runs:
    folders: Iterable[Path] = (PACKS, *args.reuse, *([args.out] if args.out.is_dir() else []))
    return Runs(dict.fromkeys(folders))


def _evidence(runs: Runs) -> Evidence:
    return Evidence(Study(choose.load_chosen()), runs)


def _rows(args: argparse.Namespace) -> list[Row]:
    found = rows(args, Study(choose.load_chosen()))
    if not found:
        raise UserError(f"nothing of {args.name} goes by these names: {' '.join(args.only) or args.dataset}")
    return found


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    whole = argparse.ArgumentParser("python -m studies.paper", description=__doc__, epilog=EXAMPLES)
    whole.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, main_of, names, what in (
        ("tables", show, True, "print the paper's tables from results/; nothing trains"),
        ("plan", plan, True, "say what would run and what was never run"),
        ("run", run, True, "train what is missing, and print the tables"),
        ("figures", draw, False, "draw the figures of the paper and of the study"),
        ("pages", write_pages, False, "put tables and numbers into README.md and docs/"),
        ("choose", check, False, "print what the study's rules choose"),
        ("check", check, False, "fail where chosen.toml says otherwise"),
    ):
        one = commands.add_parser(name, help=what, description=what)
        one.set_defaults(main=main_of)
        add = one.add_argument
        if names:
            nargs = "?" if name == "tables" else None
            add("name", nargs=nargs, default="all", help=f"{', '.join(TABLES)}, all, a figure, or study")
            add("--only", action="append", default=[], help="one column; of the study rows that go by all names given")
            add("--part", choices=(*PARTS, "all"), default="all", help="of the study")
            add("--dataset", choices=("cifar10", "cifar100", "tiny-imagenet"), help="only the columns on it")
            add("--methods", help="only these and FedAvg, such as moon,fedssd")
            add("--seeds", type=int, help="how many, from 0 on (default: 3, or 2 where small); the study has its own")
            add("--rounds", type=int, help="fewer rounds, to try it out")
            add("--scale", choices=("full", "small"), default="full", help="small: on digits, in minutes")
            add("--workers", type=int, default=0, help="processes (default: one a core, on a GPU one)")
            add("--all", action="store_true", help="the study's tables too")
            add("--figures", action="store_true", help="and draw all figures")
        add("--out", type=Path, default=ROOT / ("docs/images" if name == "figures" else "runs/paper"), help="a folder")
        add("--reuse", type=Path, action="append", default=[], help="finished runs from elsewhere")
        add("--check", action="store_true", help="write nothing, and fail where a page is stale")
    theory.register(commands)
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; what a user can cause is one line on stderr and status 2."""
    args = parser().parse_args(argv)
    try:
        return int(args.main(args) or 0)
    except UserError as error:
        print(f"studies.paper: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("studies.paper: interrupted; the same command goes on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
