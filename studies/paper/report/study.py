"""The study's page: its blocks by their names, what methods do from round to round, how much was run; and its files.

Blocks are pure functions of a study and its results; what has not been run says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from fedssd.errors import UserError
from fedssd.reports.markdown import table
from fedssd.simulation.result import Result
from studies.paper.paper import Column
from studies.paper.report import by_round, departures, mechanism, tuned
from studies.paper.report.advice import advice
from studies.paper.report.answer import STAND_IN, answer, short_answer
from studies.paper.report.appearance import appearance
from studies.paper.report.evidence import Evidence
from studies.paper.report.wording import NOT_RUN, code, spread
from studies.paper.study.design import OURS, PARTS, label
from studies.paper.study.parts import Study
from studies.paper.study.results import Results
from studies.paper.study.trials import COLUMNS, Settled


class Page(Evidence):
    """The blocks of docs/study.md, each by its name."""

    def __init__(self, study: Study, results: Results) -> None:
        super().__init__(study, results)
        self.blocks: dict[str, Callable[[], str]] = {
            "answer": lambda: answer(self),
            "short-answer": lambda: short_answer(self),
            "appearance": lambda: appearance(self),
            "advice": lambda: advice(self),
            "lead": lambda: departures.lead(self),
            "choices": lambda: departures.choices(self),
            "choices-in-short": lambda: departures.in_short(self),
            "last-or-best": lambda: departures.last_or_best(self),
            "profile": lambda: tuned.profile(self),
            "tuning": lambda: tuned.tuning(self),
            "columns": lambda: tuned.columns(self),
            "digits-columns": lambda: tuned.columns(self, "digits-columns"),
            "digits-choices": lambda: departures.on_digits(self),
            "report": lambda: tuned.report(self),
            "report-beside": lambda: tuned.report_beside(self),
            "compositions": lambda: tuned.compositions(self),
            "mechanism": self.mechanism,
            "mechanism-by-column": self.mechanism_by_column,
            "by-round": lambda: by_round.on_cifar10(self),
            "digits": lambda: by_round.on_digits(self),
            "state": self.state,
        }

    def runs(self) -> dict[str, list[Result]]:
        """The arms at the base with what they recorded: confirmed, or else of the screen."""
        for part in ("confirm", "screen"):
            found = {trial.arm: self.records(trial) for trial in self.study.bases(part)}
            if any(found.values()):
                return {arm: records for arm, records in found.items() if records}
        return {}

    def figures(self) -> dict[str, str]:
        """The page's pictures that there are runs for, by the names of their files."""
        runs = self.runs()
        made = {
            "study-by-round.svg": by_round.picture(self),
            "study-mechanism.svg": mechanism.picture(runs) if runs else "",
        }
        return {name: picture for name, picture in made.items() if picture}

    def mechanism(self) -> str:
        """What is distilled, forgotten and drifted in the last round, and the figure of all rounds."""
        runs = self.runs()
        if not runs:
            return f"{NOT_RUN.capitalize()}.\n"
        rows = []
        for title, measure in mechanism.MEASURES.items():
            ends = [mechanism.ends(records, measure) for records in runs.values()]
            unknown = "–" if title in mechanism.DISTILLED else "not recorded"
            rows.append([title, *(spread(values, 3) if values else unknown for values in ends)])
        return "![From round to round](images/study-mechanism.svg)\n\n" + table(("in the last round", *runs), rows)

    def mechanism_by_column(self) -> str:
        """The same of every method that is reported, on every column."""
        settled = self.reported.settled
        found = [] if settled is None else [self._mechanism_on(column, settled) for column in COLUMNS]
        shown = "\n".join(part for part in found if part)
        return f"{tuned.until_reported(self)}{shown}" if shown else f"{NOT_RUN.capitalize()}.\n"

    def _mechanism_on(self, column: Column, settled: Settled) -> str:
        rows = []
        for name, title in self.titles.items():
            trial = self.study.reported(column, name, settled)
            records = self.records(trial)
            if records:
                ends = (mechanism.ends(records, measure) for measure in mechanism.MEASURES.values())
                rows.append([title, *("–" if not values else spread(values, 3) for values in ends)])
            ours = name in (OURS, self.study.design.columns.name)
            theirs = self.records(self.study.fedavg_beside(trial)) if records and ours else []
            if theirs:
                rows.append([f"{title}, less FedAvg [95 %]", *mechanism.less(records, theirs)])
        return f"**{column.title}**\n\n{table(('in the last round', *mechanism.MEASURES), rows)}" if rows else ""

    def state(self) -> str:
        """How much of every part has been run."""
        rows = []
        for part in PARTS:
            seeds = ", ".join(map(str, self.study.seeds_of(part))) or "–"
            row = [f"`{part}`", "–", "–", seeds, str(self.study.rounds_of(part))]
            least = ""
            try:
                trials = self.study.trials(part, self.results)
            except UserError:  # it follows from a part that is not finished; but for what it has of its own
                trials, least = self.study.bases(part) if part == "confirm" else [], "at least "
            if trials:
                cells = self.study.cells(trials)
                row[1:3] = [f"{least}{len({cell.key for cell in cells})}", str(len(self.results.found(cells)))]
                row[3] = ", ".join(map(str, sorted({cell.recipe.seed for cell in cells})))
            rows.append(row)
        return table(("part", "cells", "finished", "seeds", "rounds"), rows)


