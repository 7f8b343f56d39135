"""The table's arithmetic against numbers a reader can redo."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import pytest

from fedssd.recipe import Recipe
from fedssd.reports.comparison import (
    MEASURES,
    Comparison,
    Row,
    by_method,
    outstanding,
    reached,
    tabulate,
)
from fedssd.reports.table import Table
from fedssd.simulation.result import Result, Round, Summary

pytestmark = pytest.mark.quick


def run(method: str, seed: int, accuracies: list[float], local: float | None = 0.5, megabytes: float = 2) -> Result:
    rounds = tuple(
        Round(number, 0, 0, accuracy=accuracy, local_accuracy=local)
        for number, accuracy in enumerate(accuracies, start=1)
    )
    summary = Summary(
        method=method,
        seed=seed,
        rounds=len(rounds),
        of_rounds=len(rounds),
        bytes_up=int(megabytes * 1e6),
        bytes_down=int(2 * megabytes * 1e6),
        accuracy=accuracies[-1],
        local_accuracy=local,
        forgetting=None if local is None else accuracies[-1] - local,
        best_accuracy=max(accuracies),
    )
    return Result(Recipe(method="fedavg"), rounds, summary)


RESULTS = [
    run("fedavg", 0, [0.50, 0.72, 0.70]),  # its own final 0.70 is first reached in round 2
    run("fedavg", 1, [0.40, 0.60, 0.74]),  # … in round 3
    run("fedssd", 0, [0.70, 0.78, 0.80], local=0.6),  # reaches 0.70 in round 1
    run("fedssd", 1, [0.60, 0.76, 0.84], local=0.7),  # reaches 0.74 in round 2
    run("moon", 0, [0.50, 0.71, 0.69], megabytes=3),  # reaches 0.70 in round 2
    run("moon", 1, [0.50, 0.60, 0.73], megabytes=3),  # never reaches 0.74
]
MEASURE = {measure.key: measure for measure in MEASURES}


def test_means_spreads_and_paired_rounds() -> None:
    fedavg, fedssd, moon = by_method(RESULTS).rows
    assert fedavg.mean("final_acc") == pytest.approx(0.72)
    assert fedavg.std("final_acc") == pytest.approx(0.04 / math.sqrt(2))  # sample standard deviation of two numbers
    assert fedavg.mean("best_acc") == pytest.approx(0.73)
    assert fedavg.mean("rounds_to_baseline") == 2.5
    assert fedssd.mean("rounds_to_baseline") == 1.5
    assert moon.mean("rounds_to_baseline") == 2
    assert moon.missing("rounds_to_baseline") == 1
    assert fedssd.mean("local_acc") == pytest.approx(0.65)
    assert fedssd.mean("forgetting") == pytest.approx((0.20 + 0.14) / 2)
    assert moon.mean("bytes_down") == 6e6


def test_what_stands_out() -> None:
    comparison = by_method(RESULTS)
    # FedSSD gains 0.10 on both seeds over FedAvg and 0.11 on both over MOON: no spread, so it stands out.
    best = outstanding(comparison, MEASURE["final_acc"])
    assert best is not None
    assert best.method == "fedssd"
    # FedAvg and FedSSD send the same: nobody stands out.
    assert outstanding(comparison, MEASURE["bytes_up"]) is None


def test_of_rounds_nobody_stands_out_whose_median_is_not_the_least() -> None:
    """Paired, the first is faster by 9.57 ± 7.68 rounds on average; the medians, which are printed, say 36 and 33."""
    measure = MEASURE["rounds_to_baseline"]
    rounds = {"a": [82, 73, 10, 36, 62, 18, 14], "b": [92, 74, 30, 33, 73, 28, 32]}
    rows = tuple(Row(name, {measure.key: found}, [100] * 7) for name, found in rounds.items())
    assert outstanding(Comparison(rows, tuple(range(7))), measure) is None
    slower = Row("b", {measure.key: [found + 10 for found in rounds["b"]]}, [100] * 7)
    best = outstanding(Comparison((rows[0], slower), tuple(range(7))), measure)
    assert best is not None
    assert best.method == "a"


def test_what_three_seeds_do_not_tell_from_chance_does_not_stand_out() -> None:
    """Student's t of two degrees is 4.3027 standard errors, and of gains that rise by 0.01 that is 0.0248."""

    def gaining(*gains: float) -> list[Result]:
        plain = [run("fedavg", seed, [0.7]) for seed in range(3)]
        return plain + [run("fedssd", seed, [0.7 + gain]) for seed, gain in enumerate(gains)]

    assert outstanding(by_method(gaining(0.01, 0.02, 0.03)), MEASURE["final_acc"]) is None  # 0.02 on average
    runs = gaining(0.02, 0.03, 0.04)
    best = outstanding(by_method(runs), MEASURE["final_acc"])
    assert best is not None
    assert best.method == "fedssd"
    assert any("95 % interval (Student's t) excludes zero" in line for line in tabulate(runs).notes)


