"""Plots over the rounds: two in a row, names clear of their numbers, what is cut off is said."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from fedssd.reports.charts import HEIGHT, LETTER, Curve, cut_off, later_scale, value_scale
from fedssd.reports.drawings import Page, Plot, drawn, seeds

pytestmark = pytest.mark.quick


def flat(name: str, values: list[float]) -> Curve:
    return Curve(name, tuple(range(1, len(values) + 1)), tuple(values), (0.0,) * len(values))


def test_first_rounds_that_flatten_the_rest_are_cut_off_and_said() -> None:
    """Of 30 rounds the first three may fall out: −10, 8 and 19, and then 18 and 19 by turns."""
    line = flat("a", [-10.0, 8.0, 19.0, *(18.0 + n % 2 for n in range(27))])
    y = later_scale([line])
    room = 0.04 * 1
    assert (y.low, y.high) == pytest.approx((18 - room, 19 + room))
    assert cut_off([line], y) == "cut off: rounds 1–2"
    assert cut_off([flat("b", [0.0, 18.5])], y) == "cut off: round 1"
    assert cut_off([line], value_scale([line])) == ""


def test_a_rise_that_is_not_flattened_is_drawn_from_its_start() -> None:
    """From 0 to 30 by ones: the last 27 rounds have nine tenths of the height."""
    rise = flat("a", [float(n) for n in range(31)])
    assert later_scale([rise]) == value_scale([rise])
    alone = flat("a", [5.0])
    assert later_scale([alone]) == value_scale([alone])


def test_zero_is_the_floor_unless_something_is_below_it() -> None:
    assert value_scale([flat("a", [0.0, 50.0])]).low == 0.0
    assert value_scale([flat("a", [-2.0, 48.0])]).low == pytest.approx(-2 - 0.04 * 50)  # no line on the axis
    assert value_scale([flat("a", [40.0, 50.0])]).low == pytest.approx(40 - 0.04 * 10)


def test_plots_stand_two_in_a_row_and_a_long_name_is_clear_of_its_number() -> None:
    names = ["fedavg", "a-name-of-24-letters-long"]
    lines = [flat(name, [1.0, 2.0 + place]) for place, name in enumerate(names)]
    plots = [Plot(f"plot {n}", lines, value_scale(lines), f"note {n}") for n in range(3)]
    root = ElementTree.fromstring(drawn(Page("t", "h", "n", names), plots))
    assert float(root.get("height", "")) < 2 * HEIGHT  # two rows
    texts = {(one.text, one.get("class")): float(one.get("x", "")) for one in root.iter() if one.tag.endswith("text")}
    assert texts["plot 0", "panel"] == texts["plot 2", "panel"] < texts["plot 1", "panel"]
    assert ("note 2", "tick end") in texts
    assert ("fedavg", "name") in texts  # as it is called, not FedAvg
    name = next(one for one in root.iter() if one.text == names[1])
    value = next(one for one in root.iter() if one.text == "3.0")
    room = float(value.get("x", "")) - 4 * LETTER - float(name.get("x", ""))  # which ends where its x is
    assert room >= 7 * len(names[1])  # letters of 13 pixels are seven wide


def test_how_many_seeds() -> None:
    assert [seeds(counts) for counts in ([1], [3, 3], [7, 3, 5])] == ["1 seed", "3 seeds", "3 to 7 seeds"]
