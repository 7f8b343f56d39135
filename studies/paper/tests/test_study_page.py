"""The study's page: every figure with its n, mean, spread and interval, and what was not run named as such."""

from __future__ import annotations

import pytest

from studies.paper.report.answer import answer, short_answer
from studies.paper.report.study import Page, departs
from studies.paper.report.wording import NOT_RUN
from studies.paper.study.design import label
from studies.paper.study.parts import Study
from studies.paper.study.trial import Trial
from studies.paper.study.trials import COLUMNS
from studies.paper.tests.told import T2, Told, confirmed, page

pytestmark = pytest.mark.quick


def test_without_runs_every_block_says_so() -> None:
    empty = page(lambda trial, seed: None)
    for name, make in empty.blocks.items():
        if name != "state":
            assert NOT_RUN in make().lower(), name
    assert answer(empty).startswith("**Not run yet.**")
    assert short_answer(empty) == answer(empty)
    rows = [line for line in empty.blocks["choices"]().splitlines() if line.startswith("| `")]
    assert len(rows) == sum(len(c.changes) * len(c.arms) for c in empty.study.design.choices)
    assert all(row.endswith(f"| {NOT_RUN} | {NOT_RUN} | – | {NOT_RUN} |") for row in rows)


def test_the_last_round_stands_beside_the_best() -> None:
    text = page(confirmed).blocks["last-or-best"]()
    assert text.startswith("Over 100 rounds.")
    assert "| fedavg | 64.00 ± 1.00 (3) | 64.50 ± 1.00 (3) | 0.50 ± 0.00 (3) | – | – |" in text
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
    text = found.blocks["choices"]()
    assert (
        "| `head=on` | fedavg | 20 | 53.00 ± 1.00 (3) | 51.00 ± 1.00 (3) | +2.00 [+2.00, +2.00] * | raises it |" in text
    )
    assert (
        "| `head=on` | fedssd-0.5 | 20 | 58.00 ± 1.00 (3) | 56.00 ± 1.00 (3) | +2.00 [+2.00, +2.00] * | raises it |"
        in text
    )
    assert "(`--only weight-decay`)" in text
    short = found.blocks["choices-in-short"]()
    more, level = "+2.00 [+2.00, +2.00] * (3): raises it | 20", "+0.00 [-0.00, +0.00] (3): nothing | 20"
    question = "Projection head: for MOON alone, or for every method as in MOON's code"
    assert f"| {question} | `head=on` | {more} | fedssd-0.5 | {more} |\n" in short
    assert f"|  | `weight_decay=0.0005` | {level} | fedssd-0.5 | {level} |\n" in short  # the choice's second
    assert f"| `fedssd.floor=0.0` | – | – | fedssd-0.5 | {level} |\n" in short  # none of FedAvg's
    assert f"| `fedcad.temperature=4.0` | – | – | fedcad | {NOT_RUN} | – |\n" in short
    assert "best round" not in short  # of runs that are confirmed
    assert r"divided by \|D_i\| (Algorithm 1) | `fedssd.normaliser=half` |" in short  # a cell, not three
    lead = found.blocks["lead"]()
    assert "| `head=on` | fedssd-0.5 | 58.00 ± 1.00 (3) | 53.00 ± 1.00 (3) | +5.00 [+5.00, +5.00] * | 20 |" in lead
    # a departure of FedSSD alone is held against FedAvg at the base
    assert "| `fedssd.m_max=1.0` | fedssd | 56.00 ± 1.00 (3) | 51.00 ± 1.00 (3) | +5.00" in lead


