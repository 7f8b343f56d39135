"""How the study says a difference: its interval, its verdict, and the published lead beside it."""

from __future__ import annotations

import pytest

from fedssd.reports.statistics import pair
from studies.paper.report.row_names import plain
from studies.paper.report.wording import (
    NOT_RUN,
    clear_of,
    fedssd_at,
    holds,
    interval,
    leads_on,
    listed,
    published_lead,
    published_leads,
    spread,
    stands_on,
    told_apart,
    verdict,
)
from studies.paper.tests.told import T2

pytestmark = pytest.mark.quick


def rival(*gains: float) -> object:
    return pair("x", dict.fromkeys(range(len(gains)), 60.0), {seed: 60.0 + gain for seed, gain in enumerate(gains)})


def test_a_difference_has_its_interval() -> None:
    half = T2 * 1 / 3**0.5  # gains 1, 2, 3: mean 2, standard deviation 1
    assert interval(rival(1.0, 2.0, 3.0)) == f"+2.00 [{2 - half:+.2f}, {2 + half:+.2f}]"  # type: ignore[arg-type]
    half = T2 * 0.1 / 3**0.5
    assert interval(rival(1.9, 2.0, 2.1)) == f"+2.00 [{2 - half:+.2f}, {2 + half:+.2f}] *"  # type: ignore[arg-type]
    assert interval(rival(0.5)) == "+0.50"  # type: ignore[arg-type]
    assert interval(rival()) == "–"  # type: ignore[arg-type]
    assert interval(rival(1.11, 1.11)) == "+1.11"  # type: ignore[arg-type]
    assert interval(rival(-0.001)) == "+0.00"  # type: ignore[arg-type]
    assert spread([60.0, 62.0]) == "61.00 ± 1.41 (2)"
    assert spread([]) == NOT_RUN
    assert spread([0.0, 20.0, 40.0], 2) == "20 ± 20 (3)"
    assert spread([10.0, 27.0], 2) == "18 ± 12 (2)"  # 17 / √2
    assert spread([0.25, 0.27], 3) == "0.26 ± 0.014 (2)"


def test_a_difference_says_nothing_only_where_all_that_it_may_be_is_small() -> None:
    """Half an interval of three gains that are d apart is 4.303 d / √3 = 2.484 d."""
    said = {
        "raises it": (1.9, 2.0, 2.1),
        "lowers it, by little": (-0.2, -0.21, -0.19),
        "nothing": (-0.1, 0.0, 0.1),  # within a quarter of zero
        "not told apart": (-0.2, 0.1, 0.4),  # a small mean, and from -0.65 to +0.85
        "one seed says nothing": (9.0,),
        "the same on 2 seeds, no interval": (9.0, 9.0),
        NOT_RUN: (),
    }
    for words, gains in said.items():
        assert verdict(rival(*gains), 0.5) == words  # type: ignore[arg-type]


@pytest.mark.parametrize(("inside", "words"), [(False, "outside"), (True, "within")])
def test_a_lead_is_held_against_the_published_one(inside: bool, words: str) -> None:
    """Gains of 1, 2, 3: 2 ± 2.48 holds 2.89 and not 4.5."""
    found = rival(1.0, 2.0, 3.0)
    value = 2.89 if inside else 4.5
    assert holds(found, value) is inside  # type: ignore[arg-type]
    assert published_lead(value, {"a": inside}).endswith(f"{value:+.2f} points, is {words} that interval.")
    assert published_lead(value, {"a": inside, "b": inside}).endswith(f"is {words} all of these intervals.")
    assert published_lead(value, {"a": True, "b": False}).endswith("is within the interval of a alone.")
    said = published_leads({"a": inside, "b": inside})
    assert said == f"For the tuned strength the leads that the paper prints are {words} all of these intervals."


