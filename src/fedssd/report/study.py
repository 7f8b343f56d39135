"""The study as a page shows it: the answer, each choice's effect, the profile, the methods, the mechanism.

Pure functions of a study and its results; what has not been run says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from fedssd.errors import UserError
from fedssd.experiment.paper import Column
from fedssd.experiment.study.design import OURS, PARTS, Changes, Choice, Tuned, label
from fedssd.experiment.study.parts import Study
from fedssd.experiment.study.results import Results
from fedssd.experiment.study.trial import Trial
from fedssd.experiment.study.trials import COLUMNS, Settled
from fedssd.report import mechanism
from fedssd.report.advice import advice
from fedssd.report.answer import STAND_IN, answer, short_answer
from fedssd.report.evidence import THEIRS, Evidence
from fedssd.report.figures import NAMES
from fedssd.report.markdown import table
from fedssd.report.paired import pair
from fedssd.report.records import Record
from fedssd.report.reproduction import FAR_OFF
from fedssd.report.wording import NOT_RUN, any_run, chosen_mark, code, interval, spread, verdict


class Page(Evidence):
    """The blocks of docs/study.md, each by its name."""

    def __init__(self, study: Study, results: Results) -> None:
        super().__init__(study, results)
        self.blocks: dict[str, Callable[[], str]] = {
            "answer": lambda: answer(self),
            "short-answer": lambda: short_answer(self),
            "advice": lambda: advice(self),
            "lead": self.lead,
            "choices": self.choices,
            "last-or-best": self.last_or_best,
            "profile": self.profile,
            "tuning": self.tuning,
            "report": self.report,
            "compositions": self.compositions,
            "mechanism": self.mechanism,
            "mechanism-by-column": self.mechanism_by_column,
            "state": self.state,
        }

    # ── choices ──

    def lead(self) -> str:
        """FedSSD less FedAvg under each departure: what makes a lead appear or vanish."""
        rows = []
        for part in ("confirm", "screen"):
            bases = {trial.arm: trial for trial in self.study.bases(part)}
            rows += [self._lead_row(bases[arm], bases[THEIRS]) for arm in self.leaders]
            for choice in self.study.design.choices:
                trials = {(t.label, t.arm): t for t in self.study.departures(part, choice)}
                for trial in trials.values():
                    if trial.recipe.method == OURS:
                        rows.append(self._lead_row(trial, trials.get((trial.label, THEIRS), bases[THEIRS])))
        kept = [row for row in rows if row[2] != NOT_RUN]
        if not kept:
            return f"{NOT_RUN.capitalize()}.\n"
        heads = ("departure", "arm", "FedSSD %", "FedAvg % there", "FedSSD's gain over FedAvg [95 %]", "rounds")
        return table(heads, kept)

    def _lead_row(self, ours: Trial, theirs: Trial) -> list[str]:
        values = [spread(list(self.found(trial).values())) for trial in (ours, theirs)]
        return [code(ours.label), ours.arm, *values, interval(self.against(ours, theirs)), str(ours.recipe.rounds)]

    def choices(self) -> str:
        """A table for each choice: what each departure does to each arm, on the screen and confirmed."""
        choices = self.study.design.choices
        return "\n".join(self._choice(choice) for choice in choices if self.study.departures("screen", choice))

    def _choice(self, choice: Choice) -> str:
        heads = ("departure", "arm", "rounds", "accuracy %", "base %", "less the base [95 %]", "says")
        rows = [
            self._choice_row(trial)
            for part in ("screen", "confirm")
            for trial in self.study.departures(part, choice)
            if part == "screen" or self.found(trial)
        ]
        return f"**{choice.question}** (`--only {choice.name}`)\n\n{table(heads, rows)}"

    def _choice_row(self, trial: Trial) -> list[str]:
        base = self.study.base_of(trial)
        values = [spread(list(self.found(one).values())) for one in (trial, base)]
        found = self.against(trial, base)
        says = verdict(found, self.study.design.survives)
        return [code(trial.label), trial.arm, str(trial.recipe.rounds), *values, interval(found), says]

    def last_or_best(self) -> str:
        """The last round against the best one, which no runs of their own are needed for."""
        part = "confirm" if any(map(self.found, self.study.bases("confirm"))) else "screen"
        bases = {trial.arm: trial for trial in self.study.bases(part)}
        rows = []
        for arm, trial in bases.items():
            last, best = self.found(trial, "last"), self.found(trial, "best")
            leads = [
                pair(arm, self.found(bases[THEIRS], which), self.found(trial, which)) for which in ("last", "best")
            ]
            shown = ["–", "–"] if arm == THEIRS else [interval(lead) for lead in leads]
            gaps = pair(arm, last, best).gains  # none can be negative, so that an interval would say nothing
            gap = f"{fmean(gaps):.2f}" if gaps else "–"
            rows.append([arm, spread(list(last.values())), spread(list(best.values())), gap, *shown])
        heads = (
            "arm",
            "last round %",
            "best round %",
            "best less last",
            "gain over FedAvg, last",
            "gain over FedAvg, best",
        )
        return f"Over {bases[THEIRS].recipe.rounds} rounds.\n\n" + table(heads, rows)

    # ── profile, strengths, compositions ──

    def profile(self) -> str:
        """FedAvg with every pipeline, and how far it is from the published, give or take a standard error."""
        chosen, rows = self.study.paper(self.results), []
        home = self.home
        order = [home, *(column for column in COLUMNS if column is not home)]
        for changes in self.study.candidates():
            found = [list(self.found(self.study.candidate(changes, column)).values()) for column in order]
            far = [self._distance(changes, columns) for columns in ([home], COLUMNS)]
            mark = " **chosen**" if chosen == changes else ""
            shown = [
                spread(values) + self._flag(column, values) if values else "–"
                for column, values in zip(order, found, strict=True)
            ]
            rows.append([code(label(changes)) + mark, *shown, *far])
        published = [f"{column.published[THEIRS].accuracy:.2f}" for column in order]
        rows.append(["the paper's FedAvg", *published, "0", "0"])
        heads = ("pipeline", *(column.title for column in order), "distance, first", "distance, all")
        if chosen is None and not any_run(rows[:-1], 1):
            return f"{NOT_RUN.capitalize()}.\n"
        return _flagged(table(heads, rows))

    def _flag(self, column: Column, accuracies: Sequence[float]) -> str:
        """Behind a FedAvg of ours that is far from the published one."""
        if not self.beside_the_paper or not accuracies:
            return ""
        return " ⚑" if abs(fmean(accuracies) - column.published[THEIRS].accuracy) > FAR_OFF else ""

    def _distance(self, changes: Changes, columns: Sequence[Column]) -> str:
        far, error = self.study.distance(changes, columns, self.results), self.distance_error(changes, columns)
        return "–" if far is None else f"{far:.2f}" + ("" if error is None else f" ± {error:.2f}")

    def tuning(self) -> str:
        """Every grid on the tuning seeds, the chosen value marked, variants below the paper's methods."""
        paper = self.study.paper(self.results)
        if paper is None:
            return f"{NOT_RUN.capitalize()}: it follows from the profile.\n"
        strengths, variants = self.study.strengths(self.results) or {}, self.study.variants(self.results) or {}
        best, rows = {**strengths, **variants}, []
        for one in (*self.study.design.grids, *self.study.design.variants):
            chosen = best.get(one.name if one.title else one.key)
            for value, trial in self.study.tried(one, paper).items():
                found = spread(list(self.found(trial).values()))
                mark = chosen_mark(one.values, value) if chosen == value else ""
                rows.append([one.title or NAMES[one.name], code(trial.label) + mark, found])
        if not any_run(rows, 2):
            return f"{NOT_RUN.capitalize()}.\n"
        settled = self.study.settled(self.results)
        beside = [] if settled is None else [self._beside(one, settled) for one in self.study.design.variants]
        return "\n".join([table(("method", "strength", "accuracy %"), rows), *filter(None, beside)])

    def _beside(self, one: Tuned, settled: Settled) -> str:
        found = self.ahead(one, settled)
        if not found.gains:
            return ""
        words = "ends" if fmean(found.gains) > 0 else "does not end"
        doubt = "" if found.clear else ", not told apart"
        return (
            f"On the tuning seeds {code(one.name)} {words} above FedSSD, each at its best: {interval(found)}{doubt}.\n"
        )

    def report(self) -> str:
        """Every method with its tuned strength on every column, on seeds nothing was chosen on."""
        settled = self.study.settled(self.results)
        if settled is None:
            return f"{NOT_RUN.capitalize()}: it follows from the profile and the tuned strengths.\n"
        note = (
            "T: after how many rounds a method first has FedAvg's final accuracy of the same seed, as a median; FedAvg "
            "itself first hits it before the end, which is what to compare with. (k/n): k of n seeds reach it.\n"
        )
        return "\n".join([*(self._column(column, settled) for column in COLUMNS), note])

    def _column(self, column: Column, settled: Settled) -> str:
        rows = []
        for name, title in self.titles.items():
            accuracies = list(self.found(self.study.reported(column, name, settled)).values())
            found = spread(accuracies) + (self._flag(column, accuracies) if name == THEIRS else "")
            lead = "–" if name == THEIRS else interval(self.reported_lead(column, name, settled))
            reached = self.rounds_to(*(self.study.reported(column, one, settled) for one in (name, THEIRS)))
            rows.append([title, found, lead, str(reached or "–"), *self._printed(column, name)])
        heads = ("method", "ours %", "gain over FedAvg [95 %]", "T", "paper %", "paper's gain", "paper's T")
        shown = _flagged(table(heads[: len(rows[0])], rows))
        return f"**{column.title}** (`--part report --only {column.recipe}`)\n\n{shown}"

    def _printed(self, column: Column, name: str) -> list[str]:
        """What the paper has for a method; for digits and changed recipes it has nothing, and no column."""
        if not self.beside_the_paper:
            return []
        if name not in column.published:
            return ["–", "–", "–"]
        printed = column.published[name]
        theirs = f"{printed.accuracy:.2f}" + (f" ± {printed.spread:.2f}" if printed.spread is not None else "")
        gain = "–" if name == THEIRS else f"{printed.accuracy - column.published[THEIRS].accuracy:+.2f}"
        return [theirs, gain, str(printed.rounds or "–")]

    def compositions(self) -> str:
        """Grids on the tuning seeds, then the best of them, and what they are compared with, on the others."""
        settled = self.study.settled(self.results)
        if settled is None:
            return f"{NOT_RUN.capitalize()}: it follows from the profile and the tuned strengths.\n"
        chosen, rows = self.study.compositions(self.results), []
        for one in self.study.design.compositions:
            for value in one.values:
                trial = self.study.composed("compose", one, value, settled)
                mark = chosen_mark(one.values, value) if chosen.get(one.name) == value else ""
                rows.append([one.name, code(trial.label) + mark, spread(list(self.found(trial).values()))])
        if not any_run(rows, 2):
            return f"{NOT_RUN.capitalize()}.\n"
        parts = [table(("composition", "value", "accuracy % on the tuning seeds"), rows)]
        reported = self._best_rows(settled)
        heads = ("composition", "which is", "value", "accuracy % on the reported seeds", "difference", "points [95 %]")
        return "\n".join([*parts, table(heads, reported) if reported else f"The best: {NOT_RUN}.\n"])

    def _best_rows(self, settled: Settled) -> list[list[str]]:
        """Each less FedAvg, then the one with FedSSD less the same without it and less the best without."""
        best = self.best()
        if best is None:
            return []
        base = self.study.reported(self.home, THEIRS, settled)
        rivals = [(ours, role, base) for ours, role in best.roles]
        rivals += [
            (ours, "what of it is FedSSD's" if theirs == best.control else "", theirs)
            for ours, theirs in best.differences
        ]
        return [
            [
                ours.arm,
                role,
                code(ours.label),
                spread(list(self.found(ours).values())),
                f"{ours.arm} less {NAMES.get(theirs.arm, theirs.arm)}",
                interval(self.against(ours, theirs)),
            ]
            for ours, role, theirs in rivals
        ]

    # ── mechanism and state ──

    def runs(self) -> dict[str, list[Record]]:
        """The arms at the base with what they recorded: confirmed, or else of the screen."""
        for part in ("confirm", "screen"):
            found = {trial.arm: self.records(trial) for trial in self.study.bases(part)}
            if any(found.values()):
                return {arm: records for arm, records in found.items() if records}
        return {}

    def mechanism(self) -> str:
        """What is distilled, forgotten and drifted in the last round, and the figure of all rounds."""
        runs = self.runs()
        if not runs:
            return f"{NOT_RUN.capitalize()}.\n"
        rows = []
        for title, measure in mechanism.MEASURES.items():
            ends = [mechanism.at_the_end(records, measure) for records in runs.values()]
            unknown = "–" if title in mechanism.DISTILLED else "not recorded"
            rows.append([title, *(unknown if end is None else f"{end:.3g}" for end in ends)])
        return "![From round to round](images/study-mechanism.svg)\n\n" + table(("in the last round", *runs), rows)

    def mechanism_by_column(self) -> str:
        """The same of every method that is reported, on every column."""
        settled = self.study.settled(self.results)
        found = [] if settled is None else [self._mechanism_on(column, settled) for column in COLUMNS]
        return "\n".join(part for part in found if part) or f"{NOT_RUN.capitalize()}.\n"

    def _mechanism_on(self, column: Column, settled: Settled) -> str:
        rows = []
        for name, title in self.titles.items():
            records = self.records(self.study.reported(column, name, settled))
            if records:
                ends = (mechanism.ends(records, measure) for measure in mechanism.MEASURES.values())
                rows.append([title, *("–" if not values else spread(values, 3) for values in ends)])
        return f"**{column.title}**\n\n{table(('in the last round', *mechanism.MEASURES), rows)}" if rows else ""

    def state(self) -> str:
        """How much of every part has been run."""
        rows = []
        for part in PARTS:
            seeds = ", ".join(map(str, self.study.seeds_of(part)))
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
    "advice": "What to set, and what did not matter",
    "lead": "FedSSD's gain over FedAvg",
    "choices": "Choices",
    "last-or-best": "Last or best round",
    "profile": "Profile",
    "tuning": "Strengths",
    "report": "Methods",
    "compositions": "Compositions",
    "mechanism": "Mechanism",
    "mechanism-by-column": "Mechanism, by column",
    "state": "State",
}