def test_choices_on_digits_stand_beside_their_own_base_and_fedavg() -> None:
    """The head adds 2 to FedAvg and takes 1 from FedSSD, 4 ahead at the base; without the floor FedSSD gains 0.5."""

    def says(trial: Trial, seed: int) -> float | None:
        if trial.part != "digits-choices" or trial.label not in ("base", "head=on", "fedssd.floor=0.0"):
            return None
        changes = {("fedavg", "head=on"): 2.0, ("fedssd", "head=on"): -1.0, ("fedssd", "fedssd.floor=0.0"): 0.5}
        return 80.0 + seed + 4.0 * (trial.arm == "fedssd") + changes.get((trial.arm, trial.label), 0.0)

    found = page(says)
    opening, _, _, _, base, *rows = found.blocks["digits-choices"]().splitlines()
    assert opening == "After 20 rounds, dirichlet:0.1."
    assert base == "|  | `base` | 85.50 ± 1.87 (6) % | 89.50 ± 1.87 (6) % | +4.00 [+4.00, +4.00] * |"  # of seeds 3 to 8
    head, floor = (next(row for row in rows if f"| `{name}` |" in row) for name in ("head=on", "fedssd.floor=0.0"))
    more, less = "+2.00 [+2.00, +2.00] * (6): raises it", "-1.00 [-1.00, -1.00] * (6): lowers it"
    assert head.endswith(f"| `head=on` | {more} | {less} | +1.00 [+1.00, +1.00] * |")  # 83 less 82
    half_a_point = "+0.50 [+0.50, +0.50] * (6): raises it"
    assert floor.endswith(f"| `fedssd.floor=0.0` | – | {half_a_point} | +4.50 [+4.50, +4.50] * |")
    assert any(row.endswith(f"| `auxiliary=2` | {NOT_RUN} | {NOT_RUN} | – |") for row in rows)
    assert page(lambda trial, seed: None).blocks["digits-choices"]() == "Not run yet.\n"


def test_reported_columns_stand_beside_the_paper_s() -> None:
    published = {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}

    def says(trial: Trial, seed: int) -> float | None:
        if trial.part == "profile":
            return published[trial.group]
        if trial.part in ("tune", "compose"):
            return 61.0 if trial.arm == "fedssd-decay" else 60.0
        if seed > 5:
            return None  # three seeds, as most methods have
        return 70.0 + 0.1 * seed + (1.5 if "fedssd" in trial.recipe.method else 0.0)

    found = page(says)
    text = found.blocks["report"]()
    assert "**#K = 2** (`--part report --only table2-classes-2`)" in text
    assert "| FedAvg | 70.40 ± 0.10 (3) ⚑ | – | – | – | 49.64 ± 1.64 | – | – |" in text  # 20 points from the published
    assert "| FedAvg | 70.40 ± 0.10 (3) | – | – | – | 70.49 ± 0.23 | – | 100 |" in text  # less than one
    assert text.count("⚑: our FedAvg is more than 1 from the published figure") == len(COLUMNS) - 1
    assert "⚑" not in found.blocks["profile"]()  # as published
    assert "| FedSSD | 71.90 ± 0.10 (3) | +1.50 [+1.50, +1.50] * | – | – | 53.37 ± 1.52 | +3.73 | – |" in text
    assert (
        "| FedSSD, weight outside the square | 71.90 ± 0.10 (3) | +1.50 [+1.50, +1.50] * | +0.00 [-0.00, +0.00] | – "
        in text
    )
    first, *rest = answer(found).split("\n\n")
    assert first.startswith(
        "**On CIFAR-10, with the paper's CNN and ten clients, FedSSD as printed leads FedAvg on δ = 0.5 (+1.50 [+1.50, "
        "+1.50] points; the paper prints +2.89). At M_max = 0.01, tuned on δ = 0.5, it leads FedAvg on every column.** "
    )
    said, lead = answer(found), "+1.50 points, 95 % interval +1.50 to +1.50, 3 seeds"
    assert f"leads FedAvg ({lead})" in first
    assert not any("**" in paragraph for paragraph in rest)
    clear = " | ".join(["+1.50 [+1.50, +1.50] *"] * len(COLUMNS))
    assert f"| M_max = 0.01 as printed, tuned on δ = 0.5 | 3 | {clear} |\n" in said
    assert f"| M_max = 0.01, weight outside the square | 3 | {clear} |\n" in said
    assert "| the paper prints | – | +3.73 | +1.51 | +0.66 | +2.89 | +0.64 |\n" in said  # 53.37 - 49.64 and so on
    assert "the leads that the paper prints are outside all of these intervals." in said
    assert (
        "fedssd-decay, the best with FedSSD, reaches 71.90 ± 0.10 (3) and fedavg-decay, the same without FedSSD, which "
        "is the best without, reaches 70.40 ± 0.10 (3) (the paper's FedSSD: 73.38); "
        f"what of it is FedSSD's, fedssd-decay less fedavg-decay: {lead}." in said
    )
    assert (
        "FedSSD less FedAvg after 100 rounds, with the pipeline chosen on FedAvg, which is the base recipe: points"
        in said
    )
    short = short_answer(found)
    assert f"| M_max = 0.01 as printed, tuned on δ = 0.5 | 3 | {clear} |\n| the paper prints | – | +3.73 | " in short
    assert "outside the square |" not in short
    assert found.blocks["profile"]().count("**chosen**") == 1
    assert found.blocks["tuning"]().count("**chosen**") == len(found.study.design.grids) + len(
        found.study.design.variants
    )
    text = found.blocks["compositions"]()
    assert text.count("**chosen**") == 2
    for role, rival in (("the best with FedSSD", "FedAvg"), ("what of it is FedSSD's", "fedavg-decay")):
        row = (
            f"| fedssd-decay | {role} | `lr_decay=0.97` | 71.90 ± 0.10 (3) | fedssd-decay less {rival} | +1.50 [+1.50,"
        )
        assert row in text
    assert "| M_max = 0.01, tuned on δ = 0.5 | 3 |" in answer(Page(Study(changes={"epochs": "1"}), Told(says)))
    changed = Page(Study(changes={"epochs": "1"}), Told(says)).blocks["report"]()
    assert "| FedSSD | 71.90 ± 0.10 (3) | +1.50 [+1.50, +1.50] * | – | – |\n" in changed
    assert "paper %" not in changed  # which has no such epochs
    assert "paper %" in Page(Study(changes={"device": "cpu"}), Told(says)).blocks["report"]()


