"""What is said of the rounds that were measured."""

from __future__ import annotations

import math

import pytest

from studies.paper.tests.toy import toy_round
from studies.paper.theory.measure import Participant, RoundMeasure
from studies.paper.theory.report import as_markdown, run_facts, run_lines


def test_a_round_s_facts_and_lines() -> None:
    """M_max = 2, L_f = 2: μ = 4 as printed and 16 as derived, L_m = −2."""
    rounds = [toy_round()]
    content = run_facts(rounds, 2.0, 10.0)
    forms = content["rounds"][0]["forms"]
    assert (forms["printed"]["mu_plus_L_m"], forms["derived"]["mu_plus_L_m"]) == pytest.approx((2, 14))
    assert forms["printed"]["promised"] == pytest.approx(forms["printed"]["rho"] * 45 / 16)
    lines = "\n".join(run_lines(rounds, 2.0, 10.0))
    assert "fell in 1 of 1 rounds" in lines
    assert "no other M_max would help these models: in round 1" in lines  # η ≥ 1 and B > 1


def test_a_kind_round_names_the_m_max_it_would_take() -> None:
    """At η = 0.1 and B = 1 with all clients: 0.9 μ̄² − 3·1.1 μ̄ − 1.815 μ = 0, μ̄ = μ − 1, has its root at 7.018."""
    one = Participant(0, 1.0, 0.1, 0.0, 1.0, 3.0, -1.0, 2.0)
    lines = "\n".join(run_lines([RoundMeasure(1, 1.0, 1.0, (one,), 1.0, 0.1)], 0.01, math.inf))
    assert "M_max above 3.509 as printed, where these models have η = 7.019" in lines


def test_a_run_for_a_page() -> None:
    """Fifteen columns, as M_max = 2 has μ + L_m = 2 as printed; what is the same without sampling is said once."""
    page = as_markdown([toy_round()] * 2, 2.0, 10.0, "a toy")
    head, rule, *rest = page.splitlines()
    assert head.count("|") == rule.count("|") == rest[0].count("|") == 16
    assert rest[0].startswith("| 1 | 1.677 | 1.366 | 3 | −2 | 2 | 2 |")  # ‖∇L‖ = √(45/16), B = √(28/15)
    assert "- Observed: the global training loss fell in 2 of 2 rounds." in rest
    assert "without the terms of sampling" not in page.lower()
    one = Participant(0, 1.0, 0.1, 0.0, 1.0, 3.0, -1.0, 2.0)
    kind = as_markdown([RoundMeasure(1, 1.0, 1.0, (one,), 1.0, 0.1)], 0.01, 2.0, "kind")
    assert "Without the terms of sampling (S = inf), another M_max: in round 1" in kind  # S = 2 forbids it