def test_columns_of_one_verdict_stand_together() -> None:
    """Gains of 1, 2, 3 have 2 ± 2.48, and ten times as many with the same steps between them leave out zero."""
    level, ahead, behind = rival(1.0, 2.0, 3.0), rival(11.0, 12.0, 13.0), rival(-11.0, -12.0, -13.0)
    found = {"a": level, "b": ahead, "c": level, "d": behind, "e": rival(1.0)}
    assert leads_on(found) == (  # type: ignore[arg-type]
        "is not told apart from FedAvg on a (+2.00 [-0.48, +4.48]) and c (+2.00 [-0.48, +4.48]); "
        "leads FedAvg on b (+12.00 [+9.52, +14.48]); trails FedAvg on d (-12.00 [-14.48, -9.52]); "
        "was run on one seed, which decides nothing, beside FedAvg on e (+1.00): "
        "in points, with 95 % intervals, over 1 to 3 seeds"
    )
    assert leads_on({"e": rival(1.0)}).endswith("over 1 seed")  # type: ignore[arg-type]
    same = "differs by the same on 2 seeds, which gives no interval, from FedAvg on e"
    assert leads_on({"e": rival(1.0, 1.0)}).startswith(same)  # type: ignore[arg-type]
    assert stands_on({"a": level, "b": ahead, "c": level}) == (  # type: ignore[arg-type]
        "is not told apart from FedAvg on a and c and leads it on b"
    )
    assert stands_on({"a": level, "c": level}, 2) == "is not told apart from FedAvg on any column"  # type: ignore[arg-type]
    assert stands_on({"b": ahead}, 1) == "leads FedAvg on every column"  # type: ignore[arg-type]
    assert stands_on({"b": ahead}, 2) == "leads FedAvg on b"  # type: ignore[arg-type]


def test_who_is_told_apart_stands_together_by_side_and_the_rest_goes_without_saying() -> None:
    level, ahead, behind = rival(1.0, 2.0, 3.0), rival(11.0, 12.0, 13.0), rival(-11.0, -12.0, -13.0)
    found = {"a": {"x": ahead, "y": level, "z": behind, "w": ahead}, "b": {"x": level}}
    assert told_apart(found) == "on a x and w above it and z below it; on b none"  # type: ignore[arg-type]
    every = [one for rivals in found.values() for one in rivals.values()]
    assert clear_of(every) == "3 of 5 intervals leave out zero, where by chance alone 0.25 would"  # type: ignore[arg-type]
    assert clear_of([rival(1.0)]) == ""  # type: ignore[list-item]


def test_fedssd_is_called_by_what_sets_its_options_apart_from_the_paper_s() -> None:
    printed = {"m_max": 0.01, "square": "inside", "floor": 0.1}
    assert fedssd_at(printed, printed) == "FedSSD as printed"
    assert fedssd_at({**printed, "m_max": 1.0}, printed) == "FedSSD at M_max = 1"
    outside = {**printed, "m_max": 0.1, "square": "outside"}
    assert fedssd_at(outside, printed) == "FedSSD at M_max = 0.1 with the weight outside the square"
    assert fedssd_at({**printed, "floor": 0.0}, printed) == "FedSSD with floor = 0.0"
    assert [listed(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("weight_decay=1e-5", "weight_decay=1e-05"),
        ("weight_decay = 0.00001", "weight_decay=1e-05"),
        ("delta=0.50", "δ = 0.5"),
        ("ALPHA = 0.1", "α = 0.1"),
        ("mse.alpha=0.030", "mse.alpha=0.03"),
        ("fedssd.m_max=1", "fedssd.m_max=1.0"),
        ("#k=2", "#K = 2"),
    ],
)
def test_a_name_is_the_same_however_it_is_written(given: str, meant: str) -> None:
    assert plain(given) == plain(meant)


def test_names_of_different_numbers_stay_apart() -> None:
    names = ("table2-classes-2", "table2-classes-5", "fedssd-0.5", "fedssd-0.05", "δ = 0.1", "δ = 10", "δ = 1")
    assert len({plain(name) for name in names}) == len(names)
