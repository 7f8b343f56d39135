"""Our figures beside the published ones, cell by cell, as Markdown, CSV and LaTeX. Pure functions of run folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from fedssd.reports.charts import NAMES as PAPER_NAMES
from fedssd.reports.comparison import BASELINE, Reached, percent, reached
from fedssd.reports.markdown import table
from fedssd.reports.statistics import Rival, pair
from fedssd.reports.table import Table, Value, values
from fedssd.runs.read import read_run
from fedssd.simulation.result import Result
from studies.paper.cell import Cell
from studies.paper.cells import Place, cells_of, fedavg_of, places_of
from studies.paper.paper import Experiment, Published
from studies.paper.report.wording import interval

FAR_OFF = 1.0  # points between our FedAvg and the published one from which a setting is flagged
NAMES = {**PAPER_NAMES, "kl": "KL", "mse": "MSE"}
SPLIT_CHOSEN = ("table1-cifar10", 1)  # the column whose FedAvg decided which split all recipes have, and that split
NOBODY = Rival(BASELINE, (), ())
Runs = dict[int, Result]  # by seed


@dataclass(frozen=True)
class Compared:
    """One cell: ours over the seeds that are finished, and theirs."""

    method: str
    accuracies: tuple[float, ...]  # percent
    rounds: tuple[int | None, ...]  # T, seed by seed: None where FedAvg's accuracy was not reached
    theirs: Published | None
    lead: Rival = NOBODY  # against FedAvg of the same seeds
    published_lead: float | None = None  # the published figure less the published FedAvg
    tried: int = 0  # how many rounds a run has

    @property
    def mean(self) -> float | None:
        return fmean(self.accuracies) if self.accuracies else None

    @property
    def std(self) -> float | None:
        return stdev(self.accuracies) if len(self.accuracies) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours less theirs, in points."""
        return None if self.mean is None or self.theirs is None else self.mean - self.theirs.accuracy

    @property
    def stands_out(self) -> bool:
        """Whether the difference is larger than both spreads."""
        if self.difference is None or self.std is None or self.theirs is None or self.theirs.spread is None:
            return False
        return abs(self.difference) > max(self.std, self.theirs.spread)

    @property
    def reached(self) -> Reached | None:
        """T: the median over seeds, one that never reaches FedAvg's accuracy counting as beyond all rounds."""
        return reached(self.rounds, [self.tried] * len(self.rounds))

    @property
    def far_off(self) -> bool:
        """Whether this is FedAvg, more than a point from the published figure: the setting may not be the paper's."""
        return self.method == BASELINE and self.difference is not None and abs(self.difference) > FAR_OFF


@dataclass(frozen=True)
class Side:
    """One column: a setting and its cells; where a dataset stands in for the paper's, nothing is subtracted."""

    title: str
    cells: tuple[Compared, ...]
    stand_in: str = ""
    command: str = ""  # runs it again
    split_chosen: bool = False  # for FedAvg's nearness to the published figure

    @property
    def heading(self) -> str:
        """The paper's column, and what it was run on in its stead."""
        return heading(self.title, self.stand_in)


def heading(title: str, stand_in: str) -> str:
    """A column's title, and what it was run on in its stead."""
    return f"{title}, on {stand_in} in its stead" if stand_in else title


def compare_with_paper(
    places: Sequence[Place],
    done: Mapping[str, Path],
    seeds: Sequence[int],
    methods: Sequence[str] | None = None,
    stand_in: str = "",
) -> list[Side]:
    """Every column's cells as far as they are finished; ``stand_in`` is what was run in place of the paper's data."""
    return [
        _side(place, done, seeds, stand_in)
        for place in places
        if methods is None or set(methods) & set(place.column.methods)
    ]


