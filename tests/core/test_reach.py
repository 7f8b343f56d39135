"""How far one client may move, against hand-made arithmetic: who is refused, and what is remembered."""

from __future__ import annotations

import math
from statistics import median

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedssd.core.contract import Work
from fedssd.core.guard import Limits, Seen, judge, medians_of_others, reaches, remembered
from fedssd.core.tree import Tree

REACH = Limits(reach=5.0)
NUMBERS = st.lists(st.floats(0, 1e300), max_size=9)


def cohort(norms: list[float], lengths: list[float] | None = None) -> tuple[dict[str, Tree], Work, dict[str, Tree]]:
    """Clients that moved by so much in one direction, from weights that are not zero."""
    sent = {"w": torch.tensor([3.0, -2.0])}
    moved = torch.tensor(norms, dtype=torch.float64)[:, None] * torch.tensor([0.6, 0.8], dtype=torch.float64)
    ones = torch.ones(len(norms))
    work = Work(8 * ones, ones, torch.tensor(lengths or [1.0] * len(norms)))
    return {"update": {"w": (sent["w"].double() + moved).float()}}, work, {"update": sent}


def refused(norms: list[float], lengths: list[float] | None = None, seen: Seen = Seen()) -> list[int]:  # noqa: B008
    parts, work, expected = cohort(norms, lengths)
    return list(judge(parts, work, expected, REACH, seen).refused)


@given(NUMBERS)
def test_the_median_of_the_others_is_the_one_of_the_list_without_it(values: list[float]) -> None:
    without = [values[:place] + values[place + 1 :] for place in range(len(values))]
    assert medians_of_others(values) == [median(others) if others else 0.0 for others in without]


@pytest.mark.quick
def test_five_times_what_the_others_moved() -> None:
    """The others' median is 1 for whoever moved most, so 5 is within reach and a little more is not."""
    assert refused([1, 1, 1, 1, 4.99]) == []
    assert refused([1, 1, 1, 1, 5.01]) == [4]
    assert refused([1, 1, 1, 50, 60]) == [3, 4]
    assert refused([1, 2, 100, 100, 100]) == []  # a majority is the measure


@pytest.mark.quick
def test_cohorts_below_five_reach_twice_as_far() -> None:
    assert refused([1, 1, 1, 9.99]) == []
    assert refused([1, 1, 1, 10.01]) == [3]
    assert refused([1, 11]) == [1]  # of two, each is measured by the other
    assert refused([7]) == []  # and one alone by nothing, at first


@pytest.mark.quick
def test_an_earlier_round_is_a_measure_too() -> None:
    late = Seen(norm=2.0)
    assert refused([0.1] * 5 + [9.9], seen=late) == []  # 99 times the others, who hardly move any more
    assert refused([0.1] * 5 + [10.1], seen=late) == [5]
    assert refused([21], seen=late) == [0]
    assert refused([4] * 5 + [19], seen=late) == []  # the larger of the two counts


@pytest.mark.quick
def test_who_walked_further_may_come_further_by_the_root() -> None:
    assert refused([1, 1, 1, 1, 14.9], [1, 1, 1, 1, 9]) == []
    assert refused([1, 1, 1, 1, 15.1], [1, 1, 1, 1, 9]) == [4]
    assert refused([1, 1, 1, 1, 5.1], [1, 1, 1, 1, 0.01]) == [4]  # and no less far for less work
    assert refused([1, 1, 1, 1, 51], [1, 1, 1, 1, 1e12]) == [4]  # a claim of work is worth ten times at most


@pytest.mark.quick
@pytest.mark.parametrize("size", [1e15, 1e20, 3e38])
def test_squares_that_single_precision_cannot_hold(size: float) -> None:
    parts, work, expected = cohort([1, 1, 1, 1, 1])
    parts["update"]["w"][2] = torch.tensor([size, -size])
    assert list(judge(parts, work, expected, REACH).refused) == [2]


@pytest.mark.quick
def test_a_difference_that_overflows_is_refused_without_anything_to_compare_with() -> None:
    sent = {"w": torch.tensor([-3e38])}
    parts: dict[str, Tree] = {"update": {"w": torch.tensor([[3e38]])}}
    one = Work(*torch.ones(3, 1))
    assert judge(parts, one, {"update": sent}, REACH).refused == {0: "its update has norm inf, beyond its reach of inf"}
    assert judge(parts, one, {"update": sent}).refused == {}  # reach = 0: finite is all that is asked


