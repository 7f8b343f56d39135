"""The study's answer: verdicts with their uncertainty first, and what was not run named as such."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.paper.report.answer import answer, short_answer
from studies.paper.report.study import Page, departs, write_study
from studies.paper.report.wording import NOT_RUN
from studies.paper.study.design import label
from studies.paper.study.parts import Study
from studies.paper.study.trial import Trial
from studies.paper.study.trials import COLUMNS
from studies.paper.tests.told import T2, Told, confirmed, page

pytestmark = pytest.mark.quick


def test_the_answer_comes_first_with_its_uncertainty() -> None:
    text = answer(page(confirmed))
    half = T2 * 0.1 / 3**0.5
    expected = f"+0.20 points, 95 % interval {0.2 - half:+.2f} to {0.2 + half:+.2f}, 3 seeds"
    opening = "**On CIFAR-10, with the paper's CNN and ten clients, FedSSD as printed is not told apart from FedAvg on"
    lead = f"+0.20 [{0.2 - half:+.2f}, {0.2 + half:+.2f}] points; the paper prints +2.89"
    assert text.startswith(f"{opening} δ = 0.5 ({lead}).** Over 100 rounds ")
    assert f"FedSSD as printed is not told apart from FedAvg ({expected})" in text
    assert "and FedSSD at M_max = 0.5 trails FedAvg (-1.04 points" in text
    assert "The lead that the paper prints, +2.89 points, is outside all of these intervals." in text  # 73.38 - 70.49
    assert text.endswith("Not run yet: every method at its tuned strength, digits by round, the best composition.\n")


def test_the_answer_says_what_the_chosen_pipeline_has_that_the_base_has_not() -> None:
    published = {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}
    closest = label(Study().candidates()[2])
    assert closest == "head=auto,weight_decay=1e-05,augment=moon,partial_batch=keep"

    def says(trial: Trial, _: int) -> float | None:
        return published[trial.group] + (trial.label != closest) if trial.part == "profile" else 60.0

    but_for = "with the pipeline chosen on FedAvg, which is the base recipe but for `weight_decay=1e-05`: points"
    for said in (answer(page(says)), short_answer(page(says))):
        assert but_for in said


def test_fedssd_stands_beside_every_other_method_on_the_seeds_both_have() -> None:
    """Where δ = 0.5 MOON is 1.0, 1.1 and 1.2 above FedSSD, 1.1 ± 0.25; elsewhere as often above as below."""
    published = {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}
    moon = {3: 1.0, 4: 1.1, 5: 1.2}

    def says(trial: Trial, seed: int) -> float | None:
        if trial.part in ("profile", "tune"):
            return published[trial.group] if trial.part == "profile" else 60.0
        if trial.part != "report":
            return None
        if trial.arm in ("fedavg", "fedssd"):
            return 70.0
        if trial.arm != "moon" or seed not in moon:
            return None
        return 70.0 + (moon[seed] if trial.group == "table1-cifar10" else 0.1 * (seed - 4))

    found = page(says)
    assert "| MOON | 71.10 ± 0.10 (3) | +1.10 [+0.85, +1.35] * | +1.10 [+0.85, +1.35] * |" in found.blocks["report"]()
    said = answer(found)
    assert (
        "these are told apart from FedSSD over 3 seeds (1 of 5 intervals leave out zero, where by chance alone 0.25 "
        "would): on #K = 2 none; on #K = 5 none; on δ = 0.1 none; on δ = 0.5 MOON above it; on δ = 10 none." in said
    )
    assert "MOON" not in short_answer(found)


@pytest.mark.parametrize("tuned", [False, True])
def test_until_the_chosen_pipeline_is_reported_another_stands_in_and_is_named(tuned: bool) -> None:
    """With the other pipeline FedSSD leads by 2; with the chosen one nothing is reported, tuned or not."""
    published = {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}
    (other,), chosen = Study().also(), label(Study().candidates()[0])

    def says(trial: Trial, seed: int) -> float | None:
        if trial.part == "profile":
            return published[trial.group] + (0.0 if trial.label == chosen else 1.0)
        there = trial.part in ("tune", "report") and trial.pipeline == label(other)
        if not there and not (tuned and trial.part == "tune"):
            return None
        return 70.0 + 0.1 * seed + (2.0 if trial.arm == "fedssd" else 0.0)

    found = page(says)
    missing = f"with `{label(other)}` (with the pipeline chosen on FedAvg: not run yet): points"
    for said in (answer(found), short_answer(found)):
        assert missing in said
        assert "| M_max = 0.01 as printed, tuned on δ = 0.5 | 7 | +2.00 [+2.00, +2.00] * |" in said
    stands_in = f"With `{label(other)}`; with the chosen pipeline not run yet.\n\n"
    methods, _, strengths = found.blocks["advice"]().partition("- **How strong**")
    assert methods.startswith(f"{stands_in}- **Which method**")
    assert "| FedSSD | 7 | +2.00 [+2.00, +2.00] * |" in methods
    assert (stands_in in methods.removeprefix(stands_in)) is not tuned  # tuned, its own strengths are shown
    assert "| FedSSD | `fedssd.m_max=0.01` |" in strengths
    assert found.blocks["by-round"]().startswith(stands_in)
    assert "+2.00" not in found.blocks["report"]()
    named = Page(found.study.with_pipeline(label(other)), found.results)
    assert "not run yet)" not in answer(named)
    assert stands_in not in named.blocks["advice"]()


def test_a_composition_is_held_against_the_same_without_fedssd() -> None:
    """With SCAFFOLD 74, SCAFFOLD alone 73, MOON 73.5: of what it is above FedAvg's 70 one point is FedSSD's."""
    published = {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}
    ends = {"fedssd+scaffold-decay": 74.0, "scaffold-decay": 73.0, "moon-decay": 73.5}

    def says(trial: Trial, _: int) -> float | None:
        return published[trial.group] if trial.part == "profile" else ends.get(trial.arm, 70.0)

    found = page(says)
    said = answer(found)
    assert (
        "fedssd+scaffold-decay, the best with FedSSD, reaches 74.00 ± 0.00 (3), scaffold-decay, the same without "
        "FedSSD, reaches 73.00 ± 0.00 (3) and moon-decay, the best without FedSSD, reaches 73.50 ± 0.00 (3)" in said
    )
    assert "; what of it is FedSSD's, fedssd+scaffold-decay less scaffold-decay: +1.00 points" in said
    assert "; fedssd+scaffold-decay less moon-decay: +0.50 points" in said
    rows = [[cell.strip() for cell in row.split("|")[5:7]] for row in found.blocks["compositions"]().splitlines()[-5:]]
    assert [(names, points[:5]) for names, points in rows] == [
        ("fedssd+scaffold-decay less FedAvg", "+4.00"),
        ("scaffold-decay less FedAvg", "+3.00"),
        ("moon-decay less FedAvg", "+3.50"),
        ("fedssd+scaffold-decay less scaffold-decay", "+1.00"),
        ("fedssd+scaffold-decay less moon-decay", "+0.50"),
    ]


def test_while_the_best_is_not_reported_the_tuning_seeds_say_what_fedssd_adds_to_it() -> None:
    """With FedSSD SCAFFOLD is 0.1, 0.2 and 0.3 above SCAFFOLD alone, which alone has run on the other seeds, too."""
    published = {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}

    def says(trial: Trial, seed: int) -> float | None:
        if trial.part == "profile":
            return published[trial.group]
        if trial.part == "best" and trial.arm != "scaffold-decay":
            return None
        ends = {"fedssd+scaffold-decay": 73.1 + 0.1 * seed, "scaffold-decay": 73.0}
        return ends.get(trial.arm, 70.0 + 0.01 * seed)

    found = page(says)
    half = T2 * 0.1 / 3**0.5
    said, alone = (
        answer(found),
        "scaffold-decay, the best without FedSSD, reaches 73.00 ± 0.00 (3)",
    )
    assert (
        f"Of the compositions tried, {alone} (the paper's FedSSD: 73.38). "
        f"fedssd+scaffold-decay, the best with FedSSD, is {NOT_RUN} on the reported seeds; " in said
    )
    assert (
        "on the tuning seeds, less scaffold-decay, both with `lr_decay=0.97`, by the mean of the last 5 rounds: "
        f"+0.20 points, 95 % interval {0.2 - half:+.2f} to {0.2 + half:+.2f}, 3 seeds.\n" in said
    )
    text = found.blocks["compositions"]()
    gain = f"+0.20 [{0.2 - half:+.2f}, {0.2 + half:+.2f}]"
    assert f"| fedssd+scaffold-decay | `lr_decay=0.99` | 73.20 ± 0.10 (3) | {gain} |" in text
    assert "| scaffold-decay | `lr_decay=0.99` | 73.00 ± 0.00 (3) | – |" in text
    untuned = Page(
        Study(chosen=found.study.choices(found.results)), Told(lambda *one: says(*one) if one[1] > 2 else None)
    )
    assert f"the best with FedSSD, is {NOT_RUN} on the reported seeds.\n" in answer(untuned)
    both = page(lambda trial, seed: says(trial, seed) or 74.0)
    assert "on the tuning seeds" not in answer(both)


def test_a_study_of_digits_says_so_and_leaves_the_paper_s_figures_out(tmp_path: Path) -> None:
    def says(trial: Trial, seed: int) -> float | None:
        return 60.0 + seed if trial.part != "screen" else None

    study = Study(small=True, changes={"rounds": "3", "epochs": "1"}, tuning=(0, 1), reporting=(3, 4))
    found = Page(study, Told(says))
    said = answer(found)
    assert said.startswith("On digits, in the place of CIFAR-10. **FedSSD at M_max = ")
    assert ".** Over 3 rounds of our base recipe, FedSSD at M_max = " in said
    printed = [cell.accuracy for column in COLUMNS for cell in column.published.values()]
    for text in (said, found.blocks["report"]()):
        assert not any(f"{value:.2f}" in text for value in printed)
        assert "paper %" not in text
        assert "ublished" not in text
    assert "padding" not in found.blocks["choices"]()  # nothing pads digits
    assert {row.rsplit("|", 2)[1].strip() for row in found.state().splitlines()[2:]} == {"3"}
    write_study(found, tmp_path)
    flags = "`--scale small`, `--rounds 3`, `--set epochs=1`, `--seeds 0,1,3,4`"
    assert f"\n\nNot as the design has it: {flags}.\n\n" in (tmp_path / "study.md").read_text()
    assert departs(Study()) == ""
    other = answer(Page(Study(changes={"epochs": "1"}), Told(confirmed)))
    assert "FedSSD as printed is not told apart" in other
    assert "the paper prints" not in other  # for other epochs
    assert "the paper prints" in answer(Page(Study(changes={"device": "cpu"}), Told(confirmed)))
    heading = (tmp_path / "chosen.toml").read_text().splitlines()[0]
    assert "the runs beside it" in heading
    assert "make docs" not in heading
