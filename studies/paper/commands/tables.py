"""``python -m studies.paper tables``: every table and figure of the paper from the runs of results/; nothing trains."""

from __future__ import annotations

import argparse
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssd.cli import output
from fedssd.cli.parser import a_path
from studies.paper.commands.reproduce import is_table, write

if TYPE_CHECKING:
    from studies.paper.cells import Place

SEEDS, FIGURE_SEEDS = range(10), range(3)  # of tables as many as anybody has run, of figures the first


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "tables",
        usage="python -m studies.paper tables [NAME] [flags]",
        description="Draw the paper's tables and figures from finished runs, and name what was never run.",
    )
    add = parser.add_argument
    add("name", nargs="?", default="all", metavar="NAME", help="one of them (default: %(default)s)")
    add("--results", type=a_path, default=Path("results"), metavar="DIR", help="finished runs (default: %(default)s)")
    add("--out", type=a_path, metavar="DIR", help="where tables and figures go (default: runs/paper)")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Write them, print the tables, and name the cells that no run fills."""
    from fedssd.runs.folder import explained
    from fedssd.sweeps.cache import finished_cells
    from studies.paper.cells import places_of
    from studies.paper.measured import splits
    from studies.paper.paper import experiments

    wanted = experiments(args.name)
    found = {one.name: places_of(one, {}) for one in wanted}
    out = output.shared(args.out or output.ROOT / "paper")
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
    done = finished_cells([args.results])
    tables, figures = [one for one in wanted if is_table(one)], [one for one in wanted if not is_table(one)]
    written = write(tables, found, SEEDS, None, out, done, "")
    written += write(figures, found, FIGURE_SEEDS, None, out, done, "", splits())
    for path in written:
        if path.suffix == ".md":
            print(path.read_text(encoding="utf-8"))
    for one in tables:
        for what in never_run(found[one.name], done):
            print(f"never run: {one.name}, {what}")
    print(f"results: {out}/ ({', '.join(path.name for path in written)})")
    return 0


def never_run(places: Sequence[Place], done: Container[str]) -> list[str]:
    """Each column with its methods of which not one seed has run."""
    from studies.paper.cells import cells_of

    found = []
    for place in places:
        methods = place.column.methods
        left = [one for one in methods if not any(cell.key in done for cell in cells_of(place, SEEDS, [one]))]
        if left:
            found.append(f"{place.column.title}: {'every method' if len(left) == len(methods) else ', '.join(left)}")
    return found