def _flagged(shown: str) -> str:
    """With what the flag means below, where there is one."""
    note = f"⚑: our FedAvg is more than {FAR_OFF:g} from the published figure; read its column with that in mind."
    return f"{shown}\n{note}\n" if "⚑" in shown else shown


def departs(study: Study) -> str:
    """What of a study is not as the design has it, by the flags that say so; nothing where all of it is."""
    seeds = [str(seed) for seed in (*(study.tuning or ()), *(study.reporting or ()))]
    changes = {key.removeprefix("options."): value for key, value in study.changes.items()}
    flags = ["--scale small"] if study.small else []
    flags += [f"--rounds {value}" for key, value in changes.items() if key == "rounds"]
    flags += [f"--set {key}={value}" for key, value in changes.items() if key != "rounds"]
    flags += [f"--seeds {','.join(seeds)}"] if seeds else []
    return f"Not as the design has it: {', '.join(map(code, flags))}.\n" if flags else ""


def write_study(page: Page, out: Path) -> list[Path]:
    """What the runs come to, as files: the page's blocks, the choices that follow, and the mechanism's figure."""
    study = page.study
    stand_in = f"{STAND_IN}: the figures say nothing about the paper's.\n" if study.small else ""
    opening = [f"{line}\n" for line in (stand_in, departs(study)) if line]
    blocks = [f"## {title}\n\n{page.blocks[name]()}" for name, title in TITLES.items()]
    texts = {"chosen.toml": study.choices(page.results).to_toml("written from the runs beside it and those it reused")}
    texts["study.md"] = "".join(opening) + "\n".join(blocks)
    runs = page.runs()
    if runs:
        texts |= {"mechanism.csv": mechanism.as_csv(runs), "images/study-mechanism.svg": mechanism.picture(runs)}
    for name, content in texts.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(content, encoding="utf-8")
    return [out / name for name in texts]