TITLES: Mapping[str, str] = {
    "answer": "Answer",
    "appearance": "Where the published lead appears",
    "advice": "What to set, and what did not matter",
    "lead": "FedSSD's gain over FedAvg",
    "choices": "Choices",
    "last-or-best": "Last or best round",
    "profile": "Profile",
    "tuning": "Strengths",
    "columns": "Strengths, by column",
    "digits-columns": "Strengths on digits, by column",
    "digits-choices": "Choices on digits",
    "report": "Methods",
    "report-beside": "Methods, with another pipeline",
    "compositions": "Compositions",
    "mechanism": "Mechanism",
    "mechanism-by-column": "Mechanism, by column",
    "by-round": "By round",
    "digits": "By round, on digits",
    "state": "State",
}


def departs(study: Study) -> str:
    """What of a study is not as the design has it, by the flags that say so; nothing where all of it is."""
    seeds = [str(seed) for seed in (*(study.tuning or ()), *(study.reporting or ()))]
    changes = {key.removeprefix("options."): value for key, value in study.changes.items()}
    flags = ["--scale small"] if study.small else []
    flags += [f"--rounds {value}" for key, value in changes.items() if key == "rounds"]
    flags += [f"--set {key}={value}" for key, value in changes.items() if key != "rounds"]
    flags += [f"--seeds {','.join(seeds)}"] if seeds else []
    flags += [f"--pipeline {label(study.pipeline)}"] if study.pipeline is not None else []
    return f"Not as the design has it: {', '.join(map(code, flags))}.\n" if flags else ""


def write_study(page: Page, out: Path) -> list[Path]:
    """What the runs come to, as files: the page's blocks, the choices that follow, and the figures."""
    study = page.study
    stand_in = f"{STAND_IN}: the figures say nothing about the paper's.\n" if study.small else ""
    opening = [f"{line}\n" for line in (stand_in, departs(study)) if line]
    blocks = [f"## {title}\n\n{page.blocks[name]()}" for name, title in TITLES.items()]
    texts = {"study.md": "".join(opening) + "\n".join(blocks)}
    if study.pipeline is None:  # else it was named, not chosen
        origin = (
            "written from the runs beside it and those it reused; what these do not decide is as it comes with fedssd"
        )
        texts["chosen.toml"] = study.choices(page.results).to_toml(origin)
    runs = page.runs()
    texts |= {"mechanism.csv": mechanism.as_csv(runs)} if runs else {}
    texts |= {f"images/{name}": picture for name, picture in page.figures().items()}
    for name, content in texts.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(content, encoding="utf-8")
    return [out / name for name in texts]
