"""What `fedssd methods` says of each method: computed sizes against arithmetic, stored costs, and nobody left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedssd.cli import main
from fedssd.experiment.footprint import Amount, footprint
from fedssd.methods.registry import LOCALS, SERVERS
from fedssd.report.catalogue import COSTS, as_markdown, catalogue

ROOT = Path(__file__).resolve().parent.parent
ONE, NONE = Amount(1, 0), Amount(0, 0)
# K = 10: FedSSD sends K² numbers, FedCAD K; FedCurv sums F and F⊙w; FedGKD the mean of M = 5 models and their count
EXPECTED = {
    "fedavg": (ONE, ONE, NONE, NONE),
    "fedprox": (ONE, ONE, NONE, NONE),
    "fedcurv": (Amount(3, 0), Amount(3, 0), Amount(2, 0), Amount(2, 0)),
    "moon": (ONE, ONE, Amount(1, 1), NONE),
    "fedntd": (ONE, ONE, NONE, NONE),
    "fedcad": (Amount(1, 10), ONE, NONE, NONE),
    "fedssd": (Amount(1, 100), ONE, NONE, NONE),
    "scaffold": (Amount(2, 0), Amount(2, 0), ONE, ONE),
    "fedgkd": (Amount(2, 0), ONE, NONE, Amount(5, 1)),
}
EXPECTED_SERVERS = {"fednova": (ONE, NONE), "pfnm": (ONE, NONE), "fedma": (Amount(1, 1), Amount(0, 1))}  # down, server


@pytest.mark.parametrize("name", EXPECTED)
def test_a_local_half_s_sizes(name: str) -> None:
    assert footprint(local=name) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED_SERVERS)
def test_a_server_half_s_sizes(name: str) -> None:
    found = footprint(server=name)
    assert (found.down, found.server) == EXPECTED_SERVERS[name]
    assert (found.up, found.client) == (ONE, NONE)


def test_the_sizes_of_a_sum_are_those_of_its_parts() -> None:
    assert footprint(local="fedssd+scaffold") == (Amount(2, 100), Amount(2, 0), ONE, ONE)


@pytest.mark.parametrize(
    ("amount", "text"),
    [((0, 0), "–"), ((1, 0), "1"), ((1, 1), "1 + 1 number"), ((2, 1000), "2 + 1,000 numbers"), ((0, 90), "90 numbers")],
)
def test_amounts_in_words(amount: tuple[int, int], text: str) -> None:
    assert str(Amount(*amount)) == text


def test_every_method_is_in_the_catalogue_and_in_the_table_of_the_methods_page() -> None:
    entries = catalogue()
    names = [entry["name"] for entry in entries]
    assert sorted(names) == sorted({*LOCALS, *SERVERS})
    page = (ROOT / "docs/methods/README.md").read_text(encoding="utf-8")
    assert as_markdown(entries) in page, "run `python benchmarks/cost.py --table` and `make docs`"


def test_the_command_prints_the_stored_cost_and_says_where_it_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    stored = json.loads((ROOT / COSTS).read_text(encoding="utf-8"))
    assert main(["methods", "fedssd", "fedma"]) == 0
    text = capsys.readouterr().out
    assert f"{stored['methods']['fedssd']['step']:.2f} × FedAvg's step" in text
    assert "sends           1 + 100 numbers down, 1 up" in text
    assert "keeps           client –, server 1 number" in text
    assert f"torch {stored['measured_with']['torch']}: {COSTS}" in text
    assert main(["methods", "--json"]) == 0
    facts = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert facts["fedavg"]["half"] == "local, server"
    assert facts["fedavg"]["cost"] == stored["methods"]["fedavg"]
    assert facts["fednova"]["half"] == "server"
