"""What the paper prints, by figures that stand elsewhere in it or on our pages, and its settings."""

from __future__ import annotations

import re

import pytest

from fedssd import UserError
from studies.paper.paper import EXPERIMENTS, METHODS, NAMES, SPLITS, experiment
from studies.paper.results import ROOT

pytestmark = pytest.mark.quick
COLUMNS = {column.recipe: column for one in reversed(EXPERIMENTS.values()) for column in one.columns}  # tables last


def test_the_columns_of_large_data_are_those_of_the_methods_page() -> None:
    """Typed there by hand, once more: accuracy ± spread, and T."""
    page = (ROOT / "docs" / "methods" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (\w+) \| ([\d.]+) ± ([\d.]+) \| (\S+) \| ([\d.]+) ± ([\d.]+) \| (\S+) \|$", page, re.MULTILINE
    )
    assert [row[0] for row in rows] == [NAMES[method] for method in METHODS]
    for method, (_, *cells) in zip(METHODS, rows, strict=True):
        for name, shown in (("table1-cifar100", cells[:3]), ("table1-tiny-imagenet", cells[3:])):
            printed = COLUMNS[name].published[method]
            assert [f"{printed.accuracy:.2f}", f"{printed.spread:.2f}", str(printed.rounds or "–")] == shown


def test_fedssd_leads_every_column_of_table_2_as_the_paper_says() -> None:
    leads = [column.published["fedssd"].accuracy - column.published["fedavg"].accuracy for column in SPLITS]
    assert [round(lead, 2) for lead in leads] == [3.73, 1.51, 0.66, 2.89, 0.64]
    assert all(max(column.published, key=lambda name: column.published[name].accuracy) == "fedssd" for column in SPLITS)


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_a_setting_is_what_its_title_says(column: object) -> None:
    recipe, title = column.setting(), column.title  # type: ignore[attr-defined]
    for pattern, said in (
        (r"#K = (\d)", lambda found: recipe.partition == f"classes:{found}"),
        (r"δ = ([\d.]+)", lambda found: recipe.partition == f"dirichlet:{found}"),
        (r"C = ([\d.]+)", lambda found: (recipe.participation, recipe.clients) == (float(found), 100)),
        (r"E = (\d+)", lambda found: recipe.epochs == int(found)),
        (
            r"α = ([\d.]+)",
            lambda found: recipe.options["fedssd"]["m_max"] == recipe.options["kl"]["alpha"] == float(found),
        ),
    ):
        if found := re.search(pattern, title):
            assert said(found[1])
    assert (recipe.batch, recipe.lr, recipe.momentum, recipe.partition_seed) == (64, 0.01, 0.9, 1)
    assert recipe.rounds == (30 if recipe.data == "tiny-imagenet" else 100)


@pytest.mark.parametrize(
    ("data", "strengths"),
    [
        ("cifar10", {"fedprox": 0.01, "fedcurv": 0.001, "moon": 5.0, "fedssd": 0.01}),
        ("cifar100", {"fedprox": 0.001, "fedcurv": 0.0001, "moon": 1.0, "fedssd": 0.001}),
    ],
)
def test_methods_have_the_strengths_the_paper_prints(data: str, strengths: dict[str, float]) -> None:
    for column in COLUMNS.values():
        if column.setting().data == data and not column.recipe.startswith("table3"):
            own = column.setting().options
            assert {method: next(iter(own[method].values())) for method in strengths} == strengths, column.recipe


def test_small_is_the_same_comparison_on_digits() -> None:
    column = COLUMNS["participation-cifar10-0.1"]
    recipe = column.setting(small=True, method="fedssd")
    assert (recipe.data, recipe.partition, recipe.participation) == ("digits", "dirichlet:0.5", 0.1)
    assert (recipe.clients, recipe.epochs, recipe.rounds) == (20, 4, 8)  # 10^0.6 is 3.98
    assert recipe.options["fedssd"] == {"m_max": 0.3}  # the strength of its own data
    assert COLUMNS["table3-alpha-0.5"].setting(small=True).options["fedssd"] == {
        "m_max": 0.5
    }  # what the column is about


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(UserError, match="unknown table or figure 'table4': expected one of table1, "):
        experiment("table4")
