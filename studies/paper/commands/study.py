"""``python -m studies.paper run study``: the study of what the paper leaves open, part by part."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedssd.cli import output
from fedssd.cli.compare import seed_list, whole
from fedssd.cli.parser import UsageError, settings_given
from studies.paper.commands import PROGRAM
from studies.paper.commands.only import check, chosen
from studies.paper.commands.plan import show
from studies.paper.missing import Track, run_missing, tracking

if TYPE_CHECKING:
    from studies.paper.cell import Cell
    from studies.paper.study.parts import Study

NAME = "study"
OF_TABLES = ("dataset", "methods", "figures")  # flags of the paper's tables, without meaning here


def main(args: argparse.Namespace) -> int:
    """Find what is there of a part or of all, run what is not, and write what it comes to."""
    from studies.paper.batches import alone
    from studies.paper.report.study import Page, departs, write_study
    from studies.paper.study.results import Results

    for flag in OF_TABLES:
        if getattr(args, flag):
            raise UsageError(f"{PROGRAM}: --{flag} is for the paper's tables, the study has --part and --only")
    study, workers = _study(args), whole(PROGRAM, "--workers", args.workers)
    parts = study.parts(args.part)
    check(study, args.part, args.only)
    small = args.scale == "small"
    out = output.shared(args.out or output.ROOT / f"{NAME}{'-small' if small else ''}")
    track = tracking(args.track, out)
    if args.plan:
        there = [folder for folder in (out, *args.reuse) if folder.is_dir()]
        return show(study, parts, Results(there), args.only, args.json)
    ran = 0
    with alone(out):
        for part in parts:
            ran += _run(study, part, out, workers, args, track)
        page = Page(study, Results([out, *args.reuse]))
        written = write_study(page, out)
    if args.json:
        print(json.dumps({"folder": str(out), "ran": ran, "written": [str(path) for path in written]}))
        return 0
    for text in (page.blocks["answer"](), departs(study), page.state()):
        print(text, end="\n" if text else "")
    print(f"results: {out}/ ({', '.join(str(path.relative_to(out)) for path in written)})")
    return 0


def _study(args: argparse.Namespace) -> Study:
    from studies.paper.paper import EVERYTHING
    from studies.paper.study.chosen import Chosen, load_chosen
    from studies.paper.study.design import load_design
    from studies.paper.study.parts import Study

    design, small = load_design(), args.scale == "small"
    if args.part != EVERYTHING:
        design.refuse_part(args.part)
    changes = ({} if args.rounds is None else {"rounds": args.rounds}) | settings_given(args.set, PROGRAM)
    study = Study(design, small, changes, chosen=Chosen() if small else load_chosen())
    if args.pipeline is not None:
        _check_pipeline(args.part)
        study = study.with_pipeline(args.pipeline)
    if args.seeds is None:
        return study
    seeds = tuple(seed_list(PROGRAM, args.seeds))
    if not seeds:
        raise UsageError(f"{PROGRAM}: --seeds expects whole numbers such as 0,3 of the study, got {args.seeds!r}")
    return study.with_seeds(args.part, seeds)


def _check_pipeline(part: str) -> None:
    from studies.paper.paper import EVERYTHING
    from studies.paper.study.design import WITH_PIPELINE

    if part not in (EVERYTHING, *WITH_PIPELINE):
        parts = ", ".join(WITH_PIPELINE)
        raise UsageError(f"{PROGRAM}: --pipeline is for the parts that have one ({parts}), got --part {part}")


def _run(study: Study, part: str, out: Path, workers: int, args: argparse.Namespace, track: Track) -> int:
    """Until nothing of the part is missing: what it finds may call for more."""
    from fedssd.errors import UserError
    from studies.paper.batches import interrupted
    from studies.paper.cell import missing
    from studies.paper.study.results import Results

    ran, asked, folders = 0, set[str](), [out, *args.reuse]
    while True:
        results = Results(folders)
        cells = study.cells(chosen(study, part, results, args.only).trials)
        left = {cell.key: cell.name for cell in missing(cells, results.found(cells))}
        if not left and not interrupted(out, cells):
            return ran
        lost = [name for key, name in left.items() if key in asked]
        if lost:  # never again and again
            raise UserError(f"{out} does not hold {lost[0]}, which has just been run: was it moved?")
        asked |= left.keys()
        ran += run_missing(cells, out, partial(_finished, cells, folders), workers, args.quiet, track, lean=True)


def _finished(cells: Sequence[Cell], folders: Sequence[Path]) -> dict[str, list[Path]]:
    from studies.paper.study.results import Results

    return Results(folders).repeats(cells)
