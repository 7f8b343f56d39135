"""What `fedssd methods` says of each method: computed sizes against arithmetic, stored costs, and nobody left out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedssd.cli import main
from fedssd.methods.registry import LOCALS, SERVERS
from fedssd.reports.methods import COSTS, Amount, as_markdown, catalogue, footprint, traffic_as_markdown

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
    "fedlc": (ONE, ONE, NONE, NONE),
}
EXPECTED_SERVERS = {  # down, server
    "fednova": (ONE, NONE),
    "pfnm": (ONE, NONE),
    "fedma": (Amount(1, 1), Amount(0, 1)),
    "fedavgm": (ONE, ONE),
    "fedyogi": (ONE, Amount(2, 0)),
}


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


CNN = 4 * 62_006  # bytes
MOON_CNN = CNN + 4 * (84 * 85 + 85 * 256 + 257 * 10 - 85 * 10)  # 84 → 84 → 256 → 10 in place of 84 → 10
SENT = {  # down, up, and both beside FedAvg
    "fedavg": (CNN, CNN, "1×"),
    "fedcurv": (3 * CNN, 3 * CNN, "3×"),
    "moon": (MOON_CNN, MOON_CNN, "1.4938×"),
    "fedcad": (CNN + 40, CNN, "1.0001×"),
    "fedssd": (CNN + 400, CNN, "1.0008×"),
    "scaffold": (2 * CNN, 2 * CNN, "2×"),
    "fedgkd": (2 * CNN, CNN, "1.5×"),
    "fd": (440, 440, "1/564"),
    "fedmd": (25_600, 25_600, "1/10"),  # 64 samples of each of ten classes, ten numbers each
    "cronus": (25_600, 25_600, "1/10"),
    "fedma": (CNN + 4, CNN, "1×"),
}


def test_the_table_of_bytes_has_what_differs_from_fedavg_beside_what_the_paper_says() -> None:
    table = traffic_as_markdown()
    _, _, *lines = table.splitlines()
    found = {name: cells for name, *cells in (line.strip("| ").split(" | ") for line in lines if line.startswith("|"))}
    assert {name: tuple(cells[:3]) for name, cells in found.items()} == {
        name: (f"{down:,}", f"{up:,}", beside) for name, (down, up, beside) in SENT.items()
    }
    assert found["scaffold"][3] == "2×"
    assert found["fedcurv"][3] == "2.5× (related work), 2× (experiments)"
    same = re.findall(r"[a-z-]+", table.partition("The same bytes as FedAvg: ")[2].partition(".")[0])
    assert sorted([*same, *found]) == sorted({*LOCALS, *SERVERS})
    page = (ROOT / "docs/methods/README.md").read_text(encoding="utf-8")
    assert table in page, "run `python benchmarks/cost.py --table` and `make docs`"


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
