"""Put what results/ holds into the pages that show it: tables, and numbers that stand in prose.

A page names a table between ``<!-- study: NAME -->`` and ``<!-- end of table -->``, and a number between
``<!-- n: PART/GROUP/ARM/WHAT -->`` and ``<!-- /n -->``; what stands between is made anew. A conclusion is written by a
person. ``--check`` writes nothing and names what is stale.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from fedssd import UserError
from studies.paper import clients, method_pages, tables
from studies.paper.choose import load_chosen
from studies.paper.evidence import Evidence
from studies.paper.formats import interval
from studies.paper.paper import EXPERIMENTS
from studies.paper.results import PACKS, ROOT, Runs
from studies.paper.study_tables import TABLES as STUDY
from studies.paper.trials import Study

BLOCK = re.compile(r"(<!-- (\w+: \S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
MARK = re.compile(r"(<!-- n: (\S+) -->).*?(<!-- /n -->)")


class Pages:
    """The tables and numbers of all pages, each made when a page first asks for it."""

    def __init__(self, runs: Runs) -> None:
        self.runs, self.evidence = runs, Evidence(Study(load_chosen()), runs)
        self._lines: list[method_pages.Line] = []
        self._made: dict[str, str] = {}
        self.tables: dict[str, Callable[[], str]] = {
            **{f"study: {name}": partial(build, self.evidence) for name, build in STUDY.items()},
            **{f"reproduction: {one.name}": partial(tables.section, one, runs) for one in EXPERIMENTS.values()},
            "reproduction: splits": partial(tables.splits, runs),
            "reproduction: kept": partial(clients.kept, runs),
            "reproduction: learnt": partial(clients.learnt, runs),
            "table: digits": partial(method_pages.digits, runs),
            "table: cifar10/fifty-rounds": partial(method_pages.fifty_rounds, runs),
            **runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))["TABLES"],
        }

    def table(self, name: str) -> str:
        """A block by its name."""
        if name not in self._made:
            kind, _, method = name.partition(": ")
            if kind == "numbers":
                self._made[name] = method_pages.numbers(method, self.lines())
            elif name in self.tables:
                self._made[name] = self.tables[name]()
            else:
                raise UserError(
                    f"a page asks for {name!r}, which is no table: expected one of {', '.join(self.tables)}"
                )
        return self._made[name]

    def lines(self) -> list[method_pages.Line]:
        """What results/ holds of each method; what the study varies is on its own page."""
        if not self._lines:
            study = PACKS / "study"
            kept = [run for run in self.runs.newest_last if run.folder is None or study not in run.folder.parents]
            self._lines = method_pages.lines_of(kept)
        return self._lines

    def number(self, key: str) -> str:
        """A figure of the study in a sentence: ``report/table2-classes-2/fedssd/gain``, ``digits/…/gain@20``.

        The group is a column, choice or composition, the arm a method's name or what differs there; WHAT is gain, over
        the FedAvg beside it, or less, than the base, or percent, each after as many rounds as stand behind an @.
        """
        study = self.evidence.study
        part, group, arm, what = key.split("/")
        what, _, after = what.partition("@")
        for trial in study.trials(part):
            if trial.group == group and arm in (trial.arm, trial.label):
                beside = study.base_of if what == "less" else study.fedavg_beside
                one, other = trial, trial if what == "percent" else beside(trial)
                if after:
                    one, other = one.after(int(after)), other.after(int(after))
                shown = (
                    self.evidence.cell(one).rpartition(" ")[0]
                    if what == "percent"
                    else interval(self.evidence.less(one, other))
                )
                return shown.removesuffix(" *")
        raise UserError(f"a page marks the number {key!r}, which the study does not have")

    def rendered(self, text: str) -> str:
        """A page with every table and marked number as results/ has it now."""
        text = BLOCK.sub(lambda found: found[1] + self.table(found[2]) + found[3], text)
        return MARK.sub(lambda found: found[1] + self.number(found[2]) + found[3], text)


def pages() -> Iterator[Path]:
    """Every page of the repository that may show a table."""
    for pattern in ("*.md", "docs/**/*.md", "results/*.md"):
        yield from sorted(ROOT.glob(pattern))


def stale(made: Pages, texts: Mapping[Path, str] | None = None) -> dict[Path, str]:
    """The pages that do not show what results/ hold, as they should be."""
    found = texts or {path: path.read_text(encoding="utf-8") for path in pages()}
    fresh = {path: made.rendered(text) for path, text in found.items()}
    return {path: text for path, text in fresh.items() if text != found[path]}