@pytest.mark.parametrize(
    ("first", "text"),
    [
        ([30, 40, 70], "40"),
        ([30, None, 40], "40 (2/3)"),  # not 35: whoever fails is not left out
        ([None, 40, None], "> 100 (1/3)"),
        ([None, 80], "> 90 (1/2)"),  # between 80 and more than 100
        ([None, 20, 30, 80], "55 (3/4)"),
        ([None], "> 100 (0/1)"),
    ],
)
def test_a_seed_that_never_reaches_it_counts_as_beyond_all_rounds(first: list[float | None], text: str) -> None:
    found = reached(first, [100] * len(first))
    assert found is not None
    assert str(found) == text


def test_rounds_are_a_median_and_unknown_where_that_never_came() -> None:
    runs = [run(method, seed, [acc, acc]) for method, acc in (("fedavg", 0.7), ("moon", 0.6)) for seed in range(3)]
    runs[-1] = run("moon", 2, [0.6, 0.8])
    table = tabulate(runs)
    assert "not significant | 66.67 | > 2 (1/3) |" in table.markdown()
    assert "a seed that never reached it counting as more than all rounds" in table.markdown()
    plain, moon = csv.DictReader(io.StringIO(table.csv()))
    assert (plain["rounds_to_baseline_median"], plain["rounds_to_baseline_reached"]) == ("1", "3")
    assert (moon["rounds_to_baseline_median"], moon["rounds_to_baseline_reached"]) == ("", "1")
    assert reached([], []) is None


def test_text() -> None:
    lines = tabulate(RESULTS).text().splitlines()
    assert lines[1].split()[:2] == ["method", "accuracy"]
    assert lines[3].split() == ["fedavg", "72.00", "±", "2.83", "73.00", "2.5", "50.00", "22.00"]
    assert lines[5].split()[1:] == [
        "71.00",
        "±",
        "2.83",
        "-1.00",
        "[–]",
        "72.00",
        ">",
        "2.5",
        "(1/2)",
        "50.00",
        "21.00",
    ]
    assert lines[10].split() == ["fedavg", "2.0", "4.0"]  # below: what is wider than 100 columns
    assert lines[4].split()[1] == "*82.00"
    bold = tabulate(RESULTS).text(colour=True).splitlines()
    assert "\x1b[1m82.00 ± 2.83\x1b[0m" in bold[4]
    assert max(map(len, lines[:13])) <= 100


def test_markdown_and_csv() -> None:
    table = tabulate(RESULTS)
    markdown = table.markdown().splitlines()
    gain = "gain over FedAvg, points [95 % interval], paired by seed"
    assert markdown[0].startswith(f"| method | final accuracy % | {gain} | best % |")
    assert "| **82.00 ± 2.83** | +10.00 [–] |" in markdown[3]
    assert "2 seeds" in markdown[-1]
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert [row["method"] for row in rows] == ["fedavg", "fedssd", "moon"]
    assert float(rows[1]["final_acc_mean"]) == pytest.approx(0.82)
    assert rows[2]["rounds_to_baseline_median"] == ""  # of two seeds one reached it: beyond


def test_without_fedavg_one_seed_or_local_accuracy() -> None:
    runs = [run("fedssd", 0, [0.5], local=None), run("moon", 0, [0.6], local=None)]
    table = tabulate(runs)
    assert table.headings() == ["method", "final accuracy %", "best %", "up MB", "down MB"]
    assert "±" not in table.text()
    assert "gain" not in table.text() + table.markdown() + table.csv()
    assert outstanding(by_method(runs), MEASURE["final_acc"]) is None
    assert table.notes == ["1 seed: no spread is known, so no value stands out"]


def gaining(**points: list[float | None]) -> Table:
    """FedAvg at 70 % on every seed, and methods that gain so many points on it; None is a seed that never ran."""
    plain = [run("fedavg", seed, [0.7]) for seed in range(max(map(len, points.values())))]
    ours = [
        run(method, seed, [0.7 + gain / 100])
        for method, gains in points.items()
        for seed, gain in enumerate(gains)
        if gain is not None
    ]
    return tabulate([*plain, *ours])


def gains_of(table: Table) -> dict[str, str]:
    """The column of gains, as Markdown has it."""
    lines = table.markdown().splitlines()
    place = next(i for i, head in enumerate(lines[0].split(" | ")) if head.startswith("gain over FedAvg"))
    return {line.split(" | ")[0].strip("| "): line.split(" | ")[place] for line in lines[2 : 2 + len(table.rows)]}