def _side(place: Place, done: Mapping[str, Path], seeds: Sequence[int], stand_in: str) -> Side:
    def runs(cells: Sequence[Cell]) -> Runs:
        return {cell.recipe.seed: read_run(done[cell.key]) for cell in cells if cell.key in done}

    baseline = runs(fedavg_of(place, seeds))
    return Side(
        place.column.title,
        tuple(
            _compared(place, method, runs(cells_of(place, seeds, (method,))), baseline)
            for method in place.column.methods
        ),
        stand_in,
        split_chosen=(place.column.recipe, place.base.partition_seed) == SPLIT_CHOSEN,
    )


def _compared(place: Place, method: str, ours: Runs, baseline: Runs) -> Compared:
    found, base = ({seed: percent(run) for seed, run in some.items()} for some in (ours, baseline))
    paired = [(run, baseline[seed]) for seed, run in ours.items() if seed in baseline]
    first = tuple(run.rounds_to(base.summary.accuracy or 0.0) for run, base in paired)
    theirs, null = (place.column.published.get(name) for name in (method, BASELINE))
    return Compared(
        method,
        tuple(found.values()),
        first,
        theirs,
        NOBODY if method == BASELINE else pair(BASELINE, base, found),
        theirs.accuracy - null.accuracy if theirs and null and method != BASELINE else None,
        place.base.rounds,
    )


def markdown(sides: Sequence[Side]) -> str:
    """A table for each column; where a dataset stands in for the paper's, it is named and nothing is subtracted."""
    return "\n".join(map(_section, sides))


def _section(side: Side) -> str:
    heads, rows = _shown(side)
    again = f" (`{side.command}`)" if side.command else ""
    title = f"**{side.title}**{side.heading.removeprefix(side.title)}{again}"
    return "\n".join([title, "", table(heads, rows), *(f"{note}." for note in notes(side)), ""])


def _shown(side: Side) -> tuple[list[str], list[list[str]]]:
    """A column of the paper as a table of its own: what is known of every cell."""
    printed = any(cell.theirs for cell in side.cells)
    columns: dict[str, Callable[[Compared], str]] = {
        "method": lambda cell: NAMES.get(cell.method, cell.method),
        "ours %": ours,
    }
    if printed:
        columns["paper %"] = theirs
    if printed and not side.stand_in:
        columns["difference"] = difference
    if any(cell.lead.gains for cell in side.cells):
        columns["gain over FedAvg [95 %]"] = lambda cell: interval(cell.lead)
    if any(cell.published_lead is not None for cell in side.cells):
        columns["paper's gain"] = _their_lead
    if any(cell.rounds for cell in side.cells):
        columns["T"] = rounds
    if any(cell.theirs and cell.theirs.rounds for cell in side.cells):
        columns["paper's T"] = _their_rounds
    return list(columns), [[show(cell) for show in columns.values()] for cell in side.cells]


def ours(cell: Compared) -> str:
    """Mean ± standard deviation (seeds)."""
    if cell.mean is None:
        return "not run"
    spread = "" if cell.std is None else f" ± {cell.std:.2f}"
    return f"{cell.mean:.2f}{spread} ({len(cell.accuracies)})"


def rounds(cell: Compared) -> str:
    """T, and on how many seeds FedAvg's accuracy was reached where not on all."""
    return "–" if cell.reached is None else str(cell.reached)


def theirs(cell: Compared) -> str:
    """The published figure."""
    if cell.theirs is None:
        return "–"
    spread = "" if cell.theirs.spread is None else f" ± {cell.theirs.spread:.2f}"
    return f"{cell.theirs.accuracy:.2f}{spread}"


def _their_lead(cell: Compared) -> str:
    return "–" if cell.published_lead is None else f"{cell.published_lead:+.2f}"


def _their_rounds(cell: Compared) -> str:
    return "–" if cell.theirs is None or cell.theirs.rounds is None else str(cell.theirs.rounds)


def difference(cell: Compared) -> str:
    """Ours less theirs, marked where it is larger than both spreads or where FedAvg is far off."""
    if cell.difference is None:
        return "–"
    return f"{cell.difference:+.2f}{' †' if cell.stands_out else ''}{' ⚑' if cell.far_off else ''}"


