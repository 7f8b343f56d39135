"""The figures on a method's page: from run folders written by hand, with means a reader can redo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedssd.report.method_numbers import lines_of, numbers_of

pytestmark = pytest.mark.quick
PLAIN = {"augment": "none"}
STRONG = {**PLAIN, "options": {"fedssd": {"m_max": 1.0, "floor": 0.1}}}


@pytest.fixture
def results(tmp_path: Path, write_run: Callable[..., Path]) -> Path:
    """FedAvg at 50 and 70 %, FedSSD 10 and 20 points above; FedNova alone and with FedSSD; a run at another rate."""
    for seed, (plain, ours) in enumerate([(0.5, 0.6), (0.7, 0.9)]):
        write_run(tmp_path / f"a-{seed}", "fedavg", seed, [0.1, plain], PLAIN)
        write_run(tmp_path / f"b-{seed}", "fedssd", seed, [0.1, ours], STRONG)
    write_run(tmp_path / "c-0", "fedavg", 0, [0.1, 0.4], {**PLAIN, "server": "fednova"})
    write_run(tmp_path / "d-0", "fedssd+fedprox", 0, [0.1, 0.5], {**STRONG, "server": "fednova"})
    write_run(tmp_path / "e-0", "fedprox", 0, [0.1, 0.5], {**PLAIN, "lr": 0.5})
    return tmp_path


def rows(name: str, results: Path) -> list[list[str]]:
    """The table's rows without its head, cell by cell."""
    lines = [line for line in numbers_of(name, lines_of(results)).splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[1:]]


def test_means_spreads_and_paired_differences(results: Path) -> None:
    """60 and 90: 75 ± 30/√2. Over FedAvg 10 and 20: 15 ± 10/√2. A half stands after what it was composed of alone."""
    composed = ["fedssd (m_max = 1)+fedprox × fednova", "digits, iid, 2 clients", "2", "50.00", "+0.00", "1"]
    assert rows("fedssd", results) == [
        ["fedssd (m_max = 1)", "digits, iid, 2 clients", "2", "75.00 ± 21.21", "+15.00 ± 7.07", "2"],
        composed,
    ]
    assert rows("fednova", results) == [
        ["fednova", "digits, iid, 2 clients", "2", "40.00", "−10.00", "1"],
        composed,
    ]


def test_fedavg_is_what_nothing_else_has_part_in(results: Path) -> None:
    assert rows("fedavg", results) == [["fedavg", "digits, iid, 2 clients", "2", "60.00 ± 14.14", "–", "2"]]


def test_another_setting_is_not_compared(results: Path) -> None:
    alone, composed = rows("fedprox", results)
    assert alone[4] == "–"  # FedAvg was not run at that rate
    assert composed[4] == "+0.00"


def test_another_split_is_not_compared(results: Path, write_run: Callable[..., Path]) -> None:
    write_run(results / "f-0", "mse", 0, [0.1, 0.9], {**PLAIN, "partition_seed": 7})
    write_run(results / "f-1", "mse", 1, [0.1, 0.9], PLAIN)
    assert [row[4] for row in rows("mse", results)] == ["+20.00"]  # seed 1 alone


def test_what_a_study_varied_is_left_out(results: Path, write_run: Callable[..., Path]) -> None:
    write_run(results / "study" / "f-0", "mse", 0, [0.1, 0.9], PLAIN)
    assert numbers_of("mse", lines_of(results, besides=results / "study")) == "Nothing measured yet.\n"
    assert len(rows("mse", results)) == 1


def test_what_is_not_there_is_said(results: Path) -> None:
    assert numbers_of("krum", lines_of(results)) == "Nothing measured yet.\n"


def test_unfinished_runs_do_not_count_and_diverged_ones_are_named(
    results: Path, write_run: Callable[..., Path]
) -> None:
    for seed, change in enumerate(
        [('"of_rounds": 1', '"of_rounds": 9'), ('"rounds": 1', '"diverged": 1, "rounds": 1')]
    ):
        file = write_run(results / f"g-{seed}", "kl", seed, [0.5], PLAIN) / "summary.json"
        assert change[0] in file.read_text()
        file.write_text(file.read_text().replace(*change))
    assert [row[-1] for row in rows("kl", results)] == ["1, 1 diverged"]
