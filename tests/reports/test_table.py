"""One table in every form, against what a reader of that form makes of it."""

from __future__ import annotations

import csv
import doctest
import io
from types import ModuleType
from xml.etree import ElementTree

import pytest

import fedssd
from fedssd.reports import statistics, table
from fedssd.reports.table import WIDTH, Cell, Column, Table, values

pytestmark = pytest.mark.quick

METHOD, SEEDS = Column("method", ("method",), left=True), Column(names=("seeds",))
GAIN = Column("gain,\npoints", ("gain", "half"))
TABLE = Table(
    [METHOD, SEEDS, GAIN],
    [
        [Cell("FedAvg", ("fedavg",)), Cell(values=(3,)), Cell()],
        [Cell("a_b <1>", ("a,b",)), Cell(values=(3,)), Cell("+2.00 ± 0.12 †", (2 / 3, 1e-9), best=True)],
    ],
    ["marked: the best", "95 % of it"],
)


def test_a_terminal() -> None:
    assert TABLE.text().splitlines() == [
        "                   gain,",
        "method            points",
        "───────  ───────────────",
        "FedAvg",
        "a_b <1>  *+2.00 ± 0.12 †",
        "marked: the best",
        "95 % of it",
    ]
    assert TABLE.text(colour=True).splitlines()[4] == "a_b <1>  \x1b[1m+2.00 ± 0.12 †\x1b[0m"


def test_a_table_wider_than_the_terminal_goes_on_below_with_its_first_column() -> None:
    columns = [METHOD, *(Column(f"{number}".rjust(30)) for number in range(7))]
    lines = Table(columns, [[Cell("FedAvg"), *(Cell("x") for _ in range(7))]]).text().splitlines()
    assert [line.split() for line in lines if line.startswith("method")] == [
        ["method", "0", "1"],
        ["method", "2", "3"],
        ["method", "4", "5"],
        ["method", "6"],
    ]
    assert max(map(len, lines)) <= WIDTH
    assert sum(line.startswith("FedAvg") for line in lines) == 4
    assert len(Table([Column("x" * 200)], [[Cell("y")]]).text().splitlines()) == 3  # too wide by itself


def test_markdown() -> None:
    assert TABLE.markdown().splitlines() == [
        "| method | gain, points |",
        "| --- | ---: |",
        "| FedAvg |  |",
        "| a_b <1> | **+2.00 ± 0.12 †** |",
        "",
        "bold: the best; 95 % of it.",
    ]


def test_a_csv_reads_back_as_the_values() -> None:
    rows = list(csv.reader(io.StringIO(TABLE.csv())))
    assert rows == [["method", "seeds", "gain", "half"], ["fedavg", "3", "", ""], ["a,b", "3", "0.6666666667", "1e-09"]]
    assert values("name round", [("a", 1), (None, 2.5)]).csv() == "name,round\na,1\n,2.5\n"


def test_latex() -> None:
    assert TABLE.latex().splitlines() == [
        "% bold: the best",
        "% 95 % of it",
        r"\begin{tabular}{lc}",
        r"\hline",
        r"method & gain, points \\",
        r"\hline",
        r"FedAvg & \\",
        r"a\_b $<$$1$$>$ & \textbf{$+2.00 \pm 0.12$ $^\dagger$} \\",
        r"\hline",
        r"\end{tabular}",
    ]


def test_a_notebook_gets_well_formed_html_that_keeps_no_tag_of_a_name() -> None:
    page = ElementTree.fromstring(f"<div>{TABLE._repr_html_()}</div>")
    cells = [["".join(cell.itertext()) for cell in row] for row in page.iter("tr")]
    assert cells == [["method", "gain, points"], ["FedAvg", ""], ["a_b <1>", "+2.00 ± 0.12 †"]]
    assert [cell.text for cell in page.iter("b")] == ["+2.00 ± 0.12 †"]
    assert [note.text for note in page.iter("p")] == ["bold: the best", "95 % of it"]


@pytest.mark.parametrize("module", [statistics, table], ids=lambda module: module.__name__)
def test_the_examples_print_what_they_say(module: ModuleType) -> None:
    small = {
        "data": "digits",
        "rounds": 1,
        "epochs": 1,
        "clients": 3,
        "auxiliary": 4,
        "model": "mlp",
        "partition": "iid",
    }
    found = doctest.testmod(module, extraglobs={"fedssd": fedssd, "small": small})
    assert (found.failed, found.attempted > 0) == (0, True)
