"""Put what results/ holds into the pages that show it; a test fails when that was not done (`make docs`).

A page names a table between two comments, `<!-- table: NAME -->` and `<!-- end of table -->`; what stands between them
is made anew by measured.py. `<!-- reproduction: NAME -->` asks for one of the paper's tables instead, and
`<!-- study: NAME -->` for a block of the study, as far as results/ holds runs of it, and `<!-- numbers: METHOD -->` for
all that results/ holds of a method outside the study; `<!-- keys: recipe -->` is the table of a recipe's keys. What the
study chose is written from results/ as a whole; figures, the study's and the paper's, are files of docs/images. With
`--check` nothing is written and what is stale is named.
"""

from __future__ import annotations

import argparse
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]

if TYPE_CHECKING:
    from studies.paper.report.method_numbers import Line
    from studies.paper.report.study import Page

SEEDS = range(10)  # as many as anybody has run
FIGURE_SEEDS = range(3)  # as many as `python -m studies.paper run` has unless told otherwise
BLOCK = re.compile(r"(<!-- (table|keys|reproduction|numbers|study): (\S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
PAGES = {"data.md": "Data", "reliability.md": "Reliability", "methods/README.md": "Methods"}
CHOSEN, IMAGES = ROOT / "studies" / "paper" / "chosen.toml", ROOT / "docs" / "images"


def rendered(page: str) -> str:
    """The page with every table as results/ has it now."""
    return BLOCK.sub(lambda found: found[1] + table(found[2], found[3]) + found[4], page)


@cache
def table(kind: str, name: str) -> str:
    """What was measured, a table of the paper beside our runs, a method's figures, or a block of the study."""
    if kind == "table":
        from studies.paper.measured import TABLES

        return TABLES[name]()
    if kind == "keys":
        return keys()
    if kind == "numbers":
        from studies.paper.report.method_numbers import numbers_of

        return numbers_of(name, lines())
    if kind == "study":
        return study().blocks[name]()
    from studies.paper.paper import EXPERIMENTS
    from studies.paper.report import kept, learnt, splits
    from studies.paper.report.reproduction import section

    besides = {"kept": kept.section, "learnt": learnt.section, "splits": splits.section}
    if name in besides:
        return besides[name](study().results.done, SEEDS)
    return section(EXPERIMENTS[name], study().results.done, SEEDS)


def keys() -> str:
    """Every key of a recipe, with its default, what it means and where more is said."""
    from fedssd.recipe.keys import KEYS
    from fedssd.recipe.values import toml_value

    lines = ["| key | default | meaning |", "|---|---|---|"]
    for name, one in KEYS.items():
        title = PAGES.get(one.see.partition("#")[0], one.see.partition("#")[2].replace("-", " ").capitalize())
        more = f": [{title}]({one.see})" if one.see else ""
        lines.append(f"| `{name}` | `{toml_value(one.default)}` | {one.help}{more} |")
    return "\n".join(lines) + "\n"


@cache
def lines() -> list[Line]:
    """What results/ holds of each method, read once for all pages; what the study varies is on its own page."""
    from studies.paper.report.method_numbers import lines_of

    return lines_of(ROOT / "results", besides=ROOT / "results" / "study")


@cache
def study() -> Page:
    """The study with all runs of results/; what was chosen before stands while they do not say otherwise."""
    from studies.paper.report.study import Page
    from studies.paper.study.chosen import load_chosen
    from studies.paper.study.parts import Study
    from studies.paper.study.results import Results

    return Page(Study(chosen=load_chosen()), Results([ROOT / "results"]))


def files() -> dict[Path, str]:
    """Every file that is written from results/, as it should be."""
    from studies.paper.measured import pictures

    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*.md")]
    found = {page: rendered(page.read_text(encoding="utf-8")) for page in pages}
    found[CHOSEN] = study().study.choices(study().results).to_toml()
    return found | {IMAGES / name: picture for name, picture in (study().figures() | figures() | pictures()).items()}


def figures() -> dict[str, str]:
    """The paper's figures of runs, as a run draws them; those of which all settings have run."""
    from studies.paper.cells import places_of
    from studies.paper.paper import EXPERIMENTS
    from studies.paper.report import figure_data, figure_pictures

    found = {}
    for name, draw in figure_pictures.OF_RUNS.items():
        places = places_of(EXPERIMENTS[name], {})
        runs = figure_data.runs_of(places, study().results.done, FIGURE_SEEDS)
        if {title for title, _ in runs} == {place.column.title for place in places}:
            found[f"{name}.svg"] = draw(runs, "")
    return found


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its flag."""
    parser = commands.add_parser(
        "pages", usage="python -m studies.paper pages [--check]", description="Put what results/ holds into the pages."
    )
    parser.add_argument("--check", action="store_true", help="write nothing, and fail where a page is stale")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Write what is stale, or only name it."""
    stale = {
        path: text for path, text in files().items() if not path.is_file() or path.read_text(encoding="utf-8") != text
    }
    for path, text in stale.items():
        print(f"{'stale' if args.check else 'wrote'} {path.relative_to(ROOT)}")
        if not args.check:
            path.write_text(text, encoding="utf-8")
    return 1 if stale and args.check else 0
