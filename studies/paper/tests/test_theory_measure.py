"""The theorem's constants as they are measured, against a toy that has them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from studies.paper.tests.toy import ORIGIN, toy, toy_round
from studies.paper.theory.measure import extreme_eigenvalues, measure_gradients, measure_participant


def test_dissimilarity_on_the_toy() -> None:
    """Gradients at 0: (−3,0,0) and (0,−2,0); their mean (−¾, −1½, 0); B² = (¼·9 + ¾·4)/(9/16 + 9/4) = 28/15."""
    gradient, dissimilarity = measure_gradients([toy(0), toy(1)], ORIGIN)
    assert gradient == pytest.approx(math.sqrt(45 / 16))
    assert dissimilarity**2 == pytest.approx(28 / 15)


def test_constants_of_a_client_on_the_toy() -> None:
    """Client 0 at (½,0,0): gradient (−1½,0,0) after (−3,0,0), logits moved by 1 over ½, so 2 L_f = 4."""
    one = toy_round().participants[0]
    assert (one.before, one.after, one.distance, one.along) == pytest.approx((3, 1.5, 0.5, -0.75))
    assert (one.smoothness, one.curvature, one.logit_lipschitz) == pytest.approx((3, -2, 2))


def test_inexactness_on_the_toy() -> None:
    """‖(−1½ + μ/2, 0, 0)‖ / 3: ½ without a proximal term, 0 at μ = 3, ½ again at μ = 6."""
    one = toy_round().participants[0]
    assert [one.inexactness(mu) for mu in (0, 3, 6)] == pytest.approx([0.5, 0, 0.5], abs=1e-7)
    assert one.least_inexactness == pytest.approx(0, abs=1e-7)


def test_a_round_takes_the_worst_of_its_clients() -> None:
    """Client 1 at (0,0,−1): gradient (0,−2,2) after (0,−2,0); no μ ≥ 0 helps against curvature that pushes away."""
    measured = toy_round()
    assert measured.participants[1].after == pytest.approx(math.sqrt(8))
    assert measured.participants[1].along == pytest.approx(-2)
    assert measured.inexactness(0) == pytest.approx(math.sqrt(2))
    assert measured.least_inexactness == pytest.approx(1)  # μ = 2 leaves (0, −2, 0)
    assert (measured.smoothness, measured.curvature, measured.logit_lipschitz) == pytest.approx((3, -2, 2))


def test_a_client_that_did_not_move_says_nothing_of_its_logits() -> None:
    one = measure_participant(0, toy(0), ORIGIN, ORIGIN)
    assert (one.distance, one.logit_lipschitz, one.inexactness(7.0)) == (0, 0, pytest.approx(1))
    assert one.smoothness == pytest.approx(3)


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12))
def test_lanczos_finds_the_ends_of_a_known_spectrum(values: list[float]) -> None:
    draw = torch.Generator().manual_seed(1)
    turn, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=draw, dtype=torch.float64))
    matrix = turn @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ turn.T
    low, high = extreme_eigenvalues(lambda v: matrix @ v, matrix[0])
    assert (low, high) == pytest.approx((min(values), max(values)), abs=1e-6)


def test_a_few_lanczos_steps_stay_within_the_spectrum() -> None:
    spectrum = torch.linspace(-1, 4, 50, dtype=torch.float64)
    low, high = extreme_eigenvalues(lambda v: spectrum * v, spectrum, steps=8)
    assert -1 <= low < -0.7
    assert 3.7 < high <= 4