def test_another_pipeline_is_reported_beside_the_chosen_one() -> None:
    """The base is as published and FedSSD level with FedAvg there; with the other pipeline it leads by 2."""
    published = {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}
    (other,), chosen = Study().also(), label(Study().candidates()[0])

    def says(trial: Trial, seed: int) -> float | None:
        if trial.part == "profile":
            return published[trial.group] + (0.0 if trial.label == chosen else 1.0)
        if trial.part not in ("tune", "report") or seed > 5:
            return None
        return 70.0 + 0.1 * seed + (2.0 if trial.arm == "fedssd" and trial.pipeline == label(other) else 0.0)

    found = page(says)
    text = found.blocks["report-beside"]()
    command = f"--part report --only table2-classes-2 --pipeline {label(other)}"
    assert f"**#K = 2** (`{command} --reuse results/study/tune.runs.jsonl.gz`)" in text
    assert text.count("| FedSSD | 72.40 ± 0.10 (3) | +2.00 [+2.00, +2.00] * |") == len(COLUMNS)
    leads = " | ".join(["+2.00 [+2.00, +2.00] *"] * len(COLUMNS))
    assert f"| M_max = 0.01, tuned and run with `{label(other)}` | 3 | {leads} |\n" in answer(found)
    assert label(other) not in short_answer(found)
    assert "--pipeline" not in found.blocks["report"]()
    named = Page(found.study.with_pipeline(label(other)), found.results)
    assert named.blocks["report"]() in text
    assert named.blocks["report-beside"]().startswith("None: ")
    assert departs(named.study) == f"Not as the design has it: `--pipeline {label(other)}`.\n"


