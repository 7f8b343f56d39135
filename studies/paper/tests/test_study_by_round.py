"""When FedSSD leads: its gain after some of the rounds, as a table, in a sentence and as a picture."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from studies.paper.report.answer import answer, short_answer
from studies.paper.report.study import Page
from studies.paper.study.parts import Study
from studies.paper.study.trial import Trial
from studies.paper.study.trials import COLUMNS
from studies.paper.tests.told import Told, page

pytestmark = pytest.mark.quick
SVG = "{http://www.w3.org/2000/svg}"
T5 = 2.570581835636314  # Student's t for 95 % and five degrees of freedom, from printed tables


def test_a_lead_is_looked_at_on_the_way() -> None:
    """On digits with two classes FedSSD at 0.1 is 10 ahead after 5 rounds, else 1 more or less than FedAvg by turns.

    With δ = 10, at 1, it ends 20 behind.
    """

    def says(trial: Trial, seed: int) -> float | None:
        if trial.part != "digits" or trial.group not in ("table2-classes-2", "table2-dirichlet-10"):
            return None
        by_turns, rounds = 1.0 if seed % 2 else -1.0, trial.recipe.rounds
        gains = {
            ("table2-classes-2", "fedssd.m_max=0.1", 5): 10.0 + 0.1 * by_turns,
            ("table2-dirichlet-10", "fedssd.m_max=1.0", 100): -20.0 + 0.1 * by_turns,
        }
        gain = gains.get((trial.group, trial.label, rounds), by_turns)
        return 50.0 + rounds / 4 + (gain if trial.arm == "fedssd" else 0.0)

    found = page(says)
    heads, _, theirs, weak, middle, strong, *rest = found.blocks["digits"]().splitlines()
    assert heads == "|  | after round | 5 | 10 | 20 | 40 | 60 | 80 | 100 |"
    means = [f"{mean:.2f} ± 0.00 (6)" for mean in (51.25, 52.5, 55, 60, 65, 70, 75)]
    assert theirs == f"| **#K = 2** | FedAvg % | {' | '.join(means)} |"
    half = T5 * (6 / 5) ** 0.5 / 6**0.5  # of six that are 1 or -1, by turns
    even = f"+0.00 [{-half:+.2f}, {half:+.2f}]"
    first = f"+10.00 [{10 - half / 10:+.2f}, {10 + half / 10:+.2f}] *"
    assert weak == f"|  | M_max = 0.1, less FedAvg, over 6 seeds | {first} | {' | '.join([even] * 6)} |"
    for row, value in ((middle, "0.3"), (strong, "1")):
        assert row == f"|  | M_max = {value}, less FedAvg, over 6 seeds | {' | '.join([even] * 7)} |"
    assert [row.split(" | ")[0] for row in rest] == ["| **δ = 10**", "| ", "| ", "| "]
    said = answer(found)
    assert (
        "On digits, split as the columns are, FedSSD leads most on #K = 2 with M_max = 0.1: after 5 rounds it leads "
        f"FedAvg (+10.00 points, 95 % interval {10 - half / 10:+.2f} to {10 + half / 10:+.2f}, 6 seeds), and after 100 "
        f"it is not told apart from FedAvg (+0.00 points, 95 % interval {-half:+.2f} to {half:+.2f}, 6 seeds)." in said
    )
    many = "the largest of 42 differences looked at, by split, strength and round"  # two splits, three of M_max, seven
    assert f"That is {many}; 1 of them are leads told apart from zero." in said
    behind = f"(-20.00 [{-20 - half / 10:+.2f}, {-20 + half / 10:+.2f}])"
    assert f"In the end with M_max = 1 it trails FedAvg on δ = 10 {behind}." in said
    assert "In the end" not in short_answer(found)
    assert found.blocks["by-round"]() == "Not run yet.\n"
    short = Page(Study(changes={"rounds": "2"}), Told(lambda trial, seed: 50.0 if trial.part == "digits" else None))
    assert short.blocks["digits"]().startswith("|  | after round | 2 |\n")  # the last, where there is none of those
    level = page(lambda trial, seed: 50.0 if trial.part == "digits" else None)
    assert (
        "On digits, split as the columns are, FedSSD leads FedAvg on no column after any of the rounds looked at."
        in answer(level)
    )


def test_the_gain_in_every_round_is_drawn_in_points(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """Two rounds on digits with two classes: FedSSD is 3 points ahead, then 1 behind."""
    column = next(one for one in COLUMNS if one.recipe == "table2-classes-2")
    study = Study(changes={"rounds": "2"}, reporting=(3,))
    runs = {}
    for name, curve in (("fedavg", [0.50, 0.60]), ("fedssd", [0.53, 0.59])):
        runs[name] = write_run(tmp_path / name, name, 3, curve)

    class Recorded(Told):
        def run(self, trial: Trial, seed: int) -> Path | None:
            weak = trial.label in ("fedavg", "fedssd.m_max=0.1")
            return runs[trial.arm] if trial.part == "digits" and trial.group == column.recipe and weak else None

    drawn = Page(study, Recorded(lambda trial, seed: None)).figures()["study-by-round.svg"]
    texts = [one.text for one in ElementTree.fromstring(drawn).iter() if one.tag.endswith("text")]
    assert "Digits, M_max = 0.1" in texts
    assert texts[texts.index("Digits, M_max = 0.1") + 1] == "1 seed"
    assert texts[texts.index("#K = 2") + 1] == "-1.0"
    assert "δ = 10" not in texts


def test_strengths_on_cifar10_are_drawn_on_one_scale(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    """The tuned strength gains 10 points, the one over all columns 1: its line is a tenth as high."""
    gains = {"fedavg": 0.0, "fedssd": 0.1, "fedssd-columns": 0.01}

    def says(trial: Trial, _: int) -> float | None:
        published = {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}
        best = {("tune", "fedssd.m_max=0.5"), ("columns", "fedssd.m_max=0.01")}
        return published[trial.group] if trial.part == "profile" else 60.0 + ((trial.part, trial.label) in best)

    class Recorded(Told):
        def run(self, trial: Trial, seed: int) -> Path | None:
            if trial.part != "report" or trial.arm not in gains:
                return None
            folder = tmp_path / f"{trial.arm}-{trial.group}-{seed}"
            curve = [0.5, 0.5 + gains[trial.arm]]
            return folder if folder.exists() else write_run(folder, trial.arm, seed, curve)

    study = Study(reporting=(3, 4))
    drawing = ElementTree.fromstring(Page(study, Recorded(says)).figures()["study-by-round.svg"])
    texts = [one.text for one in drawing.iter() if one.tag.endswith("text")]
    assert [one for one in texts if str(one).startswith("CIFAR-10")] == [f"CIFAR-10, M_max = {m}" for m in (0.5, 0.01)]
    assert texts.count("2 seeds") == 2
    lines = [one for one in drawing.iter() if "line" in (one.get("class") or "").split()]
    ends = [[float(point.split(",")[1]) for point in one.get("points", "").split()] for one in lines]
    tuned, weak = ends[: len(COLUMNS)], ends[len(COLUMNS) :]
    for high, low in zip(tuned, weak, strict=True):
        assert low[0] - low[1] == pytest.approx((high[0] - high[1]) / 10, abs=0.1)
    styles = {one.get("class") for one in lines}
    assert len(styles) == len(COLUMNS)
    style = "".join(next(drawing.iter(f"{SVG}style")).itertext())
    colours = re.findall(r"\.c\d { stroke: (#\w+) }", style)
    assert len({*colours[: len(COLUMNS)]}) == len(COLUMNS)  # and as many again for dark


def test_runs_that_break_are_counted_where_an_interval_would_go_below_nothing() -> None:
    """At 1, where δ = 10, four of six runs end at 10, two at FedAvg's 90: 37 in the mean, less 43 for the interval.

    Of -80 four times and 0 twice the standard deviation is 41.3.
    """

    def says(trial: Trial, seed: int) -> float | None:
        if trial.part != "digits" or trial.group != "table2-dirichlet-10":
            return None
        broken = trial.label == "fedssd.m_max=1.0" and seed < 7
        return 10.0 if broken else 90.0

    said = answer(page(says))
    counted = "(-53.33, 4 of 6 runs below half of FedAvg's accuracy)"  # of seeds 3 to 8
    assert f"with M_max = 1 it trails FedAvg on δ = 10 {counted}." in said
