"""What a row of the study is compared with: the page's tables and ``--only`` say the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from fedssd.reports.statistics import Rival
from studies.paper.report.evidence import Evidence
from studies.paper.report.row_names import named
from studies.paper.report.study import Page
from studies.paper.study.design import PARTS, Design, label
from studies.paper.study.parts import Study
from studies.paper.study.trial import Trial
from studies.paper.study.trials import BASE, COLUMNS
from studies.paper.tests.told import Says, Told, nothing, page

Place = tuple[str, ...]
Pairs = set[tuple[Place, Place]]
TUNED = "tune"  # grids are compared as a whole: no row of theirs has another beside it
STRENGTHS = ("columns", "digits-columns")  # here neither, but for FedAvg
FIRST, OTHER = (f"head={head},weight_decay=0.0,augment=moon,partial_batch=keep" for head in ("auto", "on"))


def place(trial: Trial) -> Place:
    """Which trial it is, after however many rounds it is looked at."""
    return (trial.part, trial.pipeline, trial.group, trial.label, trial.arm)


def kept(study: Study, trials: Sequence[Trial], *names: str) -> list[Trial]:
    """What ``--only NAME`` leaves of a part's trials, once or more often."""
    return study.with_compared(named(names, trials, study.design), trials)


def told(*missing: str) -> Says:
    """Some accuracy for every trial but those of the parts that are missing.

    FedSSD is best at 0.5 on the base's column and at 0.1 over all, and so reported with both. The best composition
    with FedSSD has SCAFFOLD; the best without is MOON's.
    """
    published = {column.recipe: column.published["fedavg"].accuracy for column in COLUMNS}
    best = {("tune", "fedssd.m_max=0.5"), ("columns", "fedssd.m_max=0.1")}
    ends = {"fedssd+scaffold-decay": 3.0, "moon-decay": 2.0}

    def says(trial: Trial, seed: int) -> float | None:
        if trial.part in missing:
            return None
        if trial.part == "profile":
            return published[trial.group]
        return 60.0 + seed + ((trial.part, trial.label) in best) + ends.get(trial.group, 0.0)

    return says


def paired_on(shown: Page, blocks: Iterable[str], monkeypatch: pytest.MonkeyPatch) -> Pairs:
    """Every two trials of which one of these blocks of a page has the difference."""
    found: Pairs = set()
    against = Evidence.against

    def noted(self: Evidence, ours: Trial, theirs: Trial, *how: Any) -> Rival:
        found.add((place(ours), place(theirs)))
        return against(self, ours, theirs, *how)

    with monkeypatch.context() as patch:
        patch.setattr(Evidence, "against", noted)
        for block in blocks:
            shown.blocks[block]()
    return {(ours, theirs) for ours, theirs in found if ours != theirs}


def taken_along(study: Study) -> Pairs:
    """Every trial of every part, with each of its part that ``--only`` takes along where it is named."""
    found: Pairs = set()
    for part in PARTS:
        trials = [*study.trials(part, Told(told())), *study.optional(part)]
        for trial in trials:
            *beside, _ = study.with_compared([trial], trials)
            found |= {(place(trial), place(other)) for other in beside}
    return found


