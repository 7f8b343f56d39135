"""What a practitioner is told follows from the study's rows, and from runs that are there."""

from __future__ import annotations

import pytest

from studies.paper.report.advice import advice
from studies.paper.report.answer import answer, short_answer
from studies.paper.report.study import Page
from studies.paper.report.wording import NOT_RUN
from studies.paper.study.chosen import Chosen
from studies.paper.study.parts import Study
from studies.paper.study.trial import Trial
from studies.paper.study.trials import COLUMNS
from studies.paper.tests.told import Told, page

pytestmark = pytest.mark.quick


def test_what_to_set_follows_from_the_rows_below() -> None:
    """Three seeds: a step of one point between them in a difference makes 2.48 to each side, none makes none."""
    published = {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}
    effects = {"head=on": (2.0, 2.0, 2.0), "auxiliary=8": (0.1, 0.1, 0.1), "auxiliary=256": (-1.0, 0.0, 1.0)}
    reported = {"moon": 1.5, "fedprox": -1.5}

    def says(trial: Trial, seed: int) -> float | None:
        if trial.part == "profile":
            return published[trial.group]
        if trial.part == "screen":
            return 60.0 + (effects.get(trial.label, (0.2, 0.2, 0.2))[seed] if trial.group != "base" else 0.0)
        if trial.part == "tune":
            return {"fedssd.m_max=0.5": 61.0, "fedssd.m_max=0.1": 59.9 + seed}.get(trial.label, 60.0)
        if trial.part == "report" and trial.arm in ("fedavg", "moon", "fedprox", "fedssd") and seed < 6:
            return 70.0 + reported.get(trial.arm, 0.01 * (seed - 4) if trial.arm == "fedssd" else 0.0)
        return None

    text = advice(page(says))
    told, apart = 2 * len(COLUMNS), 3 * len(COLUMNS)
    assert f"{told} of {apart} intervals leave out zero, where by chance alone 0.75 would:" in text  # 0.05 · 15
    assert f"  | MOON | 3 | {' | '.join(['+1.50 [+1.50, +1.50] *'] * len(COLUMNS))} |\n" in text
    assert f"  | FedProx | 3 | {' | '.join(['-1.50 [-1.50, -1.50] *'] * len(COLUMNS))} |\n" in text
    assert f"  | FedSSD | 3 | {' | '.join(['+0.00 [-0.02, +0.02]'] * len(COLUMNS))} |\n" in text  # 4.3 · 0.01 / √3
    assert f"  | FedCurv | – | {' | '.join([NOT_RUN] * len(COLUMNS))} |\n" in text
    assert "  | FedSSD | `fedssd.m_max=0.5` | 0.01, 1, 3 | 0.1 |\n" in text
    more = "+2.00 [+2.00, +2.00] * (3 seeds, 20 rounds)"
    assert (
        f"  - `head=on`: fedavg +0.00 [-0.00, +0.00] (3 seeds, 100 rounds), fedssd-0.5 {more}\n" in text
    )  # the profile's
    assert "  - `auxiliary=8`: fedavg +0.10 [+0.10, +0.10] * (3 seeds, 20 rounds)," in text  # little, and told
    assert "- **What these seeds do not tell** where δ = 0.5, less the base: `auxiliary=256`.\n" in text
    assert "did not matter" not in text


