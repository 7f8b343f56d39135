"""Paired differences and their intervals, against arithmetic and a printed table of Student's t."""

from __future__ import annotations

import csv
import io
import math

import pytest

from fedssd.reports.paired_table import paired_table, table_for_a_paper
from fedssd.reports.statistics import Difference, adjusted_by_holm, pair, student_t

pytestmark = pytest.mark.quick


# The column of two-sided 95 % in the table at the end of every textbook, such as Fisher and Yates, table III.
PRINTED = {1: "12.706", 2: "4.303", 3: "3.182", 4: "2.776", 5: "2.571", 6: "2.447", 7: "2.365", 8: "2.306"}
PRINTED |= {9: "2.262", 10: "2.228", 12: "2.179", 15: "2.131", 20: "2.086", 25: "2.060", 29: "2.045", 30: "2.042"}


@pytest.mark.parametrize(("freedom", "printed"), PRINTED.items())
def test_the_quantile_is_that_of_the_printed_tables(freedom: int, printed: str) -> None:
    assert f"{student_t(freedom):.3f}" == printed


def test_p_values_are_those_of_the_closed_forms() -> None:
    """P(|T| > t) is 1 − 2/π · atan t with one degree of freedom and 1 − t / √(2 + t²) with two."""
    two, three = Difference((0, 1), (10.0, 12.0)), Difference((0, 1, 2), (-1.0, -2.0, -3.0))
    assert two.p == pytest.approx(1 - 2 / math.pi * math.atan(11))  # 11 over a standard error of 1
    assert three.p == pytest.approx(1 - math.sqrt(12 / 14))  # t² = (2 / (1/√3))² = 12
    assert Difference((0,), (1.0,)).p == 1.0


def test_holm_multiplies_the_smallest_by_all_the_next_by_one_fewer() -> None:
    """0.005 · 4, 0.01 · 3, 0.03 · 2, and 0.04 · 1, which is raised to what came before it."""
    adjusted = adjusted_by_holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert list(adjusted) == ["a", "b", "c", "d"]
    assert adjusted == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert adjusted_by_holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert adjusted_by_holm({"alone": 0.04}) == {"alone": 0.04}
    assert adjusted_by_holm({}) == {}


def test_the_interval_of_paired_gains() -> None:
    """Gains 1, 2 and 3: mean 2, standard deviation 1, t of two degrees 4.3027: 2 ± 2.484."""
    less = pair(dict(enumerate((71.0, 62.0, 53.0))), dict(enumerate((70.0, 60.0, 50.0))))
    assert less.values == (1.0, 2.0, 3.0)
    assert less.half_width == pytest.approx(4.302652729911275 / math.sqrt(3))
    assert (less.low, less.high) == pytest.approx((2 - 2.484, 2 + 2.484), abs=1e-3)
    assert not less.clear
    assert Difference((0,), (1.0,)).half_width is None
    assert not Difference((0,), (1.0,)).clear


@pytest.mark.parametrize("ours", [(9.1 + 1.11, 9.3 + 1.11), (10.21, 10.41), (9.1, 9.3)])
def test_seeds_that_all_gain_the_same_have_no_interval(ours: tuple[float, float]) -> None:
    """Four of 360 test samples on both seeds are 1.11 points and no proof of a lead, whatever rounding leaves of it."""
    mine, theirs = dict(enumerate(ours)), {0: 9.1, 1: 9.3}
    less = pair(mine, theirs)
    assert less.half_width is None
    assert not less.clear
    (_, row) = paired_table("mine", mine, {"fedavg": theirs}).written(lambda cell: cell.text)
    assert row[3:] == ["–", "2"]


def test_two_seeds_whose_gains_differ_have_student_s_interval() -> None:
    """Gains 10 and 12: 11 ± 12.706 · √2 / √2; gains 11 and 11.1: 11.05 ± 12.706 · 0.05."""
    apart, close = Difference((0, 1), (10.0, 12.0)), Difference((0, 1), (11.0, 11.1))
    assert (apart.half_width, apart.clear) == (pytest.approx(12.7062, abs=1e-4), False)
    assert (close.half_width, close.clear) == (pytest.approx(0.63531, abs=1e-4), True)


def test_only_seeds_both_have_are_paired() -> None:
    mine, theirs = {0: 2.0, 1: 5.0, 2: 3.5}, {0: 1.0, 2: 3.0, 3: 9.0}
    less = pair(mine, theirs)
    assert (less.seeds, less.values) == ((0, 2), (1.0, 0.5))
    (_, row) = paired_table("mine", mine, {"fedavg": theirs}).written(lambda cell: cell.text)
    assert (row[1], row[4]) == ("2.00 ± 1.41", "2")  # theirs on those seeds: 1 and 3


def test_every_form_shows_the_same_figures() -> None:
    ours, theirs = {0: 71.0, 1: 62.0, 2: 53.0}, {"fedavg": {0: 70.0, 1: 60.0, 2: 50.0}}
    table, for_a_paper = (build("My_Loss", ours, theirs) for build in (paired_table, table_for_a_paper))
    for form in (table.text(), table.markdown()):
        assert "60.00 ± 10.00" in form
        assert "+2.00" in form
        assert "-0.48 to +4.48" in form
    assert r"FedAvg & $60.00 \pm 10.00$ & $+2.00 \pm 2.48$ \\" in for_a_paper.latex()
    assert r"My\_Loss & $62.00 \pm 9.00$ & \\" in for_a_paper.latex()
    mine, other = csv.DictReader(io.StringIO(table.csv()))
    assert (mine["accuracy"], mine["gain"]) == ("62", "")
    assert float(other["low"]) == pytest.approx(2 - 4.302652729911275 / math.sqrt(3))


def test_no_difference_has_no_sign_of_a_loss() -> None:
    (_, row) = paired_table("mine", {0: 50.0, 1: 60.0}, {"fedavg": {0: 50.001, 1: 60.0}}).written(
        lambda cell: cell.text
    )
    assert row[2] == "+0.00"