def test_what_the_page_compares_a_row_with_comes_along_and_nothing_else(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base is that of the screen where it was not confirmed; FedAvg beside a composition is of another part."""
    whole = page(told())
    shown = paired_on(whole, whole.blocks, monkeypatch)
    shown |= paired_on(page(told("confirm")), ["last-or-best"], monkeypatch)
    as_a_whole = {pair for pair in shown if pair[0][0] in STRENGTHS and pair[1][-1] != "fedavg"}
    compared = {(ours, theirs) for ours, theirs in shown - as_a_whole if ours[0] != TUNED}
    apart = {(ours, theirs) for ours, theirs in compared if ours[0] != theirs[0]}
    assert {(ours[0], theirs[0]) for ours, theirs in apart} == {("best", "report")}
    (other,) = study.also()
    chosen, beside = taken_along(study), taken_along(study.with_pipeline(label(other)))
    assert compared - chosen - beside == set()
    assert chosen - compared == set()
    assert {ours[0] for ours, _ in chosen} == set(PARTS) - {TUNED}


@pytest.mark.quick
@pytest.mark.parametrize(
    ("part", "name", "beside"),
    [
        ("screen", "fedcad-temperature", [(BASE, BASE, "fedcad")]),
        ("screen", "fedcad", [(BASE, BASE, "fedavg")]),
        ("screen", "base", []),
        ("profile", OTHER, [(column.recipe, FIRST, "fedavg") for column in COLUMNS]),
        ("profile", FIRST, []),
        ("report", "mse", [(column.recipe, arm, arm) for column in COLUMNS for arm in ("fedavg", "fedssd")]),
        ("report", "fedssd", [(column.recipe, "fedavg", "fedavg") for column in COLUMNS]),
        ("report", "fedavg", []),
        ("columns", "fedssd.m_max=0.1", [(column.recipe, "fedavg", "fedavg") for column in COLUMNS]),
        ("digits-columns", "fedssd.m_max=0.3", [(column.recipe, "fedavg", "fedavg") for column in COLUMNS]),
        ("digits-columns", "fedavg", []),
        ("digits", "fedssd.m_max=0.1", [(column.recipe, "fedavg", "fedavg") for column in COLUMNS]),
        ("report", "table1-cifar10", []),
        ("tune", "mse", []),
        ("compose", "moon-decay", []),
        ("compose", "lr_decay=0.98", []),
        ("compose", "fedssd-decay", [("fedavg-decay", f"lr_decay={v}", "fedavg-decay") for v in (0.97, 0.98, 0.99)]),
    ],
)
def test_what_a_row_is_compared_with_comes_along(
    study: Study, part: str, name: str, beside: list[tuple[str, str, str]]
) -> None:
    trials = study.possible(part)
    found = kept(study, trials, name)
    wanted = [t for t in trials if name in (t.group, t.label, t.arm)]
    assert [(t.group, t.label, t.arm) for t in found if t not in wanted] == beside
    assert found[len(beside) :] == wanted != []


@pytest.mark.quick
def test_the_best_composition_comes_with_the_same_without_fedssd_and_the_best_without(study: Study) -> None:
    trials = study.trials("best", Told(told()))
    assert [t.group for t in trials] == ["fedssd+scaffold-decay", "moon-decay", "scaffold-decay"]
    fedavg = ("report", "table1-cifar10", "fedavg")  # less which all of them are shown
    assert [(t.part, t.group, t.arm) for t in kept(study, trials, "fedssd+scaffold-decay")] == [
        ("best", "moon-decay", "moon-decay"),
        ("best", "scaffold-decay", "scaffold-decay"),
        fedavg,
        ("best", "fedssd+scaffold-decay", "fedssd+scaffold-decay"),
    ]
    assert [(t.part, t.group, t.arm) for t in kept(study, trials, "scaffold-decay")] == [
        fedavg,
        ("best", "scaffold-decay", "scaffold-decay"),
    ]


@pytest.mark.quick
def test_only_keeps_what_is_named_and_its_bases(study: Study) -> None:
    trials = study.trials("screen", Told(nothing))
    assert [(t.group, t.arm) for t in kept(study, trials, "floor")] == [
        (BASE, "fedavg"),
        (BASE, "fedssd-0.5"),
        ("floor", "fedssd-0.5"),
    ]
    assert {t.label for t in kept(study, trials, "weight_decay=1e-05")} == {BASE, "weight_decay=1e-05"}
    by_name = [kept(study, trials, name) for name in ("fedssd", "FedSSD")]  # as a page writes a method
    assert by_name[0] == by_name[1] != []


@pytest.mark.quick
def test_a_departure_of_fedssd_comes_with_fedavg_s_own(study: Study) -> None:
    """And with FedAvg at the base where the departure concerns FedSSD alone."""
    found = kept(study, study.trials("screen", Told(nothing)), "fedssd-0.5")
    theirs = {(t.group, t.label) for t in found if t.arm == "fedavg"}
    ours = {(t.group, t.label) for t in found if t.arm == "fedssd-0.5"}
    assert ours - theirs == {(t.group, t.label) for t in found if t.label.startswith("fedssd.")} != set()
    assert theirs < ours


@pytest.mark.quick
@pytest.mark.parametrize(
    ("part", "written", "name"),
    [
        ("report", "FedSSD, M_max best over all columns", "fedssd-columns"),
        ("digits", "M_max = 1", "fedssd.m_max=1.0"),
        ("digits", "m_max=1.0", "fedssd.m_max=1"),
        ("report", "#k=2", "table2-classes-2"),
        ("best", "lr_decay=0.98", "LR_decay = 0.98"),
        ("digits-columns", "M_max = 0.03", "fedssd.m_max=0.03"),
        ("columns", "M_max = 0.5", "fedssd.m_max=0.5"),
        ("digits-columns", "δ = 10", "table2-dirichlet-10"),
        ("report", "δ = 0.1", "table2-dirichlet-0.1"),
        ("report", "FedSSD, weight outside the square", "fedssd-outside"),
        ("tune", "plain MSE, Table 3's ablation", "mse"),
        ("profile", "#K = 2", "table2-classes-2"),
    ],
)
def test_only_takes_what_a_page_calls_a_row(study: Study, design: Design, part: str, written: str, name: str) -> None:
    trials = study.possible(part)
    assert named([written], trials, design) == named([name], trials, design) != []


@pytest.mark.quick
def test_a_strength_of_the_report_is_the_row_that_has_it(study: Study, design: Design) -> None:
    """FedSSD is tuned to 0.5 and best over all columns at 0.1; before that is known, it may be any of its grid."""
    trials = study.trials("report", Told(told()))
    for written, arm in (("M_max = 0.5", "fedssd"), ("M_max = 0.1", "fedssd-columns")):
        assert named([written], trials, design) == named([arm], trials, design) != []
    assert named(["M_max = 3"], trials, design) == []
    possible = study.possible("report")
    arms = {
        value: {trial.arm for trial in named([f"M_max = {value}"], possible, design, True)} for value in (0.5, 3, 7)
    }
    assert arms == {0.5: {"fedssd", "fedssd-columns"}, 3: {"fedssd"}, 7: set()}


@pytest.mark.quick
def test_several_names_narrow_each_other(study: Study) -> None:
    """One method on one column, beside FedAvg and FedSSD there."""
    trials = study.trials("report", Told(told()))
    found = kept(study, trials, "FedProx", "#K = 2")
    assert {t.group for t in found} == {"table2-classes-2"}
    assert [t.arm for t in found] == ["fedavg", "fedssd", "fedprox"]
    assert kept(study, trials, "#K = 2", "FedProx") == found
    assert kept(study, trials, "FedProx", "MOON") == []