def notes(side: Side) -> list[str]:
    """What a reader must know to read a column."""
    found, compared = [], not side.stand_in and any(cell.theirs for cell in side.cells)
    if any(cell.accuracies for cell in side.cells):
        found.append("Ours: mean ± standard deviation (seeds)")
    if any(cell.lead.half_width is not None for cell in side.cells):
        found.append("Gain over FedAvg: in points, paired by seed, 95 % by Student's t; *: significant at 95 %")
    if any(cell.rounds for cell in side.cells):
        own = next((cell for cell in side.cells if cell.method == BASELINE), None)
        null = f"; FedAvg itself first hits that value in round {rounds(own)}" if own and own.rounds else ""
        found.append(f"T: rounds to FedAvg's final accuracy, paired by seed, median{null}")
    if any(None in cell.rounds for cell in side.cells):
        found.append("(k/n): k of n seeds reached it, and the others count in the median as more than all rounds")
    if compared and any(cell.stands_out for cell in side.cells):
        found.append("†: larger than both spreads")
    if compared and any(cell.far_off for cell in side.cells):
        found.append(f"⚑: our FedAvg is more than {FAR_OFF:g} from the published figure")
    if compared and side.split_chosen and any(c.method == BASELINE and c.difference is not None for c in side.cells):
        found.append(
            "The split was picked from five for its FedAvg; what its client 8 holds makes it likely the paper's own"
        )
    return found


def figures(sides: Sequence[Side]) -> Table:
    """One row a cell, in percent and rounds; T is not known where it is beyond all rounds."""
    heads = (
        "setting method seeds accuracy std rounds reached paper_accuracy paper_std paper_rounds difference "
        "less_fedavg half_width paper_less_fedavg stands_out far_off"
    )
    rows: list[list[Value]] = []
    for side in sides:
        for cell in side.cells:
            found = cell.reached or Reached(0, True, 0, 0)
            paper = cell.theirs or (None, None, None)
            numbers = [cell.mean, cell.std, None if found.beyond else found.rounds]
            lead = [fmean(cell.lead.gains) if cell.lead.gains else None, cell.lead.half_width, cell.published_lead]
            known = (*numbers, found.times, *paper, None if side.stand_in else cell.difference, *lead)
            marks = [None, None] if side.stand_in else [int(cell.stands_out), int(cell.far_off)]
            rows.append([side.heading, cell.method, len(cell.accuracies), *known, *marks])
    return values(heads, rows)


def latex(experiment: Experiment, sides: Sequence[Side]) -> str:
    """Methods × settings, ours and in brackets the paper's unless a dataset stands in; then each setting in full."""
    methods = dict.fromkeys(cell.method for side in sides for cell in side.cells)
    heads = " & ".join(["Method", *(_escaped(side.heading) for side in sides)])
    stand_in = next((side.stand_in for side in sides if side.stand_in), "")
    beside = f"on {stand_in}, beside which the paper's say nothing" if stand_in else "in brackets the paper's"
    lines = [
        f"% {experiment.title}: ours, mean and standard deviation over seeds; {beside}.",
        f"\\begin{{tabular}}{{l{'c' * len(sides)}}}",
        "\\hline",
        f"{heads} \\\\",
        "\\hline",
    ]
    for method in methods:
        found = [(side, next((cell for cell in side.cells if cell.method == method), None)) for side in sides]
        texts = ["" if cell is None else _latex_cell(cell, bool(side.stand_in)) for side, cell in found]
        lines.append(" & ".join([_escaped(NAMES.get(method, method)), *texts]) + " \\\\")
    return "\n".join([*lines, "\\hline", "\\end{tabular}", "", *map(_latex_in_full, sides)])