def test_gains_have_an_interval_and_say_where_they_may_be_chance() -> None:
    """1, 2, 3 points: 2 ± 4.3027 · 1/√3 = 2 ± 2.484, which holds zero; 3 ± 2.484 does not."""
    one, other = gaining(moon=[1, 2, 3]), gaining(moon=[2, 3, 4])
    assert gains_of(one) == {"fedavg": "", "moon": "+2.00 [-0.48, +4.48] not significant"}
    assert gains_of(other) == {"fedavg": "", "moon": "+3.00 [+0.52, +5.48]"}
    assert gains_of(gaining(moon=[-4, -3, -2])) == {"fedavg": "", "moon": "-3.00 [-5.48, -0.52]"}
    assert "not significant: the 95 % interval holds zero" in one.notes
    assert not any("not significant" in line for line in other.notes)
    assert "+2.00 [-0.48, +4.48] not significant" in one.text()


def test_of_several_gains_those_are_marked_that_survive_holm() -> None:
    """t² of 2, 3, 4 points is 27, so p = 1 − √(27/29) = 0.035, times 2 is 0.070; of 9, 10, 11 it is 300: 0.0033 · 3."""
    table = gaining(moon=[2, 3, 4], fedprox=[-1, 0, 1], fedssd=[9, 10, 11])
    assert gains_of(table) == {
        "fedavg": "",
        "moon": "+3.00 [+0.52, +5.48]",
        "fedprox": "+0.00 [-2.48, +2.48] not significant",
        "fedssd": "+10.00 [+7.52, +12.48] †",
    }
    assert table.notes[-1] == "†: still significant at 5 % when all 3 gains are tested together (Holm)"
    _, moon, _, fedssd = csv.DictReader(io.StringIO(table.csv()))
    assert float(moon["gain_p"]) == pytest.approx(1 - math.sqrt(27 / 29))
    assert float(moon["gain_p_holm"]) == pytest.approx(2 - 2 * math.sqrt(27 / 29))
    assert float(fedssd["gain_p_holm"]) == pytest.approx(3 - 3 * math.sqrt(300 / 302))
    assert [float(moon[f"gain_{what}"]) for what in ("points", "low", "high")] == pytest.approx(
        [3, 0.5159, 5.4841], abs=1e-4
    )
    none = gaining(moon=[2, 3, 4], fedssd=[2, 3, 4])
    assert none.notes[-1] == "none is significant at 5 % when all 2 gains are tested together (Holm)"
    assert not any("Holm" in line for line in gaining(moon=[2, 3, 4]).notes)


def test_a_gain_without_an_interval_says_so() -> None:
    alone = gaining(moon=[2])
    assert gains_of(alone)["moon"] == "+2.00 [–]"
    assert alone.notes[-1] == "one seed has no interval: whether a gain is more than chance is not known"
    table = gaining(moon=[2, None, None], fedprox=[1, 1, 1], fedssd=[None, 2, 4])
    assert gains_of(table) == {
        "fedavg": "",
        "moon": "+2.00 [–] (1/3)",
        "fedprox": "+1.00 [–]",
        "fedssd": "+3.00 [-9.71, +15.71] (2/3) not significant",  # ± 12.706 · √2 / √2
    }
    assert any(line.startswith("[–]: no interval") for line in table.notes)


def test_gains_are_over_the_fedavg_that_is_named_for_the_line() -> None:
    runs = [
        run(name, seed, [acc]) for name, acc in (("fedavg", 0.5), ("fedavg b", 0.6), ("moon b", 0.7)) for seed in (0, 1)
    ]
    table = tabulate(runs, {"fedavg": "fedavg", "fedavg b": "fedavg b", "moon b": "fedavg b"})
    assert gains_of(table) == {"fedavg": "", "fedavg b": "", "moon b": "+10.00 [–]"}
    assert "gain" not in tabulate(runs[:2]).text()  # FedAvg by itself


def test_updates_left_out_are_counted_by_method() -> None:
    runs = [*RESULTS, run("krum", 0, [0.5]), run("krum", 1, [0.5])]
    for one, number in zip(runs[-2:], (4, 3), strict=True):
        runs[runs.index(one)] = replace(one, summary=replace(one.summary, dropped=number))
    assert tabulate(runs).notes[-1] == "updates that did not go into the average: krum 7"
    assert not any("average" in line for line in tabulate(RESULTS).notes)


def test_no_gap_is_not_minus_nothing() -> None:
    table = tabulate([run("fd", 0, [0.5], local=0.5 + 1e-17), run("fd", 1, [0.5], local=0.5 + 1e-9)])
    assert "-0.00" not in table.markdown()


def test_rounds_without_evaluation_are_passed_over() -> None:
    one = run("fedavg", 0, [0.1, 0.9])
    unseen = replace(one.rounds[0], accuracy=None)
    assert replace(one, rounds=(unseen, one.rounds[1])).rounds_to(0.8) == 2
    assert replace(one, rounds=(unseen,)).rounds_to(0.0) is None
