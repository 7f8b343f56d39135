"""The study as a page shows it: the answer, each choice's effect, the profile, the methods, the mechanism.

Pure functions of a study and its results; what has not been run says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from fedssd.errors import UserError
from fedssd.experiment.paper import Column
from fedssd.experiment.recipe import PAPER_METHODS
from fedssd.experiment.study.design import Changes, Choice, label
from fedssd.experiment.study.parts import COLUMNS, Study
from fedssd.experiment.study.results import Results
from fedssd.experiment.study.trial import Trial
from fedssd.report import mechanism
from fedssd.report.figures import NAMES
from fedssd.report.markdown import table
from fedssd.report.paired import Rival, pair
from fedssd.report.records import Record, read
from fedssd.report.wording import NOT_RUN, any_run, code, interval, leads, spread, verdict

COMMAND = "fedssd reproduce study"
SENTENCES = ("the base over all rounds", "every method at its tuned strength", "the best composition")  # of the answer
LEADERS = ("fedssd", "fedssd-0.5")


class Page:
    """The blocks of docs/study.md, each by its name."""

    def __init__(self, study: Study, results: Results) -> None:
        self.study, self.results = study, results
        self.blocks: dict[str, Callable[[], str]] = {
            "answer": self.answer,
            "lead": self.lead,
            "choices": self.choices,
            "last-or-best": self.last_or_best,
            "profile": self.profile,
            "tuning": self.tuning,
            "report": self.report,
            "compositions": self.compositions,
            "mechanism": self.mechanism,
            "state": self.state,
        }

    def _found(self, trial: Trial, which: str = "") -> dict[int, float]:
        return self.results.accuracies(trial, self.study.seeds_for(trial), which)

    def _against(self, ours: Trial, theirs: Trial) -> Rival:
        return pair(theirs.arm, self._found(theirs), self._found(ours))

    # ── the answer ──

    def answer(self) -> str:
        """One paragraph, each sentence as far as there are runs for it."""
        said = [self._answer_base(), self._answer_report(), self._answer_best()]
        if not any(said):
            return (
                f"**{NOT_RUN.capitalize()}.** The design is fixed and the runs are not made: whether FedSSD leads, "
                "when and by how much is not known here yet.\n"
            )
        rest = [part for part, sentence in zip(SENTENCES, said, strict=True) if not sentence]
        missing = f" {NOT_RUN.capitalize()}: {', '.join(rest)}." if rest else ""
        return " ".join(sentence for sentence in said if sentence) + missing + "\n"

    def _answer_base(self) -> str:
        bases = {trial.arm: trial for trial in self.study.bases("confirm")}
        said = []
        for arm, strength in (("fedssd", "as printed"), ("fedssd-0.5", "at M_max = 0.5")):
            found = self._against(bases[arm], bases["fedavg"])
            if found.gains:
                said.append(f"FedSSD {strength} {leads(found)}")
        rounds = bases["fedavg"].recipe.rounds
        return f"Over {rounds} rounds of our base recipe, {' and '.join(said)}." if said else ""

    def _answer_report(self) -> str:
        paper, strengths = self.study.paper(self.results), self.study.strengths(self.results)
        if paper is None or strengths is None:
            return ""
        said = []
        for column in COLUMNS:
            ours, theirs = (self.study.reported(column, m, paper, strengths) for m in ("fedssd", "fedavg"))
            found = self._against(ours, theirs)
            if found.gains:
                printed = column.published["fedssd"].accuracy - column.published["fedavg"].accuracy
                said.append(f"on {column.title} it {leads(found)} (published: {printed:+.2f})")
        return f"With the pipeline closest to the paper's and a tuned strength, {'; '.join(said)}." if said else ""

    def _answer_best(self) -> str:
        controls = {one.name for one in self.study.design.compositions if one.is_control}
        found = {trial.arm: list(self._found(trial).values()) for trial in self._best_trials()}
        said = [
            f"{name}, the best {'without' if name in controls else 'with'} FedSSD, reaches {spread(values)}"
            for name, values in found.items()
            if values
        ]
        return f"Of the compositions tried, {' and '.join(said)} (the paper's FedSSD: 73.38)." if said else ""

    # ── choices ──

    def lead(self) -> str:
        """FedSSD less FedAvg under each departure: what makes a lead appear or vanish."""
        rows = []
        for part in ("confirm", "screen"):
            bases = {trial.arm: trial for trial in self.study.bases(part)}
            rows += [self._lead_row(bases[arm], bases["fedavg"]) for arm in LEADERS]
            for choice in self.study.design.choices:
                trials = {(t.label, t.arm): t for t in self.study.departures(part, choice)}
                for trial in trials.values():
                    if trial.recipe.method == "fedssd":
                        rows.append(self._lead_row(trial, trials.get((trial.label, "fedavg"), bases["fedavg"])))
        kept = [row for row in rows if row[2] != NOT_RUN]
        if not kept:
            return f"{NOT_RUN.capitalize()}.\n"
        heads = ("departure", "arm", "FedSSD %", "FedAvg % there", "FedSSD less FedAvg [95 %]", "rounds")
        return table(heads, kept)

    def _lead_row(self, ours: Trial, theirs: Trial) -> list[str]:
        values = [spread(list(self._found(trial).values())) for trial in (ours, theirs)]
        return [code(ours.label), ours.arm, *values, interval(self._against(ours, theirs)), str(ours.recipe.rounds)]

    def choices(self) -> str:
        """A table for each choice: what each departure does to each arm, on the screen and confirmed."""
        return "\n".join(self._choice(choice) for choice in self.study.design.choices)

    def _choice(self, choice: Choice) -> str:
        heads = ("departure", "arm", "rounds", "accuracy %", "base %", "less the base [95 %]", "says")
        rows = [
            self._choice_row(trial)
            for part in ("screen", "confirm")
            for trial in self.study.departures(part, choice)
            if part == "screen" or self._found(trial)
        ]
        return f"**{choice.question}** (`--only {choice.name}`)\n\n{table(heads, rows)}"

    def _choice_row(self, trial: Trial) -> list[str]:
        base = self.study.base_of(trial)
        values = [spread(list(self._found(one).values())) for one in (trial, base)]
        found = self._against(trial, base)
        says = verdict(found, self.study.design.survives)
        return [code(trial.label), trial.arm, str(trial.recipe.rounds), *values, interval(found), says]

    def last_or_best(self) -> str:
        """The last round against the best one, which no runs of their own are needed for."""
        part = "confirm" if any(map(self._found, self.study.bases("confirm"))) else "screen"
        bases = {trial.arm: trial for trial in self.study.bases(part)}
        rows = []
        for arm, trial in bases.items():
            last, best = self._found(trial, "last"), self._found(trial, "best")
            leads = [
                pair(arm, self._found(bases["fedavg"], which), self._found(trial, which)) for which in ("last", "best")
            ]
            shown = ["–", "–"] if arm == "fedavg" else [interval(lead) for lead in leads]
            gap = interval(pair(arm, last, best))
            rows.append([arm, spread(list(last.values())), spread(list(best.values())), gap, *shown])
        heads = ("arm", "last round %", "best round %", "best less last", "less FedAvg, last", "less FedAvg, best")
        return f"Over {bases['fedavg'].recipe.rounds} rounds.\n\n" + table(heads, rows)

    # ── profile, strengths, compositions ──

    def profile(self) -> str:
        """FedAvg with every pipeline, and how far it is from the published."""
        chosen, rows = self.study.paper(self.results), []
        home = next(column for column in COLUMNS if column.recipe == self.study.design.base)
        order = [home, *(column for column in COLUMNS if column is not home)]
        for changes in self.study.candidates():
            found = [list(self._found(self.study.candidate(changes, column)).values()) for column in order]
            far = [self.study.distance(changes, columns, self.results) for columns in ([home], COLUMNS)]
            mark = " **chosen**" if chosen == changes else ""
            shown = [spread(values) if values else "–" for values in found]
            rows.append([code(label(changes)) + mark, *shown, *("–" if d is None else f"{d:.2f}" for d in far)])
        published = [f"{column.published['fedavg'].accuracy:.2f}" for column in order]
        rows.append(["the paper's FedAvg", *published, "0", "0"])
        heads = ("pipeline", *(column.title for column in order), "distance, first", "distance, all")
        return table(heads, rows) if chosen is not None or any_run(rows[:-1], 1) else f"{NOT_RUN.capitalize()}.\n"

    def tuning(self) -> str:
        """Every method's grid on the tuning seeds, the chosen value marked."""
        paper = self.study.paper(self.results)
        if paper is None:
            return f"{NOT_RUN.capitalize()}: it follows from the profile.\n"
        best, rows = self.study.strengths(self.results) or {}, []
        for key in self.study.design.grids:
            for value, trial in self.study.tried(key, paper).items():
                mark = " **chosen**" if best.get(key) == value else ""
                rows.append([code(f"{key}={value}") + mark, spread(list(self._found(trial).values()))])
        return table(("strength", "accuracy %"), rows) if any_run(rows, 1) else f"{NOT_RUN.capitalize()}.\n"

    def report(self) -> str:
        """Every method with its tuned strength on every column, on seeds nothing was chosen on."""
        paper, strengths = self.study.paper(self.results), self.study.strengths(self.results)
        if paper is None or strengths is None:
            return f"{NOT_RUN.capitalize()}: it follows from the profile and the tuned strengths.\n"
        return "\n".join(self._column(column, paper, strengths) for column in COLUMNS)

    def _column(self, column: Column, paper: Changes, strengths: Changes) -> str:
        base = self.study.reported(column, "fedavg", paper, strengths)
        rows = []
        for method in PAPER_METHODS:
            trial = self.study.reported(column, method, paper, strengths)
            printed = column.published[method]
            lead = "–" if method == "fedavg" else interval(self._against(trial, base))
            theirs = f"{printed.accuracy:.2f}" + (f" ± {printed.spread:.2f}" if printed.spread is not None else "")
            published = printed.accuracy - column.published["fedavg"].accuracy
            rows.append([NAMES[method], spread(list(self._found(trial).values())), lead, theirs, f"{published:+.2f}"])
        heads = ("method", "ours %", "less FedAvg [95 %]", "paper %", "paper's less its FedAvg")
        return f"**{column.title}** (`--part report --only {column.recipe}`)\n\n" + table(heads, rows)

    def _best_trials(self) -> list[Trial]:
        paper, strengths = self.study.paper(self.results), self.study.strengths(self.results)
        found = self.study.compositions(self.results)
        if paper is None or strengths is None:
            return []
        by_name = {one.name: one for one in self.study.design.compositions}
        return [self.study.composed("best", by_name[n], value, paper, strengths) for n, value in found.items()]

    def compositions(self) -> str:
        """Grids on the tuning seeds, then the best one on the others."""
        paper, strengths = self.study.paper(self.results), self.study.strengths(self.results)
        if paper is None or strengths is None:
            return f"{NOT_RUN.capitalize()}: it follows from the profile and the tuned strengths.\n"
        chosen, rows = self.study.compositions(self.results), []
        for one in self.study.design.compositions:
            for value in one.values:
                trial = self.study.composed("compose", one, value, paper, strengths)
                mark = " **chosen**" if one.name in chosen and chosen[one.name] == value else ""
                rows.append([one.name, code(trial.label) + mark, spread(list(self._found(trial).values()))])
        if not any_run(rows, 2):
            return f"{NOT_RUN.capitalize()}.\n"
        parts = [table(("composition", "value", "accuracy % on the tuning seeds"), rows)]
        home = next(column for column in COLUMNS if column.recipe == self.study.design.base)
        base = self.study.reported(home, "fedavg", paper, strengths)
        reported = [
            [t.arm, code(t.label), spread(list(self._found(t).values())), interval(self._against(t, base))]
            for t in self._best_trials()
        ]
        heads = ("composition", "value", "accuracy % on the reported seeds", "less FedAvg [95 %]")
        return "\n".join([*parts, table(heads, reported) if reported else f"The best: {NOT_RUN}.\n"])

    # ── mechanism and state ──

    def runs(self) -> dict[str, list[Record]]:
        """The arms at the base with what they recorded: confirmed, or else of the screen."""
        for part in ("confirm", "screen"):
            found = {trial.arm: self._records(trial) for trial in self.study.bases(part)}
            if any(found.values()):
                return {arm: records for arm, records in found.items() if records}
        return {}

    def _records(self, trial: Trial) -> list[Record]:
        paths = [self.results.run(trial, seed) for seed in self.study.seeds_for(trial)]
        return [read(path).until(trial.recipe.rounds) for path in paths if path is not None]

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

    def state(self) -> str:
        """How much of every part has been run."""
        rows = []
        for part, rounds in self.study.design.rounds.items():
            row = [f"`{part}`", "–", "–", ", ".join(map(str, self.study.seeds_of(part))), str(rounds)]
            least = ""
            try:
                trials = self.study.trials(part, self.results)
            except UserError:  # it follows from a part that is not finished; but for what it has of its own
                trials, least = self.study.bases(part) if part == "confirm" else [], "at least "
            if trials:
                cells = self.study.cells(trials)
                row[1:3] = [f"{least}{len({cell.key for cell in cells})}", str(len(self.results.found(cells)))]
                row[3] = ", ".join(map(str, sorted({cell.recipe.seed for cell in cells})))
                row[4] = str(trials[0].recipe.rounds)
            rows.append(row)
        return table(("part", "cells", "finished", "seeds", "rounds"), rows)


TITLES: Mapping[str, str] = {
    "answer": "Answer",
    "lead": "FedSSD less FedAvg",
    "choices": "Choices",
    "last-or-best": "Last or best round",
    "profile": "Profile",
    "tuning": "Strengths",
    "report": "Methods",
    "compositions": "Compositions",
    "mechanism": "Mechanism",
    "state": "State",
}


def write_study(page: Page, out: Path) -> list[Path]:
    """What the runs come to, as files: the page's blocks, the choices that follow, and the mechanism's figure."""
    study = page.study
    stand_in = (
        "On digits, in the place of CIFAR-10: the figures say nothing about the paper's.\n\n" if study.small else ""
    )
    texts = {"chosen.toml": study.choices(page.results).to_toml()}
    texts["study.md"] = stand_in + "\n".join(f"## {TITLES[name]}\n\n{make()}" for name, make in page.blocks.items())
    runs = page.runs()
    if runs:
        texts |= {"mechanism.csv": mechanism.as_csv(runs), "images/study-mechanism.svg": mechanism.picture(runs)}
    for name, content in texts.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(content, encoding="utf-8")
    return [out / name for name in texts]