@given(st.lists(st.floats(0.5, 1.0), min_size=2, max_size=12), st.data())
def test_a_minority_of_liars_is_refused_and_nobody_else(honest: list[float], data: st.DataObject) -> None:
    """Beyond twice the reach of a small cohort, and fewer than half: each honest client is within the honest range."""
    lies = data.draw(st.lists(st.floats(11.0, 1e30), max_size=len(honest) - 1))
    moved = data.draw(st.permutations([*honest, *lies]))
    limits = reaches(moved, [1.0] * len(moved), most=0.0, times=5.0)
    assert {norm for norm, reach in zip(moved, limits, strict=True) if norm > reach} == set(lies)


@pytest.mark.quick
def test_what_is_remembered_is_the_largest_median_of_those_taken() -> None:
    parts, work, expected = cohort([1, 2, 3, 4, 1000])
    verdict = judge(parts, work, expected, REACH)
    assert verdict.seen.norm == pytest.approx(2.5)
    assert judge(*cohort([1, 1, 1]), REACH, verdict.seen).seen.norm == pytest.approx(2.5)
    assert judge(*cohort([6, 7, 8]), REACH, verdict.seen).seen.norm == pytest.approx(7)
    assert judge(*cohort([]), REACH, verdict.seen).seen == verdict.seen
    assert judge(*cohort([9, 9, 9])).seen == Seen()  # nothing is measured, so nothing is learnt


@pytest.mark.quick
def test_two_clients_cannot_lift_their_own_measure_by_more_than_twice() -> None:
    assert remembered([9.0, 9.0], most=1.0) == 2.0
    assert remembered([9.0, 9.0, 9.0], most=1.0) == 9.0
    assert remembered([1.5], most=1.0) == 1.5
    assert remembered([9.0], most=0.0) == 9.0


@pytest.mark.quick
def test_reports_have_four_times_the_reach_where_no_weights_travel() -> None:
    work = Work(*torch.ones(3, 5))
    said = torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 19.9]])
    parts: dict[str, Tree] = {"update": {}, "report": {"said": said}}
    assert judge(parts, work, {}, REACH).refused == {}
    said[4, 1] = 20.1
    assert judge(parts, work, {}, REACH).refused == {4: "its report has norm 20.1, beyond its reach of 20"}


@pytest.mark.quick
def test_a_report_beside_weights_is_held_to_a_million_times_the_others() -> None:
    parts, work, expected = cohort([1] * 5)
    fisher = torch.full((5, 3), 0.01)
    fisher[1, 2] = -0.9e6  # of numbers below 1
    parts["report"] = {"fisher": fisher, "seen": torch.ones(5, 1, dtype=torch.int64)}
    assert judge(parts, work, expected, REACH).refused == {}
    fisher[1, 2] = -1.1e6
    verdict = judge(parts, work, expected, REACH)
    assert verdict.refused == {1: "its report holds 1.1e+06, far beyond the others'"}
    assert verdict.seen.report == pytest.approx(0.01)
    assert judge(parts, work, expected, REACH, Seen(report=2.0)).refused == {}  # an earlier cohort had larger ones


@pytest.mark.quick
def test_claims_of_samples_end_at_a_billion() -> None:
    parts, _, expected = cohort([1, 1, 1])
    work = Work(torch.tensor([8.0, 1e15, 1e9]), torch.ones(3), torch.ones(3))
    assert judge(parts, work, expected).refused == {1: "it claims 1e+15 samples, expected above 0 and at most 1e+09"}


@pytest.mark.quick
@pytest.mark.parametrize("update", [{}, {"order": torch.arange(3).expand(2, 3)}, {"none": torch.ones(2, 0)}])
def test_a_cohort_without_a_number_to_measure_passes(update: Tree) -> None:
    verdict = judge({"update": update, "report": {}}, Work(*torch.ones(3, 2)), {}, REACH)
    assert verdict == ({}, Seen())
    assert math.isfinite(verdict.seen.norm)