def _latex_in_full(side: Side) -> str:
    """All that the page shows of a setting, with differences, gains and T; of a stand-in without the paper's."""
    heads, rows = _shown(side)
    kept = [place for place, head in enumerate(heads) if not (side.stand_in and head.startswith("paper"))]
    lines = [" & ".join(_escaped(row[place]) for place in kept) + " \\\\" for row in (heads, *rows)]
    comments = [f"% {text}." for text in (side.heading, *notes(side))]
    comments = [text.replace("⚑", "‡") for text in comments]  # as the mark is in LaTeX
    opening = [f"\\begin{{tabular}}{{l{'r' * (len(kept) - 1)}}}", "\\hline", lines[0], "\\hline"]
    return "\n".join([*comments, *opening, *lines[1:], "\\hline", "\\end{tabular}", ""])


def _latex_cell(cell: Compared, alone: bool) -> str:
    mark = "$^\\dagger$" if cell.stands_out and not alone else ""
    mean = "--" if cell.mean is None else f"{cell.mean:.2f}"
    spread = "" if cell.std is None else f"$\\pm {cell.std:.2f}$"
    paper = "" if cell.theirs is None or alone else f" ({cell.theirs.accuracy:.2f})"
    return f"{mean}{spread}{mark}{paper}"


def _escaped(text: str) -> str:
    special = {"#": "\\#", "δ": "$\\delta$", "α": "$\\alpha$", "_": "\\_", "&": "\\&", "%": "\\%"}
    special |= {"±": "$\\pm$", "†": "$^\\dagger$", "⚑": "$^\\ddagger$", "–": "--", ">": "$>$", "*": "$^*$"}
    return re.sub(r"(?<!\w)-(?=\d)", "$-$", "".join(special.get(letter, letter) for letter in text))


def section(experiment: Experiment, done: Mapping[str, Path], seeds: Sequence[int]) -> str:
    """A table as the documentation shows it: the columns that have runs, where those come from, and what is not run."""
    places = places_of(experiment, {})
    sides = compare_with_paper(places, done, seeds)
    ran = [pair for pair in zip(places, sides, strict=True) if any(cell.accuracies for cell in pair[1].cells)]
    again = f"python -m studies.paper run {experiment.name} --only"
    named = [replace(side, command=f"{again} {place.column.recipe}") for place, side in ran]
    parts = [markdown(named)] if ran else []
    if ran:
        parts.append(_origins([place for place, _ in ran], done, seeds))
    rest = [
        f"{side.title} (`{place.column.recipe}`)"
        for place, side in zip(places, sides, strict=True)
        if not any(cell.accuracies for cell in side.cells)
    ]
    parts += [f"Not run yet: {', '.join(rest)}.\n"] if rest else []
    return "\n".join(parts)


def _origins(places: Sequence[Place], done: Mapping[str, Path], seeds: Sequence[int]) -> str:
    """Card, versions, splits and seconds of the runs behind some columns."""
    rows = []
    for place in places:
        runs = [read_run(done[cell.key]) for cell in cells_of(place, seeds) if cell.key in done]
        made = dict.fromkeys(" · ".join(_made(run.provenance)) for run in runs)
        splits = {run.summary.seed: run.summary.split_hash for run in runs}
        seconds = sum(sum(one.seconds.values()) for run in runs for one in run.rounds)
        shown = ", ".join(f"{seed}: `{split}`" for seed, split in sorted(splits.items()))
        if len(splits) > 1 and len(set(splits.values())) == 1:
            shown = f"all: `{next(iter(splits.values()))}`"
        rows.append([place.column.title, "; ".join(made), shown, f"{seconds:,.0f}"])
    return table(("column", "made on", "splits by seed", "seconds of all runs"), rows, left=3)


def _made(header: Mapping[str, str]) -> list[str]:
    card, commit = header.get("card") or header.get("device", ""), header.get("commit")
    return [card, f"torch {header.get('torch', '?')}", *([f"commit {commit}"] if commit else [])]
