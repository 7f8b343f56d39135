"""The study's page: every figure with its n, mean, spread and interval, and what was not run named as such."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from told import Told

from fedssd.experiment.study.parts import COLUMNS, Study
from fedssd.experiment.study.trial import Trial
from fedssd.report import mechanism
from fedssd.report.paired import pair
from fedssd.report.records import read
from fedssd.report.study import Page
from fedssd.report.wording import NOT_RUN, interval, spread, verdict

pytestmark = pytest.mark.quick

T2 = 4.302652729911275  # Student's t for 95 % and two degrees of freedom, from printed tables


def rival(*gains: float) -> object:
    return pair("x", dict.fromkeys(range(len(gains)), 60.0), {seed: 60.0 + gain for seed, gain in enumerate(gains)})


def test_a_difference_has_its_interval() -> None:
    half = T2 * 1 / 3**0.5  # gains 1, 2, 3: mean 2, standard deviation 1
    assert interval(rival(1.0, 2.0, 3.0)) == f"+2.00 [{2 - half:+.2f}, {2 + half:+.2f}]"  # type: ignore[arg-type]
    half = T2 * 0.1 / 3**0.5
    assert interval(rival(1.9, 2.0, 2.1)) == f"+2.00 [{2 - half:+.2f}, {2 + half:+.2f}] *"  # type: ignore[arg-type]
    assert interval(rival(0.5)) == "+0.50"  # type: ignore[arg-type]
    assert interval(rival()) == "–"  # type: ignore[arg-type]
    assert spread([60.0, 62.0]) == "61.00 ± 1.41 (2)"
    assert spread([]) == NOT_RUN


def test_a_difference_says_nothing_only_where_it_is_small_and_unclear() -> None:
    said = {
        "raises it": (1.9, 2.0, 2.1),
        "lowers it, by little": (-0.2, -0.21, -0.19),
        "nothing": (-0.3, 0.3, 0.1),
        "not told apart": (-3.0, 0.0, 6.0),
        "one seed says nothing": (9.0,),
        NOT_RUN: (),
    }
    for words, gains in said.items():
        assert verdict(rival(*gains), 0.5) == words  # type: ignore[arg-type]


def page(says: Callable[[Trial, int], float | None]) -> Page:
    return Page(Study(), Told(says, best=0.5))


def test_without_runs_every_block_says_so() -> None:
    empty = page(lambda trial, seed: None)
    for name, make in empty.blocks.items():
        if name != "state":
            assert NOT_RUN in make().lower(), name
    assert empty.answer().startswith("**Not run yet.**")
    rows = [line for line in empty.choices().splitlines() if line.startswith("| `")]
    assert len(rows) == sum(len(c.changes) * len(c.arms) for c in empty.study.design.choices)
    assert all(row.endswith(f"| {NOT_RUN} | {NOT_RUN} | – | {NOT_RUN} |") for row in rows)


def confirmed(trial: Trial, seed: int) -> float | None:
    """The base of the confirmation on three seeds: FedSSD adds 0.1, 0.2, 0.3, at 0.5 it takes 1 or about that."""
    if trial.part != "confirm" or trial.group != "base" or seed > 5:
        return None
    added = {"fedavg": 0.0, "fedssd": 0.1 * (seed - 2), "fedssd-0.5": -1.0 - 0.01 * seed}
    return 60.0 + seed + added[trial.arm] if trial.arm in added else None


def test_the_answer_comes_first_with_its_uncertainty() -> None:
    text = page(confirmed).answer()
    half = T2 * 0.1 / 3**0.5
    expected = f"+0.20 points, 95 % interval {0.2 - half:+.2f} to {0.2 + half:+.2f}, 3 seeds"
    assert f"FedSSD as printed is not told apart from FedAvg ({expected})" in text
    assert "FedSSD at M_max = 0.5 trails FedAvg (-1.04 points" in text
    assert text.endswith("Not run yet: every method at its tuned strength, the best composition.\n")


def test_the_last_round_stands_beside_the_best() -> None:
    text = page(confirmed).last_or_best()
    assert text.startswith("Over 100 rounds.")
    assert "| fedavg | 64.00 ± 1.00 (3) | 64.50 ± 1.00 (3) | +0.50 [+0.50, +0.50] * | – | – |" in text
    assert f"| kl | {NOT_RUN} | {NOT_RUN} | – | – | – |" in text


def test_a_choice_is_compared_with_its_own_arm_at_the_base() -> None:
    def says(trial: Trial, seed: int) -> float | None:
        if trial.part != "screen":
            return None
        base = {"fedavg": 50.0, "fedssd": 55.0, "fedssd-0.5": 55.0}.get(trial.arm)
        if base is None:
            return None
        return base + seed + (2.0 if trial.label == "head=on" else 0.0)

    found = page(says)
    text = found.choices()
    assert (
        "| `head=on` | fedavg | 20 | 53.00 ± 1.00 (3) | 51.00 ± 1.00 (3) | +2.00 [+2.00, +2.00] * | raises it |" in text
    )
    assert (
        "| `head=on` | fedssd-0.5 | 20 | 58.00 ± 1.00 (3) | 56.00 ± 1.00 (3) | +2.00 [+2.00, +2.00] * | raises it |"
        in text
    )
    assert "(`--only weight-decay`)" in text
    lead = found.lead()
    assert "| `head=on` | fedssd-0.5 | 58.00 ± 1.00 (3) | 53.00 ± 1.00 (3) | +5.00 [+5.00, +5.00] * | 20 |" in lead
    # a departure of FedSSD alone is held against FedAvg at the base
    assert "| `fedssd.m_max=1.0` | fedssd | 56.00 ± 1.00 (3) | 51.00 ± 1.00 (3) | +5.00" in lead


def test_reported_columns_stand_beside_the_paper_s() -> None:
    published = {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}

    def says(trial: Trial, seed: int) -> float | None:
        if trial.part == "profile":
            return published[trial.group]
        if trial.part in ("tune", "compose"):
            return 61.0 if trial.arm == "fedssd-decay" else 60.0
        return 70.0 + 0.1 * seed + (1.5 if "fedssd" in trial.recipe.method else 0.0)

    found = page(says)
    text = found.report()
    assert "**#K = 2** (`--part report --only table2-classes-2`)" in text
    assert "| FedAvg | 70.40 ± 0.10 (3) | – | 49.64 ± 1.64 | +0.00 |" in text
    assert "| FedSSD | 71.90 ± 0.10 (3) | +1.50 [+1.50, +1.50] * | 53.37 ± 1.52 | +3.73 |" in text
    assert "on #K = 2 it leads FedAvg (+1.50 points" in found.answer()
    assert "(published: +3.73)" in found.answer()
    assert (
        "fedssd-decay, the best with FedSSD, reaches 71.90 ± 0.10 (3) and fedavg-decay, the best without FedSSD, "
        "reaches 70.40 ± 0.10 (3)" in found.answer()
    )
    assert found.profile().count("**chosen**") == 1
    assert found.tuning().count("**chosen**") == len(found.study.design.grids)
    assert found.compositions().count("**chosen**") == 2


def test_the_mechanism_is_what_the_rounds_recorded(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    more = {"distillation": {"weight": 0.2, "active": 0.5, "ratio": 0.01}, "forgetting": 0.3, "drift": 4.0}
    runs = {
        "fedavg": [read(write_run(tmp_path / "a", "fedavg", 0, [0.5, 0.6], forgetting=0.1, drift=3.0))],
        "fedssd": [read(write_run(tmp_path / f"s{n}", "fedssd", n, [0.5, 0.6 + n / 10], **more)) for n in (0, 1)],
    }
    ends = {title: mechanism.at_the_end(runs["fedssd"], measure) for title, measure in mechanism.MEASURES.items()}
    # the worst class of the global model: 60 and 70 %; of the clients' models half of that
    assert list(ends.values()) == pytest.approx([20.0, 50.0, 1.0, 30.0, 4.0, 65.0, 32.5])
    assert mechanism.at_the_end(runs["fedavg"], mechanism.MEASURES["mean M / M_max, %"]) is None
    drawing = ElementTree.fromstring(mechanism.picture(runs))
    lines = [
        one for one in drawing.iter("{http://www.w3.org/2000/svg}polyline") if "line" in one.get("class", "").split()
    ]
    assert len(lines) == 3 + 4 * 2  # FedAvg distils nothing
    rows = list(csv.DictReader(io.StringIO(mechanism.as_csv(runs))))
    drifts = [row for row in rows if row["measure"].startswith("drift")]
    assert [(row["arm"], row["seed"], row["round"], row["value"]) for row in drifts[:2]] == [
        ("fedavg", "0", "1", "3"),
        ("fedavg", "0", "2", "3"),
    ]
    assert len(drifts) == 2 + 2 * 2
