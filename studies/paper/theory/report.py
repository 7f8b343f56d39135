"""The theorem against a run: what each round was promised, what it brought, and what that comes to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedssd.reports.table import Cell, Column, Table
from fedssd.theory import FORMS, Constants, Form, Promise, facts, number, obstacle, plain, promise, slack, threshold
from studies.paper.theory.measure import Participant, RoundMeasure


@dataclass(frozen=True)
class Judged:
    """One round in one form."""

    constants: Constants
    promise: Promise
    promised: float | None  # ρ‖∇L(w)‖²; None where condition 2 fails

    @property
    def assumption(self) -> bool:
        """Whether Assumption 2 wants no more than there is: η < 1."""
        return self.constants.inexactness < 1


def judge(measured: RoundMeasure, form: Form, m_max: float, clients: float) -> Judged:
    """ρ with the constants this round shows."""
    constants = constants_of([measured], form, m_max, clients)
    found = promise(constants, form)
    return Judged(constants, found, None if found.rho is None else found.rho * measured.gradient**2)


def constants_of(rounds: Sequence[RoundMeasure], form: Form, m_max: float, clients: float) -> Constants:
    """The constants that hold in all these rounds: of each the worst."""
    logit_lipschitz = max(one.logit_lipschitz for one in rounds)
    mu = form.strength(m_max, logit_lipschitz)
    return Constants(
        m_max,
        logit_lipschitz,
        max(one.smoothness for one in rounds),
        min(one.curvature for one in rounds),
        max(one.dissimilarity for one in rounds),
        max(one.inexactness(mu) for one in rounds),
        clients,
    )


def run_facts(rounds: Sequence[RoundMeasure], m_max: float, clients: float) -> dict[str, Any]:
    """A whole run, ready for JSON: every round, and the theorem for the worst constants of all rounds."""
    worst = []
    for form in FORMS:
        constants = constants_of(rounds, form, m_max, clients)
        worst.append(facts(constants, [form]))
    return {"rounds": [round_facts(one, m_max, clients) for one in rounds], "all_rounds": worst}


def rounds_of(content: Mapping[str, Any]) -> list[RoundMeasure]:
    """The rounds of a run again, from what :func:`run_facts` made of them."""
    return [
        RoundMeasure(
            one["round"],
            one["gradient"],
            float(one["B"]),
            tuple(map(_participant, one["clients"])),
            one["loss"],
            one["observed"],
        )
        for one in content["rounds"]
    ]


def _participant(content: Mapping[str, Any]) -> Participant:
    figures: dict[str, Any] = {name: float(value) for name, value in content.items()}
    return Participant(**{**figures, "client": content["client"]})


def round_facts(measured: RoundMeasure, m_max: float, clients: float) -> dict[str, Any]:
    """One round, ready for JSON."""
    judged = {form.name: judge(measured, form, m_max, clients) for form in FORMS}
    return {
        "round": measured.round,
        "loss": measured.loss,
        "gradient": measured.gradient,
        "observed": measured.observed,
        "B": plain(measured.dissimilarity),
        "L_F": measured.smoothness,
        "L_m": measured.curvature,
        "L_f": measured.logit_lipschitz,
        "least_η": plain(measured.least_inexactness),
        "forms": {name: _judged_facts(one) for name, one in judged.items()},
        "clients": [{k: plain(v) for k, v in asdict(one).items()} for one in measured.participants],
    }


def _judged_facts(judged: Judged) -> dict[str, Any]:
    return {
        "mu": judged.promise.strength,
        "mu_plus_L_m": judged.promise.margin,
        "η": plain(judged.constants.inexactness),
        "rho": judged.promise.rho,
        "promised": judged.promised,
    }


def run_lines(rounds: Sequence[RoundMeasure], m_max: float, clients: float) -> list[str]:
    """A run as a table, and what it comes to."""
    return [*_table(rounds, m_max, clients), "", *verdict(rounds, m_max, clients)]


SHARED = ("round", "‖∇L‖", "B", "L_F", "L_m", "L_f")
PER_FORM = ("μ+L_m", "η", "ρ", "promised")


def _table(rounds: Sequence[RoundMeasure], m_max: float, clients: float) -> list[str]:
    head = "".join(f"{name:>9}" for name in SHARED) + 2 * (" │" + "".join(f"{name:>11}" for name in PER_FORM))
    over = " " * 9 * len(SHARED) + "".join(f" │{'as ' + form.name:^44}" for form in FORMS)
    return [over.rstrip(), head + " │  observed", *(_table_row(one, m_max, clients) for one in rounds)]


def _table_row(measured: RoundMeasure, m_max: float, clients: float) -> str:
    shared, *per_form, observed = _cells(measured, m_max, clients)
    line = "".join(f"{cell:>9}" for cell in shared)
    for cells in per_form:
        line += " │" + "".join(f"{cell:>11}" for cell in cells)
    return f"{line} │{observed[0]:>10}"


def _cells(measured: RoundMeasure, m_max: float, clients: float) -> list[list[str]]:
    """A round in words: what both forms share, what each form makes of it, and what was observed."""
    shared = (measured.gradient, measured.dissimilarity, measured.smoothness, measured.curvature)
    groups = [[str(measured.round), *map(number, (*shared, measured.logit_lipschitz))]]
    for form in FORMS:
        one = judge(measured, form, m_max, clients)
        figures = (one.promise.margin, one.constants.inexactness, one.promise.rho, one.promised)
        groups.append([number(figure) for figure in figures])
    return [*groups, [number(measured.observed)]]


def rounds_table(rounds: Sequence[RoundMeasure], m_max: float, clients: float) -> Table:
    """A row a round: what both forms share, what each form makes of it, and what was observed."""
    heads = [*SHARED, *(f"{name}, {form.name}" for form in FORMS for name in PER_FORM), "observed"]
    groups = [_cells(one, m_max, clients) for one in rounds]
    rows = [[Cell(text.replace("-", "−")) for group in row for text in group] for row in groups]
    return Table([Column(head) for head in heads], rows)


def as_markdown(rounds: Sequence[RoundMeasure], m_max: float, clients: float, setting: str) -> str:
    """A run for a page: the table, and below it what it comes to, with and without the terms of sampling."""
    said, unsampled = verdict(rounds, m_max, clients), _hope(rounds, m_max, math.inf)
    if unsampled not in said:
        said.append(f"without the terms of sampling (S = inf), {unsampled}")
    listed = [f"- {line[0].upper()}{line[1:]}.".replace(" -", " −") for line in said]
    return "\n".join([rounds_table(rounds, m_max, clients).markdown(), f"{setting}:", "", *listed, ""])


def verdict(rounds: Sequence[RoundMeasure], m_max: float, clients: float) -> list[str]:
    """In how many rounds the theorem has anything to say, and whether some M_max could change that."""
    fell = sum(one.observed > 0 for one in rounds)
    lines = [f"observed: the global training loss fell in {fell} of {len(rounds)} rounds"]
    for form in FORMS:
        judged = [judge(one, form, m_max, clients) for one in rounds]
        lines.append(f"as {form.name} (μ = {form.formula}): {counts(judged)}")
    return [*lines, _hope(rounds, m_max, clients)]


def counts(judged: Sequence[Judged]) -> str:
    """In how many rounds each thing that the theorem asks for is there."""
    total = len(judged)
    second = sum(one.promise.margin > 0 for one in judged)
    solved, first = sum(one.assumption for one in judged), sum(one.promise.holds for one in judged)
    return (
        f"μ + L_m > 0 in {second} of {total} rounds, η < 1 in {solved}, ρ > 0 in {first}"
        f"{'' if first else ': the theorem promises no decrease anywhere'}"
    )


def _hope(rounds: Sequence[RoundMeasure], m_max: float, clients: float) -> str:
    """Whether another M_max would do for the clients' models as they are, in the round kindest to the theorem.

    η depends on μ and so on M_max; what is taken here is the least it can be.
    """
    kindest = max(rounds, key=lambda one: slack(_at_best(one, m_max, clients)))
    constants = _at_best(kindest, m_max, clients)
    why = obstacle(constants)
    place = f"in round {kindest.round}, the kindest (B = {number(constants.dissimilarity)})"
    if why is not None:
        return f"no other M_max would help these models: {place}, η is at least {number(constants.inexactness)}; {why}"
    needs = "; ".join(_needs(kindest, constants, form) for form in FORMS)
    return f"another M_max: {place}, at η = {number(constants.inexactness)}, ρ > 0 would take {needs}"


def _needs(measured: RoundMeasure, constants: Constants, form: Form) -> str:
    """The least M_max, and the η that these models have there."""
    above = threshold(constants, form) or 0.0
    eta = measured.inexactness(form.strength(above, constants.logit_lipschitz))
    return f"M_max above {number(above)} as {form.name}, where these models have η = {number(eta)}"


def _at_best(measured: RoundMeasure, m_max: float, clients: float) -> Constants:
    constants = constants_of([measured], FORMS[0], m_max, clients)
    return replace(constants, inexactness=measured.least_inexactness)
