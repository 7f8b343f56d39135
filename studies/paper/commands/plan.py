"""``python -m studies.paper run … --plan``: what would run, of the study by part, and of what is named row by row."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from studies.paper.commands.only import chosen

if TYPE_CHECKING:
    from studies.paper.cell import Cell
    from studies.paper.study.parts import Study
    from studies.paper.study.results import Results
    from studies.paper.study.trial import Trial

PLANNED = {  # in a plan and at the head of its column
    "part": "part          ",
    "cells": "cells",
    "finished": "finished",
    "programs": "programs",
    "widest": "widest",
    "model_steps": "million model-steps to go",
}
HEADS = ("setting or choice", "label", "arm", "seeds", "finished", "")


def show(study: Study, parts: Sequence[str], results: Results, only: Sequence[str], as_json: bool) -> int:
    """What would run, without running it; of several parts, those that follow from unfinished ones say so."""
    from fedssd.errors import UserError

    found: list[dict[str, Any]] = []
    for part in parts:
        try:
            found.append(_planned(study, part, results, only))
        except UserError as why:
            if len(parts) == 1:
                raise
            found.append({"part": part, "waits": str(why), "rows": []})
    if as_json:
        print(json.dumps({"parts": found}))
        return 0
    print("  ".join(PLANNED.values()))
    for row in found:
        print(_line(row))
    if only:
        print("\n" + "\n".join(_listed([row for part in found for row in part["rows"]])))
    return 0


def show_cells(cells: Sequence[Cell], done: Container[str], as_json: bool) -> int:
    """The cells of the paper's tables by column and method, and how many of their seeds are finished."""
    rows: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.column, cell.recipe.method), []).append(cell)
    seeds = {row: [cell.recipe.seed for cell in own] for row, own in rows.items()}
    finished = {row: sum(cell.key in done for cell in own) for row, own in rows.items()}
    if as_json:
        named = [dict(zip(("column", "method"), row, strict=True)) for row in rows]
        counted = [{"seeds": seeds[row], "finished": finished[row]} for row in rows]
        print(json.dumps({"cells": [{**name, **count} for name, count in zip(named, counted, strict=True)]}))
        return 0
    lines = [[*row, ", ".join(map(str, seeds[row])), f"{finished[row]} of {len(seeds[row])}"] for row in rows]
    print("\n".join(_aligned([("column", "method", "seeds", "finished"), *lines])))
    return 0


def _line(row: Mapping[str, Any]) -> str:
    if "waits" in row:
        return f"{row['part']:{len(PLANNED['part'])}}  {row['waits']}"
    shown = {**row, "model_steps": f"{row['model_steps'] / 1e6:.1f}"}
    sides = {"part": "<"}
    return "  ".join(f"{shown[key]:{sides.get(key, '>')}{len(head)}}" for key, head in PLANNED.items())


def _listed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each, in columns; what is named first, then what it is compared with."""
    from studies.paper.report.row_names import group_shown

    cells = [
        [
            *(group_shown(row["setting"]), row["label"], row["arm"]),
            ", ".join(map(str, row["seeds"])),
            f"{row['finished']} of {len(row['seeds'])}",
            "what it is compared with" if row["comes_along"] else "",
        ]
        for row in rows
    ]
    return _aligned([HEADS, *cells])


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _planned(study: Study, part: str, results: Results, only: Sequence[str]) -> dict[str, Any]:
    from studies.paper.cell import by_program, missing
    from studies.paper.study.trial import model_steps

    found = chosen(study, part, results, only)
    cells = study.cells(found.trials)
    left, count = missing(cells, results.found(cells)), len({cell.key for cell in cells})
    programs = by_program(left)
    widest = max(map(len, programs.values()), default=0)
    steps = round(sum(model_steps(cell.recipe) for cell in left))
    counts = dict(zip(PLANNED, (part, count, count - len(left), len(programs), widest, steps), strict=True))
    rows = [_row(study, trial, results, along) for along in (False, True) for trial in found[along]]
    return {**counts, "rows": rows}


def _row(study: Study, trial: Trial, results: Results, along: bool) -> dict[str, Any]:
    return {
        "setting": trial.group,
        "label": trial.label,
        "arm": trial.arm,
        "seeds": list(study.seeds_for(trial)),
        "finished": len(results.found(study.cells([trial]))),
        "comes_along": along,
    }