def test_fedssd_s_strength_is_said_for_each_column_and_for_all() -> None:
    """Table 1's column gains a point at 0.5, all others lose two: 0.01 does nothing, 0.1 adds a tenth everywhere."""
    published = {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}

    def says(trial: Trial, seed: int) -> float | None:
        if trial.part == "profile":
            return published[trial.group]
        if trial.part == "tune":
            return 61.0 if trial.label == "fedssd.m_max=0.5" else 60.0
        if trial.part == "columns":
            strong = 1.0 if trial.group == "table1-cifar10" else -2.0
            return 60.0 + {"fedssd.m_max=0.5": strong, "fedssd.m_max=0.1": 0.1}.get(trial.label, 0.0)
        if trial.part == "report" and trial.arm in ("fedavg", "fedssd", "fedssd-columns"):
            return 70.0 + 0.01 * (seed - 4) + {"fedssd": -1.0, "fedssd-columns": 0.2}.get(trial.arm, 0.0)
        return None

    found = page(says)
    text = advice(found)
    opening = (
        "- **FedSSD on other splits**, of 0.01, 0.1, 0.5 on the tuning seeds. Over all of them the best M_max is 0.1"
    )
    assert f"{opening}, which comes with fedssd; on each:\n" in text
    best = {
        column.title: ("0.5", "0.01, 0.1") if column.title == "δ = 0.5" else ("0.1", "0.01, 0.5") for column in COLUMNS
    }
    rows = [f"  | {title} | {value} | {lower} | – |\n" for title, (value, lower) in best.items()]
    assert "".join(rows) in text
    assert f"  | FedSSD, M_max best over all columns | 7 | {' | '.join(['+0.20 [+0.20, +0.20] *'] * 5)} |\n" in text
    heads, _, *rows = found.blocks["columns"]().splitlines()
    assert heads == ("| column | FedAvg % | `fedssd.m_max=0.01` | `fedssd.m_max=0.1` **chosen** | `fedssd.m_max=0.5` |")
    level, more = "+0.00 [-0.00, +0.00]", "+0.10 [+0.10, +0.10] *"
    assert rows[0] == f"| #K = 2 | 60.00 ± 0.00 (3) | {level} | {more} | -2.00 [-2.00, -2.00] * |"
    worse = "-1.40 [-1.40, -1.40] *"  # (1 - 4 · 2) / 5
    assert rows[-2] == f"| mean of the columns | 60.00 ± 0.00 (3) | {level} | {more} | {worse} |"
    assert rows[-1].startswith("| the same, less the chosen | – | -0.10 ")
    assert " | – | -1.50 " in rows[-1]
    for said in (answer(found), short_answer(found)):
        assert f"| M_max = 0.5, tuned on δ = 0.5 | 7 | {' | '.join(['-1.00 [-1.00, -1.00] *'] * 5)} |\n" in said
        assert f"| M_max = 0.1, best over all columns | 7 | {' | '.join(['+0.20 [+0.20, +0.20] *'] * 5)} |\n" in said
        assert ". Best over all columns is M_max = 0.1, with which it leads FedAvg on every column.**" in said
    not_yet = page(lambda trial, seed: None if trial.arm == "fedssd-columns" else says(trial, seed))
    added = "On 4 seeds that were added after the others had been looked at, and on these alone, the tuned FedSSD"
    assert f"{added} trails FedAvg on every column." in answer(found)
    assert added not in answer(page(lambda trial, seed: says(trial, seed) if seed < 6 else None))
    lacking = f"| M_max = 0.1, best over all columns | – | {' | '.join([NOT_RUN] * 5)} |\n"
    assert lacking in answer(not_yet)
    small = Page(Study(changes={"epochs": "1"}), Told(says))
    assert "Over all of them the best M_max is 0.1; on each:\n" in advice(
        small
    )  # of changed ones nothing comes with it
    by_round = found.blocks["by-round"]()
    assert by_round.index("M_max = 0.5, less FedAvg") < by_round.index("M_max = 0.1, less FedAvg")


