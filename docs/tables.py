"""Put the tables of results/ into the pages that show them; a test fails when that was not done (`make docs`).

A page names a table between two comments, `<!-- table: FILE -->` and `<!-- end of table -->`; what stands between them
is replaced by the file. `<!-- reproduction: NAME -->` asks for one of the paper's tables instead, as far as results/
holds runs of it, and `<!-- numbers: METHOD -->` for all that results/ holds of a method. With `--check` nothing is
written and stale pages are named.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedssd.report.method_numbers import Line

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))  # the tables are those of this checkout
SEEDS = range(10)  # as many as anybody has run
BLOCK = re.compile(r"(<!-- (table|reproduction|numbers): (\S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def rendered(page: str) -> str:
    """The page with every table as results/ has it now."""
    return BLOCK.sub(lambda found: found[1] + table(found[2], found[3]) + found[4], page)


def table(kind: str, name: str) -> str:
    """A file of results/, a table of the paper beside our runs, or a method's figures."""
    if kind == "table":
        return (ROOT / name).read_text(encoding="utf-8")
    if kind == "numbers":
        from fedssd.report.method_numbers import numbers_of

        return numbers_of(name, lines())
    from fedssd.experiment.paper import EXPERIMENTS
    from fedssd.report.reproduction import section

    return section(EXPERIMENTS[name], ROOT / "results", SEEDS)


@cache
def lines() -> list[Line]:
    """Everything results/ holds, read once for all pages."""
    from fedssd.report.method_numbers import lines_of

    return lines_of(ROOT / "results")


def stale(root: Path = ROOT) -> list[Path]:
    """The pages that do not show what results/ holds."""
    pages = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("results/*.md")]
    return [page for page in pages if rendered(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8")]


def main() -> int:
    pages = stale()
    for page in pages:
        print(f"{'stale' if '--check' in sys.argv else 'wrote'} {page.relative_to(ROOT)}")
        if "--check" not in sys.argv:
            page.write_text(rendered(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 1 if pages and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
