"""ε against Google's accountant, against the definition by numerical integration, and against laws."""

from __future__ import annotations

import doctest
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from fedssd.privacy import accounting
from fedssd.privacy.accounting import gaussian_delta, gaussian_epsilon, noise_for, sampled_epsilon

pytestmark = pytest.mark.quick
REFERENCE = json.loads(Path(__file__).with_name("reference_epsilons.json").read_text(encoding="utf-8"))
DELTA = 1e-5


def test_the_reference_is_twenty_values_of_the_version_named() -> None:
    assert REFERENCE["dp-accounting"] == "0.6.0"
    assert len(REFERENCE["values"]) == 20


@pytest.mark.parametrize(
    "case", REFERENCE["values"], ids=lambda case: f"{case['steps']}-{case['rate']}-{case['noise']}"
)
def test_google_s_accountant_says_the_same(case: dict[str, float]) -> None:
    """Rounds of everybody: its privacy loss distributions, which are exact but for 1e-8. Samples: its Rényi bound."""
    steps, rate, noise, delta = (case[name] for name in ("steps", "rate", "noise", "delta"))
    if rate == 1:
        found, theirs = gaussian_epsilon(math.sqrt(steps) / noise, delta), case["pld"]
    else:
        found, theirs = sampled_epsilon(int(steps), rate, noise, delta), case["rdp"]
    assert found == pytest.approx(theirs, rel=2e-3)
    assert found >= case["pld"] - 1e-6


@pytest.mark.parametrize("mu", [0.05, 0.5, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 10.0])
def test_delta_is_what_the_definition_gives(mu: float, epsilon: float) -> None:
    """δ = ∫ max(0, p − e^ε q) for p = N(μ, 1) and q = N(0, 1)."""
    edge = epsilon / mu + mu / 2  # from where p is the larger

    def excess(x: float) -> float:
        return math.exp(-((x - mu) ** 2) / 2) * -math.expm1(epsilon - mu * x + mu * mu / 2) / math.sqrt(2 * math.pi)

    whole, _ = quad(excess, edge, max(edge, mu) + 12, epsabs=1e-14, limit=200)
    assert gaussian_delta(epsilon, mu) == pytest.approx(whole, rel=1e-6, abs=1e-13)


@given(st.floats(1e-3, 300), st.floats(1e-12, 0.4))
def test_epsilon_is_the_least_that_keeps_delta(mu: float, delta: float) -> None:
    found = gaussian_epsilon(mu, delta)
    assert gaussian_delta(found, mu) <= delta
    if found > 1e-6:
        assert gaussian_delta(found * (1 - 1e-6), mu) > delta


@given(st.floats(0.01, 50), st.integers(1, 1000))
def test_noise_for_an_epsilon_gives_that_epsilon_and_a_little_less_noise_does_not(epsilon: float, rounds: int) -> None:
    noise = noise_for(epsilon, DELTA, math.sqrt(rounds))
    assert gaussian_epsilon(math.sqrt(rounds) / noise, DELTA) <= epsilon * (1 + 1e-9)
    assert gaussian_epsilon(math.sqrt(rounds) / (0.999 * noise), DELTA) > epsilon


def test_extremes_are_numbers() -> None:
    assert gaussian_epsilon(0.0, DELTA) == 0.0
    assert gaussian_epsilon(1e-9, DELTA) == 0.0
    assert gaussian_epsilon(1e4, DELTA) == pytest.approx(1e8 / 2 + 1e4 * 4.2649, rel=1e-3)  # μ²/2 + μ Φ⁻¹(1 − δ)
    assert gaussian_epsilon(20.0, 1e-300) > gaussian_epsilon(20.0, 1e-12)


def test_taking_part_by_chance_costs_less_and_never_nothing() -> None:
    every = sampled_epsilon(100, 1.0, 2.0, DELTA)
    assert every == pytest.approx(gaussian_epsilon(10 / 2.0, DELTA), rel=0.12)
    assert 0 < sampled_epsilon(100, 0.01, 2.0, DELTA) < sampled_epsilon(100, 0.1, 2.0, DELTA) < every


def test_the_examples_are_right() -> None:
    assert doctest.testmod(accounting) == (0, 4)
