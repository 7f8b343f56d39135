"""Charts as plain data: means and spreads a reader can redo, what is seen of them, names and colours."""

from __future__ import annotations

import math

import pytest

from fedssd.recipe import Recipe
from fedssd.reports.charts import (
    Line,
    all_values,
    by_method,
    colours,
    curve_of,
    cut_off,
    global_accuracy,
    later_values,
    seed_count,
    totals,
    traffic,
    worth_seeing,
)
from fedssd.reports.figures import FIGURES, last_confusion, learning_curves, measures
from fedssd.simulation.result import Result, Round, Summary

pytestmark = pytest.mark.quick


def run(method: str, seed: int, accuracies: list[float], local: float | None = 0.5) -> Result:
    rounds = tuple(Round(n, 1, 2, accuracy=one, local_accuracy=local) for n, one in enumerate(accuracies, start=1))
    summary = Summary(method, seed, len(rounds), len(rounds), bytes_up=0, bytes_down=0)
    return Result(Recipe(method="fedavg"), rounds, summary)


RESULTS = [
    run("fedavg", 0, [0.50, 0.70]),
    run("fedavg", 1, [0.40, 0.74]),
    run("fedssd", 0, [0.70, 0.80], local=0.6),
    run("fedssd", 1, [0.60, 0.84], local=0.7),
]


def flat(name: str, values: list[float]) -> Line:
    return Line(name, range(1, len(values) + 1), values)


def test_a_curve_is_mean_and_sample_deviation_by_round_in_percent() -> None:
    curve = curve_of(RESULTS[:2], global_accuracy)
    assert curve is not None
    assert curve.rounds == (1, 2)
    assert curve.mean == pytest.approx((45, 72))
    assert curve.spread == pytest.approx((10 / math.sqrt(2), 4 / math.sqrt(2)))
    assert curve_of([run("a", 0, [math.nan])], global_accuracy) is None


def test_learning_curves_have_a_line_a_method_and_a_panel_for_whatever_was_measured() -> None:
    chart = learning_curves(RESULTS, "digits")
    assert [panel.title for panel in chart.panels] == ["Global model", "Clients' own models, mean"]
    assert [[line.name for line in panel.lines] for panel in chart.panels] == 2 * [["FedAvg", "FedSSD"]]
    assert [bool(line.spread) for panel in chart.panels for line in panel.lines] == [True, True, False, True]
    assert [line.bold for line in chart.panels[0].lines] == [False, True]
    assert chart.note == "digits · mean and ±1 standard deviation of 2 seeds"
    alone = learning_curves([run("my_method.py:Loss<1>", 0, [0.5], local=None)])
    assert [[line.name for line in panel.lines] for panel in alone.panels] == [["Loss<1>"]]
    assert learning_curves([run("a", 0, [math.nan], local=None)]).panels == []


def test_what_is_worth_seeing_begins_after_the_first_tenth_and_stays_within_percent() -> None:
    """Of 20 rounds the first two may fall out; 4 % of what is left is room, at least half a point."""
    rise = flat("a", [0.0, 10.0, *[50.0 + n for n in range(18)]])
    assert worth_seeing([rise]) == pytest.approx((50 - 0.04 * 17, 67 + 0.04 * 17))
    assert worth_seeing([flat("a", [99.9, 100.0])]) == pytest.approx((99.4, 100.0))


def test_first_rounds_that_flatten_the_rest_are_cut_off_and_said() -> None:
    """Of 30 rounds the first three may fall out: −10, 8 and 19, and then 18 and 19 by turns."""
    line = flat("a", [-10.0, 8.0, 19.0, *(18.0 + n % 2 for n in range(27))])
    low, high = later_values([line])
    assert (low, high) == pytest.approx((18 - 0.04, 19 + 0.04))
    assert cut_off([line], low, high) == "cut off: rounds 1–2"
    assert cut_off([flat("b", [0.0, 18.5])], low, high) == "cut off: round 1"
    assert cut_off([line], *all_values([line])) == ""


def test_a_rise_that_is_not_flattened_is_drawn_from_its_start() -> None:
    """From 0 to 30 by ones: the last 27 rounds have nine tenths of the height."""
    rise = flat("a", [float(n) for n in range(31)])
    assert later_values([rise]) == all_values([rise])
    alone = flat("a", [5.0])
    assert later_values([alone]) == all_values([alone])


def test_zero_is_the_floor_unless_something_is_below_it() -> None:
    assert all_values([flat("a", [0.0, 50.0])])[0] == 0.0
    assert all_values([flat("a", [-2.0, 48.0])])[0] == pytest.approx(-2 - 0.04 * 50)  # no line on the axis
    assert all_values([flat("a", [40.0, 50.0])])[0] == pytest.approx(40 - 0.04 * 10)


def test_measures_nobody_has_are_left_out() -> None:
    series = by_method([run("fedavg", 0, [0.5, 0.6])])
    (panel,) = measures(series, {"accuracy": global_accuracy, "drift": lambda one: one.drift})
    assert panel.title == "accuracy"


def test_how_many_seeds() -> None:
    assert [seed_count(counts) for counts in ([1], [3, 3], [7, 3, 5])] == ["1 seed", "3 seeds", "3 to 7 seeds"]


def test_traffic_adds_up_over_the_rounds_and_is_a_mean_over_seeds() -> None:
    """Three bytes a round; on the second seed six in the second."""
    more = run("fedavg", 1, [0.1, 0.2])
    dear = Result(more.recipe, (more.rounds[0], Round(2, 2, 4, accuracy=0.2)), more.summary)
    assert totals([run("fedavg", 0, [0.1, 0.2]), dear], traffic) == {1: 3, 2: (6 + 9) / 2}


def test_compositions_keep_their_names_and_files_are_left_out_where_the_class_is_clear() -> None:
    names = ["fedssd+fedprox × fednova", "here/my_method.py:MyLoss", "a.py:Same", "b.py:Same", "fedssd m_max=0.3"]
    shown = [one.name for one in by_method([run(name, 0, [0.5]) for name in names])]
    assert shown == [names[0], "MyLoss", "a.py:Same", "b.py:Same", "FedSSD m_max=0.3"]


def test_no_two_of_the_paper_s_methods_share_a_colour_and_lines_that_do_are_dashed() -> None:
    paper = ["fedavg", "fedprox", "fedcurv", "moon", "fedntd", "fedcad", "fedssd"]
    assert len(set(colours(paper))) == 7
    many = by_method([run(f"m{n}", 0, [0.5]) for n in range(40)])
    assert len({(one.light, one.dash) for one in many}) == 40


def test_the_matrices_are_of_the_last_round_and_of_the_one_before_it() -> None:
    matrix = ((1.0, 0.0), (0.0, 1.0))
    one = run("fedavg", 0, [0.1, 0.2, 0.3])
    assert last_confusion(one) is None
    seen = tuple(Round(n, 0, 0, accuracy=0.1, confusion=matrix if n > 1 else ()) for n in (1, 2, 3))
    assert last_confusion(Result(one.recipe, seen, one.summary)) == (seen[1], seen[2])
    assert last_confusion(Result(one.recipe, seen[:2], one.summary)) == (None, seen[1])


def test_runs_that_recorded_little_have_no_charts_of_the_rest() -> None:
    series = by_method([run("fedavg", 0, [0.5, 0.6], local=None)])
    assert {name for name, describe in FIGURES.items() if describe(series)} == {
        "curves-global",
        "cost-bytes",
        "cost-seconds",
    }