def test_a_distance_has_its_standard_error() -> None:
    """At home pipelines are 1, 2, … 7 points off, four of them with a standard deviation of 1, the others with none.

    Pooled over the seven, 4 / 7, and over three seeds. Elsewhere the two closest are 2 points off with a standard
    deviation of 3: the squares of 1 and four times 2, each with its error, over 5 columns.
    """
    published = {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}
    home, names = Study().design.base, [label(one) for one in Study().candidates()]

    def says(trial: Trial, seed: int) -> float | None:
        if trial.part != "profile":
            return None
        place = names.index(trial.label)
        if trial.group == home:
            return published[home] + place + 1 + (seed - 1) * (place % 2 == 0)
        return published[trial.group] - 2 + 3 * (seed - 1) if place < 2 else None

    text, less = page(says).blocks["profile"]().split("| less the first pipeline [95 %] |")
    rows = {row.split("`")[1]: row.split("|")[-3:-1] for row in text.splitlines() if "`" in row}
    at_home = (4 / 7 / 3) ** 0.5
    assert [rows[name][0].strip() for name in names] == [f"{off}.00 ± {at_home:.2f}" for off in range(1, 8)]
    error = ((1 * 4 / 7 / 3 + 4 * 4 * 9 / 3) / (1 + 4 * 4) / 5) ** 0.5
    assert rows[names[0]][1].strip() == f"{(17 / 5) ** 0.5:.2f} ± {error:.2f}"
    assert rows[names[2]][1].strip() == "–"
    half = T2 / 3**0.5  # at home the second less the first is 2, 1 and 0
    assert f"| `{names[1]}` | +1.00 [{1 - half:+.2f}, {1 + half:+.2f}] | +0.00 [-0.00, +0.00] |" in less
    assert f"| `{names[2]}` | +2.00 [+2.00, +2.00] * | – | – | – | – |" in less
    assert names[0] not in less


def test_a_variant_stands_below_the_methods_and_says_whether_it_is_ahead_of_fedssd() -> None:
    """On the tuning seeds FedSSD is best at 0.5 with 61, outside the square at 0.01, an edge, with 62, MSE has 60."""
    published = {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}
    best = {"fedssd.m_max=0.5": 61.0, "fedssd.square=outside,fedssd.m_max=0.01": 62.0}

    def says(trial: Trial, seed: int) -> float | None:
        if trial.part == "report":
            return 70.0 + (2.0 if trial.arm == "fedssd-outside" else 0.0) + 0.1 * seed
        return {"profile": published.get(trial.group), "tune": best.get(trial.label, 60.0)}.get(trial.part)

    found = page(says)
    text = found.blocks["tuning"]()
    assert "| FedSSD | `fedssd.m_max=0.5` **chosen** | 61.00 ± 0.00 (3) | – |" in text
    assert "| FedSSD | `fedssd.m_max=0.1` | 60.00 ± 0.00 (3) | -1.00 [-1.00, -1.00] * |" in text
    row = "`fedssd.square=outside,fedssd.m_max=0.01` **chosen**, at the grid's edge | 62.00 ± 0.00 (3) |"
    outside = f"| FedSSD, weight outside the square | {row}"
    assert text.index(outside) > text.index("| FedSSD | `fedssd.m_max=3.0` |")
    assert "`fedssd-outside` ends above FedSSD, each at its best: +1.00 [+1.00, +1.00] *." in text
    assert "`mse` does not end above FedSSD, each at its best: -1.00 [-1.00, -1.00] *." in text
    leads = " | ".join(["+2.00 [+2.00, +2.00] *"] * len(COLUMNS))
    assert f"| M_max = 0.01, weight outside the square | 7 | {leads} |\n" in answer(found)
    assert "MSE, " not in answer(found)


def test_every_seed_that_reports_counts_whichever_trial_it_was_run_for() -> None:
    def says(trial: Trial, seed: int) -> float | None:
        if trial.part == "profile":
            return {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}[trial.group]
        added = {"fedssd": 0.5, "fedssd.m_max=0.5": 1.0}
        return 60.0 + seed + added.get(trial.label, added.get(trial.arm, 0.0))

    found = page(says)
    # the mean of the seeds 3 to 9 is 6, their variance 28 / 6
    row = "| `fedssd.m_max=0.5` | fedssd | 100 | 67.00 ± 2.16 (7) | 66.50 ± 2.16 (7) | +0.50"
    assert row in found.blocks["choices"]()
    alone = "On the seeds 6, 7, 8 and 9 alone, FedSSD leads FedAvg on #K = 2 (+0.50 [+0.50, +0.50]), #K = 5 ("
    assert alone in found.blocks["report"]()
    assert "over 4 seeds.\n" in found.blocks["report"]()
    fewer = Page(Study(reporting=(3, 4, 5)), Told(says))
    assert "| 65.00 ± 1.00 (3) | 64.50 ± 1.00 (3) |" in fewer.blocks["choices"]()
    assert " alone, FedSSD" not in fewer.blocks["report"]()
