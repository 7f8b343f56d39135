"""What a practitioner takes from the study: what to set, which settings matter, and which did not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from fedssd.reports.markdown import table
from fedssd.reports.statistics import Rival
from studies.paper.report.departures import UNSTEADY, explained, known_departures, less_the_base, says
from studies.paper.report.evidence import Evidence
from studies.paper.report.tuned import until_reported
from studies.paper.report.wording import NOT_RUN, clear_of, code, interval, seeds_of
from studies.paper.study.design import THEIRS, Changes, Tuned
from studies.paper.study.trial import Trial
from studies.paper.study.trials import COLUMNS, Settled

NOTHING = "nothing"
BESIDE_THE_BEST = ("told apart, and lower", "not told apart from it")
COMES = {"columns": "comes with fedssd", "digits-columns": "their recipe has"}  # what is best over all columns


def advice(evidence: Evidence) -> str:
    """Each part as far as there are runs for it."""
    tuned = [_with_a_pipeline(part, evidence) for part in (_methods, _strengths)]
    found = [part for part in (*tuned, _on_digits(evidence), _settings(evidence)) if part]
    return "\n".join(found) if found else f"{NOT_RUN.capitalize()}.\n"


def _with_a_pipeline(part: Callable[[Evidence], str], evidence: Evidence) -> str:
    """With the chosen pipeline, or while that says nothing with another, which is then named."""
    own = part(evidence)
    other = "" if own else part(evidence.reported)
    return own or (f"{until_reported(evidence)}{other}" if other else "")


def _methods(evidence: Evidence) -> str:
    """Where each method is told apart from FedAvg."""
    settled = evidence.settled
    if settled is None:
        return ""
    titles = {name: title for name, title in evidence.titles.items() if name != THEIRS}
    leads = {title: evidence.reported_leads(name, settled) for name, title in titles.items()}
    every = [lead for found in leads.values() for lead in found.values()]
    if not every:
        return ""
    columns = [column.title for column in COLUMNS]
    rows = [
        [title, _seeds(found), *(interval(found[c]) if c in found else NOT_RUN for c in columns)]
        for title, found in leads.items()
    ]
    opening = "- **Which method**, each at its tuned strength, less FedAvg in points"
    shown = _indented(table(("method", "seeds", *columns), rows))
    return f"{'. '.join(filter(None, [opening, clear_of(every)]))}:\n\n{shown}"


def _seeds(found: Mapping[str, Rival]) -> str:
    """How many a row's differences have."""
    return seeds_of(list(found.values())).rpartition(" ")[0] if found else "–"


def _strengths(evidence: Evidence) -> str:
    """The chosen value of each grid, and which others end lower on the tuning seeds."""
    settled = evidence.settled
    if settled is None:
        return ""
    design = evidence.study.design
    rows = [_strength(evidence, one, settled.strengths[one.key], settled) for one in design.grids]
    rows += [_strength(evidence, one, settled.variants[one.name], settled) for one in design.variants]
    heads = ("method", "set", *BESIDE_THE_BEST)
    opening = "- **How strong**, of the values tried over fewer rounds on the tuning seeds:"
    return f"{opening}\n\n{_indented(table(heads, rows))}{_on_other_splits(evidence, settled)}"


def _on_other_splits(evidence: Evidence, settled: Settled) -> str:
    found = _by_column(evidence, settled.paper, "columns", evidence.study.pipeline is None)
    return f"\n- **FedSSD on other splits**, {found}" if found else ""


def _on_digits(evidence: Evidence) -> str:
    found = _by_column(evidence, {}, "digits-columns", True)
    rounds = evidence.study.rounds_of("digits-columns")
    return f"- **FedSSD on digits**, split as the columns are, over {rounds} rounds, {found}" if found else ""


