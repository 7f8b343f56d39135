"""``fedssd reproduce study``: the study of what the paper leaves open, part by part."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedssd.cli import places
from fedssd.cli.compare import seed_list, whole
from fedssd.cli.missing import run_missing
from fedssd.cli.parser import UsageError, settings_given

if TYPE_CHECKING:
    from fedssd.experiment.cells import Cell
    from fedssd.experiment.study.parts import Study
    from fedssd.experiment.study.trial import Trial

NAME = "study"
OF_TABLES = ("dataset", "methods", "figures")  # flags of the paper's tables, without meaning here


def main(args: argparse.Namespace) -> int:
    """Find what is there of a part or of all, run what is not, and write what it comes to."""
    from fedssd.experiment.paper import EVERYTHING
    from fedssd.experiment.reproduce import alone
    from fedssd.experiment.study.design import PARTS
    from fedssd.experiment.study.results import Results
    from fedssd.report.study import Page, write_study

    for flag in OF_TABLES:
        if getattr(args, flag):
            raise UsageError(f"fedssd reproduce: --{flag} is for the paper's tables, the study has --part and --only")
    study, workers = _study(args), whole("reproduce", "--workers", args.workers)
    small = args.scale == "small"
    parts = PARTS if args.part == EVERYTHING else (args.part,)
    out = places.shared(args.out or places.ROOT / f"{NAME}{'-small' if small else ''}")
    there = [folder for folder in (out, *args.reuse) if folder.is_dir()]
    if args.plan:
        return _plan(study, parts, there, args.only)
    ran = 0
    with alone(out):
        for part in parts:
            ran += _run(study, part, out, args.reuse, workers, args.quiet, args.only)
        page = Page(study, Results([out, *args.reuse]))
        written = write_study(page, out)
    if args.json:
        print(json.dumps({"folder": str(out), "ran": ran, "written": [str(path) for path in written]}))
        return 0
    for block in ("answer", "state"):
        print(page.blocks[block]())
    print(f"results: {out}/ ({', '.join(str(path.relative_to(out)) for path in written)})")
    return 0


def _study(args: argparse.Namespace) -> Study:
    from fedssd.experiment.study.chosen import Chosen, load_chosen
    from fedssd.experiment.study.parts import Study

    small = args.scale == "small"
    changes = ({} if args.rounds is None else {"rounds": args.rounds}) | settings_given(args.set, "reproduce")
    study = Study(small=small, changes=changes, chosen=Chosen() if small else load_chosen())
    if args.seeds is None:
        return study
    seeds = tuple(seed_list("reproduce", args.seeds))
    return study.with_seeds(args.part, seeds)


def chosen_trials(trials: Sequence[Trial], only: str | None) -> list[Trial]:
    """Those of a choice, setting, composition, arm or label that is named, with the bases they are compared with."""
    from fedssd.experiment.study.parts import BASE

    if only is None:
        return list(trials)
    found = [trial for trial in trials if only in (trial.group, trial.label, trial.arm)]
    if not found:
        known = ", ".join(dict.fromkeys(trial.group for trial in trials))
        raise UsageError(f"fedssd reproduce: --only expects one of {known}, or a label or arm of theirs, got {only!r}")
    arms = {trial.arm for trial in found}
    bases = [trial for trial in trials if trial.group == BASE and trial.arm in arms and trial not in found]
    return [*bases, *found]


def _run(study: Study, part: str, out: Path, reuse: Sequence[Path], workers: int, quiet: bool, only: str | None) -> int:
    """Until nothing of the part is missing: what it finds may call for more."""
    from fedssd.errors import UserError
    from fedssd.experiment.cells import missing
    from fedssd.experiment.reproduce import interrupted
    from fedssd.experiment.study.results import Results

    ran, asked = 0, set[str]()
    while True:
        results = Results([out, *reuse])
        cells = study.cells(chosen_trials(study.trials(part, results), only))
        left = {cell.key: cell.name for cell in missing(cells, results.found(cells))}
        if not left and not interrupted(out, cells):
            return ran
        lost = [name for key, name in left.items() if key in asked]
        if lost:  # never again and again
            raise UserError(f"{out} does not hold {lost[0]}, which has just been run: was it moved?")
        asked |= left.keys()
        ran += run_missing(cells, out, partial(_finished, cells, [out, *reuse]), workers, quiet, lean=True)


def _finished(cells: Sequence[Cell], folders: Sequence[Path]) -> dict[str, list[Path]]:
    from fedssd.experiment.study.results import Results

    return Results(folders).repeats(cells)


def _plan(study: Study, parts: Sequence[str], there: Sequence[Path], only: str | None) -> int:
    """What would run, without running it."""
    from fedssd.errors import UserError
    from fedssd.experiment.cells import by_program, missing
    from fedssd.experiment.study.results import Results
    from fedssd.experiment.study.trial import model_steps

    results = Results(there)
    print("part      cells  finished  programs  widest  million model-steps to go")
    for part in parts:
        try:
            cells = study.cells(chosen_trials(study.trials(part, results), only))
        except UserError as why:
            if len(parts) == 1:
                raise
            print(f"{part:8}  {why}")
            continue
        left = missing(cells, results.found(cells))
        programs = by_program(left)
        widest = max(map(len, programs.values()), default=0)
        steps = sum(model_steps(cell.recipe) for cell in left) / 1e6
        count = len({cell.key for cell in cells})
        print(f"{part:8}  {count:5}  {count - len(left):8}  {len(programs):8}  {widest:6}  {steps:9.1f}")
    return 0
