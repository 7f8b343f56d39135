"""The study's tables by their names, each a function of its evidence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from studies.paper import by_round, departures, reported, strengths
from studies.paper.evidence import Evidence

TABLES: dict[str, Callable[[Evidence], str]] = {
    "appearance": reported.appearance,
    "lead": departures.lead,
    "by-round": by_round.by_round,
    "digits": by_round.by_round_on_digits,
    "choices": departures.choices,
    "choices-in-short": departures.choices_in_short,
    "digits-choices": departures.digits_choices,
    "last-or-best": departures.last_or_best,
    "profile": strengths.profile,
    "tuning": strengths.tuning,
    "columns": partial(strengths.columns, part="columns"),
    "digits-columns": partial(strengths.columns, part="digits-columns"),
    "report": reported.report,
    "report-beside": reported.report_beside,
    "compositions": reported.compositions,
    "mechanism": by_round.mechanism,
    "mechanism-by-column": by_round.mechanism_by_column,
    "leaderboard": reported.leaderboard,
    "state": reported.state,
}