def _by_column(evidence: Evidence, paper: Changes, part: str, ships: bool) -> str:
    """The best of FedSSD's strengths on each column, and over all of them, which is what comes with fedssd."""
    ours, rows = evidence.study.design.on_columns[part], []
    everywhere = evidence.study.everywhere(evidence.results, part)
    for column in COLUMNS:
        trials = {value: evidence.study.on_column(column, value, paper, part) for value in ours.values}
        means = {value: fmean(found) for value, trial in trials.items() if (found := evidence.found(trial).values())}
        if len(means) == len(ours.values):
            best = max(means, key=means.__getitem__)
            rows.append([column.title, f"{best:g}", *_beside_the_best(evidence, trials, best)])
    if everywhere is None or len(rows) < len(COLUMNS):
        return ""
    shipped = f", which {COMES[part]}" if evidence.beside_the_paper and ships else ""
    tried = ", ".join(f"{value:g}" for value in ours.values)
    opening = f"of {tried} on the tuning seeds. Over all of them the best M_max is {everywhere:g}{shipped}; on each:"
    return f"{opening}\n\n{_indented(table(('split', 'best M_max', *BESIDE_THE_BEST), rows))}"


def _beside_the_best(evidence: Evidence, tried: Mapping[float, Trial], best: float) -> list[str]:
    """Which other values end lower, and which are not told apart from it."""
    less = {other: evidence.against(tried[best], trial) for other, trial in tried.items() if other != best}
    lower = [f"{other:g}" for other, found in less.items() if found.clear]
    level = [f"{other:g}" for other, found in less.items() if found.gains and not found.clear]
    nothing = "–" if any(found.gains for found in less.values()) else NOT_RUN  # chosen from runs that are not here
    return [", ".join(values) or nothing for values in (lower, level)]


def _strength(evidence: Evidence, one: Tuned, value: float, settled: Settled) -> list[str]:
    tried = evidence.study.tried(one, settled.paper)
    return [evidence.titles[one.name], code(tried[value].label), *_beside_the_best(evidence, tried, value)]


def _settings(evidence: Evidence) -> str:
    """What a departure does: confirmed where that was run, else as screened."""
    acts: list[str] = []
    idle: list[str] = []
    unclear: list[str] = []
    for choice in evidence.study.design.choices:
        for label, trials in known_departures(evidence, choice).items():
            found = {arm: less_the_base(evidence, trial) for arm, trial in trials.items()}
            verdicts = {arm: says(evidence, trial) for arm, trial in trials.items()}
            if any(gain.clear and UNSTEADY not in verdicts[arm] for arm, gain in found.items()):
                marks = {arm: f" {UNSTEADY}" if UNSTEADY in said else "" for arm, said in verdicts.items()}
                after = {arm: f"{len(found[arm].gains)} seeds, {t.recipe.rounds} rounds" for arm, t in trials.items()}
                said = [f"{arm} {interval(gain)} ({after[arm]}){marks[arm]}" for arm, gain in found.items()]
                acts.append(f"  - {code(label)}: {', '.join(said)}")
            else:
                (idle if set(verdicts.values()) == {NOTHING} else unclear).append(label)
    where, few = f"where {evidence.home.title}", f"the whole interval within ±{evidence.study.design.survives:g}"
    said = [f"- **What changes accuracy** {where}, less the base:\n{chr(10).join(acts)}\n"] if acts else []
    said += [f"- **What did not matter** {where}, less the base, {few}: {_gathered(idle)}.\n"] if idle else []
    said += [f"- **What these seeds do not tell** {where}, less the base: {_gathered(unclear)}.\n"] if unclear else []
    return explained("\n".join(said))


def _gathered(labels: Sequence[str]) -> str:
    """Departures of one key together: ``key=a, b``."""
    values: dict[str, list[str]] = {}
    for label in labels:
        key, _, value = label.rpartition("=")
        values.setdefault(key, []).append(value)
    return "; ".join(
        f"{code(f'{key}={found[0]}')}{''.join(f', {one}' for one in found[1:])}" for key, found in values.items()
    )


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" if line else "\n" for line in text.splitlines())
