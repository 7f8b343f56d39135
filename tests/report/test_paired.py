"""Paired differences and their intervals, against arithmetic and scipy's t."""

from __future__ import annotations

import csv
import io
import math

import pytest
from scipy import stats

from fedssd.report.paired import Rival, as_content, as_csv, as_latex, as_markdown, as_text, pair
from fedssd.report.student import t_quantile

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10, 29, 100])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_the_quantile_is_student_s(freedom: int, level: float) -> None:
    assert t_quantile(freedom, level) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom), rel=1e-9)


def test_the_interval_of_paired_gains() -> None:
    """Gains 1, 2 and 3: mean 2, standard deviation 1, t of two degrees 4.3027: 2 ± 2.484."""
    rival = Rival("fedavg", (70.0, 60.0, 50.0), (71.0, 62.0, 53.0))
    assert rival.gains == [1.0, 2.0, 3.0]
    assert rival.half_width == pytest.approx(4.302652729911275 / math.sqrt(3))
    assert not rival.clear
    assert Rival("fedavg", (1.0,), (2.0,)).half_width is None
    assert not Rival("fedavg", (1.0,), (2.0,)).clear


@pytest.mark.parametrize("ours", [(9.1 + 1.11, 9.3 + 1.11), (10.21, 10.41), (9.1, 9.3)])
def test_seeds_that_all_gain_the_same_have_no_interval(ours: tuple[float, float]) -> None:
    """Four of 360 test samples on both seeds are 1.11 points and no proof of a lead, whatever rounding leaves of it."""
    rival = Rival("fedavg", (9.1, 9.3), ours)
    assert rival.half_width is None
    assert not rival.clear
    (_, row) = as_content("mine", ours, [rival])["rows"]
    assert row[3:] == ["–", "2"]


def test_two_seeds_whose_gains_differ_have_student_s_interval() -> None:
    """Gains 10 and 12: 11 ± 12.706 · √2 / √2; gains 11 and 11.1: 11.05 ± 12.706 · 0.05."""
    apart, close = Rival("x", (0.0, 0.0), (10.0, 12.0)), Rival("x", (0.0, 0.0), (11.0, 11.1))
    assert (apart.half_width, apart.clear) == (pytest.approx(12.7062, abs=1e-4), False)
    assert (close.half_width, close.clear) == (pytest.approx(0.63531, abs=1e-4), True)


def test_only_seeds_both_have_are_paired() -> None:
    rival = pair("fedavg", {0: 1.0, 2: 3.0, 3: 9.0}, {0: 2.0, 1: 5.0, 2: 3.5})
    assert rival.accuracies == (1.0, 3.0)
    assert rival.ours == (2.0, 3.5)


def test_every_form_shows_the_same_figures() -> None:
    rival = Rival("fedavg", (70.0, 60.0, 50.0), (71.0, 62.0, 53.0))
    ours = [71.0, 62.0, 53.0]
    text, page, table = (form("My_Loss", ours, [rival]) for form in (as_text, as_markdown, as_latex))
    for form in (text, page):
        assert "60.00 ± 10.00" in form
        assert "+2.00" in form
        assert "-0.48 to +4.48" in form
    assert r"FedAvg & $60.00 \pm 10.00$ & $+2.00 \pm 2.48$ \\" in table
    assert r"My\_Loss & $62.00 \pm 9.00$ & \\" in table
    mine, theirs = csv.DictReader(io.StringIO(as_csv("My_Loss", ours, [rival])))
    assert (mine["accuracy"], mine["gain"]) == ("62", "")
    assert float(theirs["low"]) == pytest.approx(2 - 4.302652729911275 / math.sqrt(3))


def test_no_difference_has_no_sign_of_a_loss() -> None:
    rival = pair("fedavg", {0: 50.001, 1: 60.0}, {0: 50.0, 1: 60.0})
    (_, row) = as_content("mine", [50.0, 60.0], [rival])["rows"]
    assert row[2] == "+0.00"
