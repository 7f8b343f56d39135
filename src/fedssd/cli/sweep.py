"""``fedssd sweep``: every combination of some values over some seeds, side by side where they share a program."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
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

if TYPE_CHECKING:
    from fedssd.recipe import Recipe
    from fedssd.reports.table import Table
    from fedssd.simulation.events import Listener
    from fedssd.sweeps.grid import Combination

EXAMPLES = examples(
    "fedssd sweep --grid fedssd.m_max=0.1,0.3,1,3                  one option, three seeds each",
    "fedssd sweep --grid lr=0.01,0.03 --grid epochs=1,5,10         every combination",
    "fedssd sweep --grid partition=classes:2,dirichlet:0.1,iid --local fedavg",
)


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "sweep",
        usage="fedssd sweep --grid KEY=A,B [flags]",
        description=f"Train every combination of the given values and print a table.\n{RECIPE_NOTE}",
        epilog=EXAMPLES,
        add_help=False,
    )
    group = parser.add_argument_group("sweep")
    group.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="values of a recipe key, or of a method's option such as fedssd.m_max; may be repeated",
    )
    group.add_argument("--seeds", default="0,1,2", metavar="N,N", help="seeds of each cell (default: %(default)s)")
    group.add_argument("--workers", default="0", metavar="N", help="processes; 0 is one a core (default: %(default)s)")
    add_recipe_flags(parser, leave_out=("seed",))
    add_output_flags(parser, "runs/sweep-<data>")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Sweep over what the command line names."""
    from fedssd.recipe import load_recipe

    grid, seeds = parse_grid(args.grid), seed_list("fedssd sweep", args.seeds)
    workers = whole("fedssd sweep", "--workers", args.workers)
    given = overrides(args, "sweep")
    _refuse_both(grid, given)
    source, remark = recipe_source(args, {**given, **grid})
    recipe = load_recipe(source, given)
    out = output.folder(args, "sweep", recipe.data)
    return sweep(recipe, grid, seeds, workers, out, args, args.resume, remark)


def sweep(
    recipe: Recipe,
    values: dict[str, list[str]],
    seeds: Sequence[int],
    workers: int,
    out: Path,
    args: argparse.Namespace,
    resume: bool,
    remark: str = "",
) -> int:
    """Run every combination, write table and page, print the table and say where things are."""
    from fedssd.sweeps import grid

    count = math.prod(map(len, values.values()))
    what = f"{output.many(count, 'cell')} × {output.many(len(seeds), 'seed')} on {setting(recipe)}"

    def work(listen: Listener) -> list[Combination]:
        return grid.sweep(recipe, values, seeds, out, workers, listen, resume)

    cells = train(args, out, recipe, what, work, remark)
    table, results = tabulate_cells(cells), [result for cell in cells for result in cell.results]
    output.write_table(table, out)
    output.leave_report(results, out, what)
    if args.json:
        found = [
            {"values": cell.values, "runs": [result.summary.to_json() for result in cell.results]} for cell in cells
        ]
        print(json.dumps({"folder": str(out), "cells": found}))
    else:
        output.show_table(table)
        print(f"results: {out}/ (report.html, table.md, table.csv, a folder for each run)")
    return output.ended(results)


def parse_grid(words: list[str]) -> dict[str, list[str]]:
    """``lr=0.01,0.03`` becomes a key and its values, still as text: the recipe knows their types."""
    grid: dict[str, list[str]] = {}
    for word in words:
        key, equals, values = word.partition("=")
        found = [value.strip() for value in values.split(",") if value.strip()]
        if not equals or not key.strip() or not found:
            raise UsageError(f"fedssd sweep: --grid expects KEY=VALUE,VALUE, got {word!r}")
        name = key.strip().removeprefix("options.") if "." in key else key.strip().replace("-", "_")
        if name in grid or len(set(found)) < len(found):
            raise UsageError(f"fedssd sweep: --grid {word} repeats a key or a value")
        grid[name] = found
    if not grid:
        raise UsageError("fedssd sweep: --grid is missing: name a key and its values, such as fedssd.m_max=0.1,0.3")
    return grid


def _refuse_both(grid: Mapping[str, Sequence[str]], given: Mapping[str, str | bool]) -> None:
    """A key of the grid has no one value beside it."""
    from fedssd.recipe.keys import canonical

    for key, values in grid.items():
        name = f"options.{key}" if "." in key else canonical(key)
        if name in given:
            raise UsageError(f"fedssd sweep: {key} is given twice: --grid {key}={','.join(values)} and {given[name]}")


def tabulate_cells(cells: list[Combination]) -> Table:
    """The comparison table with a row for every cell."""
    from fedssd.reports.comparison import tabulate

    renamed = []
    for cell in cells:
        label = " ".join(f"{key}={value}" for key, value in cell.values.items())
        renamed += [replace(result, summary=replace(result.summary, method=label)) for result in cell.results]
    return tabulate(renamed)
