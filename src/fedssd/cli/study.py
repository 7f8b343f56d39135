"""``fedssd reproduce study``: the study of what the paper leaves open, part by part."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssd.cli import places
from fedssd.cli.compare import seed_list, whole
from fedssd.cli.missing import Track, run_missing, tracking
from fedssd.cli.parser import UsageError, settings_given

if TYPE_CHECKING:
    from fedssd.experiment.cells import Cell
    from fedssd.experiment.study.parts import Study
    from fedssd.experiment.study.results import Results
    from fedssd.experiment.study.trial import Trial

NAME = "study"
OF_TABLES = ("dataset", "methods", "figures")  # flags of the paper's tables, without meaning here


def main(args: argparse.Namespace) -> int:
    """Find what is there of a part or of all, run what is not, and write what it comes to."""
    from fedssd.experiment.reproduce import alone
    from fedssd.experiment.study.results import Results
    from fedssd.report.study import Page, departs, write_study

    for flag in OF_TABLES:
        if getattr(args, flag):
            raise UsageError(f"fedssd reproduce: --{flag} is for the paper's tables, the study has --part and --only")
    study, workers = _study(args), whole("reproduce", "--workers", args.workers)
    parts = study.parts(args.part)
    _check_only(study, args.part, args.only)
    small = args.scale == "small"
    out = places.shared(args.out or places.ROOT / f"{NAME}{'-small' if small else ''}")
    track = tracking(args.track, out)
    if args.plan:
        there = [folder for folder in (out, *args.reuse) if folder.is_dir()]
        return _plan(study, parts, Results(there), args.only, args.json)
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
    from fedssd.experiment.paper import EVERYTHING
    from fedssd.experiment.study.chosen import Chosen, load_chosen
    from fedssd.experiment.study.design import load_design
    from fedssd.experiment.study.parts import Study

    design, small = load_design(), args.scale == "small"
    if args.part != EVERYTHING:
        design.refuse_part(args.part)
    changes = ({} if args.rounds is None else {"rounds": args.rounds}) | settings_given(args.set, "reproduce")
    study = Study(design, small, changes, chosen=Chosen() if small else load_chosen())
    if args.pipeline is not None:
        _check_pipeline(args.part)
        study = study.with_pipeline(args.pipeline)
    if args.seeds is None:
        return study
    seeds = tuple(seed_list("reproduce", args.seeds))
    if not seeds:
        raise UsageError(
            f"fedssd reproduce: --seeds expects whole numbers such as 0,3 of the study, got {args.seeds!r}"
        )
    return study.with_seeds(args.part, seeds)


def _check_pipeline(part: str) -> None:
    from fedssd.experiment.paper import EVERYTHING
    from fedssd.experiment.study.design import WITH_PIPELINE

    if part not in (EVERYTHING, *WITH_PIPELINE):
        parts = ", ".join(WITH_PIPELINE)
        raise UsageError(f"fedssd reproduce: --pipeline is for the parts that have one ({parts}), got --part {part}")


def _check_only(study: Study, part: str, only: str | None) -> None:
    """Before anything runs: one name is seldom one of every part, and a part may not have it at all."""
    from fedssd.errors import perhaps
    from fedssd.experiment.paper import EVERYTHING
    from fedssd.experiment.study.design import PARTS
    from fedssd.report.row_names import named

    if only is None:
        return
    trials = {one: study.possible(one) for one in (PARTS if part == EVERYTHING else (part,))}
    having = [one for one, found in trials.items() if named(only, found, study.design)]
    known = list(dict.fromkeys(trial.group for found in trials.values() for trial in found))
    if not having and part == EVERYTHING:
        raise UsageError(f"fedssd reproduce: --only {only!r} is in no part of the study{perhaps(only, known)}")
    if not having:
        listed = ", ".join(known)
        raise UsageError(f"fedssd reproduce: --only expects one of {listed}, or a label or arm of theirs, got {only!r}")
    if part == EVERYTHING:
        found = ", ".join(having)
        raise UsageError(f"fedssd reproduce: --only needs --part beside it; the parts that have {only!r}: {found}")


def _chosen(study: Study, part: str, results: Results, only: str | None) -> list[Trial]:
    """What a part has to run, or of that what is named, and what its rows compare it with."""
    from fedssd.report.row_names import named

    trials = study.trials(part, results)
    if only is None:
        return trials
    if not named(only, trials, study.design):  # a departure that did not survive is confirmed if it is named
        trials += study.optional(part)
    found = named(only, trials, study.design)
    if not found:
        known = ", ".join(dict.fromkeys(trial.group for trial in trials))
        raise UsageError(f"fedssd reproduce: --only {only!r} is not among what the part has to run: {known}")
    return study.with_compared(found, trials)


def _run(study: Study, part: str, out: Path, workers: int, args: argparse.Namespace, track: Track) -> int:
    """Until nothing of the part is missing: what it finds may call for more."""
    from fedssd.errors import UserError
    from fedssd.experiment.cells import missing
    from fedssd.experiment.reproduce import interrupted
    from fedssd.experiment.study.results import Results

    ran, asked, folders = 0, set[str](), [out, *args.reuse]
    while True:
        results = Results(folders)
        cells = study.cells(_chosen(study, part, results, args.only))
        left = {cell.key: cell.name for cell in missing(cells, results.found(cells))}
        if not left and not interrupted(out, cells):
            return ran
        lost = [name for key, name in left.items() if key in asked]
        if lost:  # never again and again
            raise UserError(f"{out} does not hold {lost[0]}, which has just been run: was it moved?")
        asked |= left.keys()
        ran += run_missing(cells, out, partial(_finished, cells, folders), workers, args.quiet, track, lean=True)


def _finished(cells: Sequence[Cell], folders: Sequence[Path]) -> dict[str, list[Path]]:
    from fedssd.experiment.study.results import Results

    return Results(folders).repeats(cells)


PLANNED = {  # in a plan and at the head of its column
    "part": "part    ",
    "cells": "cells",
    "finished": "finished",
    "programs": "programs",
    "widest": "widest",
    "model_steps": "million model-steps to go",
}


def _plan(study: Study, parts: Sequence[str], results: Results, only: str | None, as_json: bool) -> int:
    """What would run, without running it; of several parts, those that follow from unfinished ones say so."""
    from fedssd.errors import UserError

    found: list[dict[str, object]] = []
    for part in parts:
        try:
            found.append(_planned(study, part, results, only))
        except UserError as why:
            if len(parts) == 1:
                raise
            found.append({"part": part, "waits": str(why)})
    if as_json:
        print(json.dumps({"parts": found}))
        return 0
    print("  ".join(PLANNED.values()))
    for row in found:
        print(_plan_line(row))
    return 0


def _plan_line(row: Mapping[str, Any]) -> str:
    if "waits" in row:
        return f"{row['part']:8}  {row['waits']}"
    shown = {**row, "model_steps": f"{row['model_steps'] / 1e6:.1f}"}
    first, *rest = (f"{shown[key]:>{len(head)}}" for key, head in PLANNED.items())
    return "  ".join([f"{first.strip():8}", *rest])


def _planned(study: Study, part: str, results: Results, only: str | None) -> dict[str, object]:
    from fedssd.experiment.cells import by_program, missing
    from fedssd.experiment.study.trial import model_steps

    cells = study.cells(_chosen(study, part, results, only))
    left, count = missing(cells, results.found(cells)), len({cell.key for cell in cells})
    programs = by_program(left)
    widest = max(map(len, programs.values()), default=0)
    steps = round(sum(model_steps(cell.recipe) for cell in left))
    return dict(zip(PLANNED, (part, count, count - len(left), len(programs), widest, steps), strict=True))
