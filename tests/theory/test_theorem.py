"""Theorem 1: ρ against arithmetic on paper, FedProx's proof and its laws."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from known_constants import BY_HAND, EXAMPLE

from fedssd.errors import UserError
from fedssd.theory import FORMS, PRINTED, Constants, Form, checked, form_facts, obstacle, promise, slack, threshold

PAGE = Path(__file__).resolve().parents[2] / "docs" / "theory.md"

unhurried = settings(deadline=None)  # a busy machine is no failure
lengths = st.floats(0.01, 100)
constants = st.builds(
    Constants,
    m_max=lengths,
    logit_lipschitz=lengths,
    smoothness=lengths,
    curvature=st.floats(-50, 0.01),  # L_F is at least 0.01
    dissimilarity=st.floats(1, 10),
    inexactness=st.floats(0, 0.99),
    clients=st.integers(1, 10_000).map(float) | st.just(math.inf),
)
forms = st.sampled_from(FORMS)


def rho_of(constants: Constants, form: Form) -> float:
    """ρ, where condition 2 holds."""
    found = promise(constants, form).rho
    assume(found is not None)
    assert found is not None
    return found


def from_the_proof(mu: float, L: float, L_m: float, B: float, gamma: float, K: float) -> float:
    """FedProx's Theorem 4 put together from the bounds of its proof, in multiples of ‖∇f(w)‖ and ‖∇f(w)‖².

    The clients' solutions are ``drift`` away in the mean, and E[w_k] makes a step −∇f/μ with two errors: the
    γ-inexact solutions, and gradients taken at w_k in place of w. Then smoothness along the step to E[w_k]. The mean
    of K sampled clients is ``scatter`` away from E[w_k], and f has slope at most 1 + L(both distances) in between.
    """
    drift = B * (1 + gamma) / (mu + L_m)
    error = (gamma * B + L * drift) / mu
    to_the_mean = 1 / mu - error - L / 2 * drift**2
    scatter = math.sqrt(2 / K) * drift
    return to_the_mean - (scatter + 2 * L * drift * scatter + L * scatter**2)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_rho_is_the_evaluation_by_hand(form: Form) -> None:
    found = promise(EXAMPLE, form)
    assert list(found.terms.values()) == pytest.approx(BY_HAND[form], rel=1e-12)
    assert found.rho == pytest.approx(sum(BY_HAND[form]), rel=1e-12)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_page_shows_the_same_evaluation(form: Form) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for value in [*BY_HAND[form], sum(BY_HAND[form])]:
        assert f"{value:.6f}".replace("-", "−") in page


@unhurried
@given(constants, forms)
def test_rho_is_what_fedprox_s_proof_adds_up_to(c: Constants, form: Form) -> None:
    mu = form.strength(c.m_max, c.logit_lipschitz)
    rho = rho_of(c, form)
    witness = from_the_proof(mu, c.smoothness, c.curvature, c.dissimilarity, c.inexactness, c.clients)
    scale = sum(abs(term) for term in promise(c, form).terms.values())
    assert rho == pytest.approx(witness, abs=1e-12 * scale)


@unhurried
@given(constants, forms, st.floats(1.01, 3))
def test_rho_falls_as_the_clients_differ_solve_worse_or_bend_more(c: Constants, form: Form, factor: float) -> None:
    rho = rho_of(c, form)
    assert rho_of(replace(c, dissimilarity=c.dissimilarity * factor), form) < rho
    assert rho_of(replace(c, inexactness=c.inexactness * factor + 0.01), form) < rho
    assert rho_of(replace(c, smoothness=c.smoothness * factor), form) < rho


@unhurried
@given(constants, forms, st.floats(1.01, 3))
def test_rho_grows_with_more_clients_and_with_less_negative_curvature(c: Constants, form: Form, factor: float) -> None:
    rho = rho_of(c, form)
    if math.isfinite(c.clients):
        assert rho_of(replace(c, clients=c.clients * factor), form) > rho
    more = promise(replace(c, curvature=c.curvature + 0.01 * factor * promise(c, form).margin), form).rho
    assert more is not None
    assert more > rho


@unhurried
@given(constants, forms)
def test_the_range_of_m_max_ends_where_rho_changes_sign(c: Constants, form: Form) -> None:
    above = threshold(c, form)
    assert (above is None) == (obstacle(c) is not None)
    if above is None:
        probes = [10.0**power for power in range(-6, 7)]
        assert not any(promise(replace(c, m_max=m_max), form).holds for m_max in probes)
        return
    assume(above > 0 and slack(c) > 1e-6)  # beyond, rounding decides
    strength = form.strength(above, c.logit_lipschitz)
    assume(strength > 1e-6 * abs(c.curvature))  # or μ + L_m does not see a millionth of μ
    for factor in (1 + 1e-6, 1.5, 10.0, 1e4):
        assert promise(replace(c, m_max=above * factor), form).holds
    for factor in (1 - 1e-6, 0.5, 0.1, 1e-4):
        assert not promise(replace(c, m_max=above * factor), form).holds


@unhurried
@given(constants, st.floats(0, 0.09), st.integers(1, 20))
def test_what_the_obstacle_asks_for_would_take_it_away(any_: Constants, eta: float, clients: int) -> None:
    """On the good side of every bound it names there is none; on the other side there is."""
    c = replace(any_, inexactness=eta, clients=float(clients))
    assume(slack(c) < -1e-3)
    why = str(obstacle(c))
    needed = float(re.findall(r"² = ([\d.e+]+)", why)[0])
    assert obstacle(replace(c, clients=needed * 1.01)) is None
    assert obstacle(replace(c, clients=needed * 0.99)) is not None
    for letter, text in re.findall(r"([Bη]) below ([\d.e-]+)", why):
        field = {"B": "dissimilarity", "η": "inexactness"}[letter]
        assert obstacle(replace(c, **{field: float(text) * 0.999})) is None
        assert obstacle(replace(c, **{field: float(text) * 1.001})) is not None


@unhurried
@given(
    st.tuples(*[st.floats(-30, 30)] * 4), st.floats(0, 30), st.floats(0, 0.999), st.sampled_from([1.0, 1e30, math.inf])
)
def test_whatever_is_accepted_can_be_reckoned_with(
    powers: tuple[float, ...], spread: float, eta: float, clients: float
) -> None:
    """Constants over sixty powers of ten: every figure of the answer is a finite number."""
    m_max, l_f, l_big, l_m = (min(max(10.0**power, 1e-30), 1e30) for power in powers)
    for curvature in (-l_m, min(l_m, l_big)):
        c = checked(Constants(m_max, l_f, l_big, curvature, min(10.0**spread, 1e30), eta, clients))
        for form in form_facts(c, FORMS[0]), form_facts(c, FORMS[1]):
            figures = [*form["terms"].values(), form["mu"], form["mu_plus_L_m"], form["rho"], form["m_max_above"]]
            assert all(math.isfinite(figure) for figure in figures if figure is not None)


def test_an_inexactness_that_outweighs_everything_is_named() -> None:
    why = obstacle(replace(EXAMPLE, inexactness=0.7))  # ηB = 1.12
    assert why is not None
    assert "ηB = 1.12" in why
    assert "1/B = 0.625" in why


def test_a_convex_identical_world_promises_for_every_m_max() -> None:
    """B = 1, η = 0, all clients, L_m = L_F: the quadratic is μ² + μ/2 · L_F, above 0 from 0 on."""
    assert threshold(Constants(1, 1, 2, 2, 1, 0, math.inf), PRINTED) == 0


def test_without_condition_2_there_is_no_rho() -> None:
    found = promise(replace(EXAMPLE, curvature=-10.0), PRINTED)  # μ + L_m = 0
    assert (found.margin, found.rho, found.terms, found.holds) == (0, None, {}, False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"m_max": 0.0}, "M_max expects a number above 0"),
        ({"logit_lipschitz": -1.0}, "L_f expects a number above 0"),
        ({"smoothness": math.inf}, "L_F expects a finite number"),
        ({"smoothness": 1e31}, "L_F expects a number of at most 1e\\+30 in size"),
        ({"curvature": -1e31}, "L_m expects a number of at most 1e\\+30 in size"),
        ({"m_max": 1e-31}, "M_max expects a number above 0, from 1e-30"),
        ({"curvature": 5.0}, "L_m expects a number of at most L_F = 4"),
        ({"dissimilarity": 0.9}, "B expects a number of at least 1"),
        ({"inexactness": 1.0}, "η expects"),
        ({"inexactness": -0.1}, "η expects"),
        ({"clients": 0.0}, "S expects a whole number of at least 1"),
        ({"clients": 2.5}, "S expects a whole number of at least 1"),
        ({"clients": math.nan}, "S expects a finite number"),
    ],
)
def test_impossible_constants_are_refused_in_one_line(change: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        checked(replace(EXAMPLE, **change))
    assert "\n" not in str(caught.value)
