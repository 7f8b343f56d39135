"""Pages show what results/ hold: every table builds, and a table or number that is out of date is seen."""

from __future__ import annotations

import re
from math import sqrt
from statistics import fmean, stdev

import pytest
from scipy import stats

import fedssd
from fedssd import UserError
from studies.paper import choose
from studies.paper.pages import MARK, Pages, pages, stale
from studies.paper.results import PACKS, ROOT, Runs

DIGITS = PACKS / "study" / "digits-columns.runs.jsonl.gz"
KEY = "digits-columns/table2-classes-2/fedssd.m_max=0.3/gain"
MARKED = f"it is <!-- n: {KEY} -->+9.99<!-- /n --> points"


@pytest.fixture(scope="module")
def few() -> Pages:
    """Pages that know the runs of one part alone."""
    return Pages(Runs([DIGITS]))


@pytest.fixture(scope="module")
def every() -> Pages:
    return Pages(Runs([PACKS]))


def test_a_mark_out_of_date_is_seen_and_refreshed(few: Pages) -> None:
    """Against the mean of the last five rounds, seed by seed, with scipy's Student's t."""
    ends: dict[str, dict[int, float]] = {"fedavg": {}, "fedssd": {}}
    for run in fedssd.read_runs(DIGITS):
        strength = run.recipe.options.get("fedssd", {}).get("m_max", 0.3)
        if run.recipe.partition == "classes:2" and strength == 0.3:
            late = [100 * (one.accuracy or 0.0) for one in run.rounds[-5:]]
            ends[run.recipe.method][run.recipe.seed] = fmean(late)
    assert ends["fedavg"].keys() == ends["fedssd"].keys() == {100, 101, 102}
    gains = [ends["fedssd"][seed] - ends["fedavg"][seed] for seed in ends["fedavg"]]
    half = stats.t.ppf(0.975, len(gains) - 1) * stdev(gains) / sqrt(len(gains))
    expected = f"{fmean(gains):+.2f} [{fmean(gains) - half:+.2f}, {fmean(gains) + half:+.2f}]"
    page = ROOT / "page.md"
    fresh = stale(few, {page: MARKED})
    assert re.findall(r"-->(.*)<!-- /n", fresh[page]) == [expected]
    assert stale(few, fresh) == {}


def test_a_table_out_of_date_is_seen(few: Pages) -> None:
    page, text = ROOT / "page.md", "<!-- study: digits-columns -->\n| old |\n<!-- end of table -->\n"
    fresh = stale(few, {page: text})
    assert "| old |" not in fresh[page]
    assert stale(few, fresh) == {}
    digit = re.sub(r"12\.20", "12.21", fresh[page])
    assert stale(few, {page: digit}) == fresh


@pytest.mark.parametrize(
    "text",
    [
        "<!-- study: nothing -->\n<!-- end of table -->",
        MARKED.replace("m_max", "mmax"),
        MARKED.replace("digits-c", "c-"),
    ],
)
def test_what_the_study_does_not_have_is_refused(few: Pages, text: str) -> None:
    with pytest.raises(UserError, match=r"nothing|mmax|unknown part 'c-olumns'"):
        few.rendered(text)


def test_pages_mark_few_numbers() -> None:
    assert sum(len(MARK.findall(page.read_text(encoding="utf-8"))) for page in pages()) <= 40


@pytest.mark.slow
def test_tables_show_what_results_hold(every: Pages) -> None:
    assert [str(page.relative_to(ROOT)) for page in stale(every)] == [], "run `make docs`"


@pytest.mark.slow
def test_every_table_builds_from_the_packs(every: Pages) -> None:
    for name in every.tables:
        assert re.search(r"^\|[ :]?-", every.table(name), re.MULTILINE) or "figure-dist" in name, name


@pytest.mark.slow
def test_chosen_is_what_the_rules_give(every: Pages) -> None:
    evidence = every.evidence
    assert choose.choices(evidence.study, evidence.mean) == evidence.study.chosen