def test_fedssd_s_strength_on_digits_is_said_for_each_column_and_for_all() -> None:
    """1 gains five points on two classes and loses fifty where δ = 10; 0.1 gains one everywhere but on these two."""
    gains = {
        ("fedssd.m_max=1.0", "table2-classes-2"): 5.0,
        ("fedssd.m_max=1.0", "table2-dirichlet-10"): -50.0,
        ("fedssd.m_max=0.1", "table2-classes-2"): 0.0,
        ("fedssd.m_max=0.1", "table2-dirichlet-10"): 0.0,
    }

    def says(trial: Trial, seed: int) -> float | None:
        if trial.part != "digits-columns":
            return None
        usual = 1.0 if trial.label == "fedssd.m_max=0.1" else 0.0
        gain = gains.get((trial.label, trial.group), usual) - 10.0 * (trial.label == "fedssd.m_max=3.0")
        return 90.0 + seed - 100 + gain

    found = page(says)
    text = advice(found)
    opening = "- **FedSSD on digits**, split as the columns are, over 20 rounds, of 0.01, 0.03, 0.1, 0.3, 1, 3"
    assert text.startswith(
        f"{opening} on the tuning seeds. Over all of them the best M_max is 0.1, which their recipe has; on each:\n"
    )
    for title, best in {"#K = 2": "1", "#K = 5": "0.1", "δ = 0.1": "0.1", "δ = 0.5": "0.1"}.items():
        others = [value for value in ("0.01", "0.03", "0.1", "0.3", "1", "3") if value != best]
        assert f"  | {title} | {best} | {', '.join(others)} | – |\n" in text
    heads, _, *rows = found.blocks["digits-columns"]().splitlines()
    names = [f"`fedssd.m_max={value}`" for value in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)]
    names[2] += " **chosen**"
    assert heads == f"| column | FedAvg % | {' | '.join(names)} |"
    assert rows[0].startswith("| #K = 2 | 91.00 ± 1.00 (3) | ")
    assert rows[0].endswith(" | +5.00 [+5.00, +5.00] * | -10.00 [-10.00, -10.00] * |")
    *_, over, less = ([cell.strip()[:6] for cell in row.strip("|").split("|")[1:]] for row in rows)
    assert [cell.strip() for cell in over] == ["91.00", "+0.00", "+0.00", "+0.60", "+0.00", "-9.00", "-10.00"]
    assert [cell.strip() for cell in less] == ["–", "-0.60", "-0.60", "–", "-0.60", "-9.60", "-10.60"]
    best = "M_max = 0.1 is the best over all columns on the tuning seeds, by round 20"
    none = "With it FedSSD leads FedAvg on no column after any of the rounds looked at."
    for said in (answer, short_answer):
        assert said(found).startswith("**Not run yet.**")  # on the reported seeds
        both = page(lambda trial, seed: 50.0 + seed if trial.part == "digits" else says(trial, seed))
        assert f"{best}, and is in their recipe. {none}\n\nNot run yet: the base" in said(both)
        assert best not in said(page(lambda trial, seed: 50.0 if trial.part == "digits" else None))
    changed = Page(Study(changes={"epochs": "1"}), Told(says))
    assert "Over all of them the best M_max is 0.1; on each:\n" in advice(changed)
    assert "| `digits-columns` | 105 | 0 | 100, 101, 102 | 20 |\n" in found.blocks["state"]()
    assert page(lambda trial, seed: None).blocks["digits-columns"]() == "Not run yet.\n"


def test_departures_that_do_nothing_stand_together() -> None:
    def says(trial: Trial, seed: int) -> float | None:
        return 60.0 + 0.1 * (seed - 1) * (trial.label != "base") if trial.part == "screen" else None

    text = advice(page(says))
    opening = "- **What did not matter** where δ = 0.5, less the base, the whole interval within ±1"
    assert text.startswith(f"{opening}: `head=on`; `weight_decay=1e-05`, ")
    assert "; `fedssd.square=outside,fedssd.m_max=0.01`, 0.1, 0.5, 1.0; " in text


def test_a_strength_whose_runs_are_not_here_is_not_called_told_apart_or_not() -> None:
    """The strengths come with fedssd; of the runs they were chosen on none is there."""
    chosen = Chosen(
        Study().candidates()[0],
        None,
        {"cifar10": {one.key: one.values[1] for one in Study().design.grids}},
        variants={one.name: one.values[1] for one in Study().design.variants},
    )
    text = advice(Page(Study(chosen=chosen), Told(lambda trial, seed: None)))
    assert f"  | FedSSD | `fedssd.m_max=0.1` | {NOT_RUN} | {NOT_RUN} |\n" in text
