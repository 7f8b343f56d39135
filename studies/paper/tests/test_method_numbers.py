"""The figures on a method's page: from run folders written by hand, with means a reader can redo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from studies.paper.report.method_numbers import lines_of, numbers_of

pytestmark = pytest.mark.quick
PLAIN = {"augment": "none"}
PLACE = ["digits, iid, 2 clients, 1 epoch", "one for each seed", "2"]
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
    """The table's rows without head and rule, cell by cell."""
    lines = [line for line in numbers_of(name, lines_of(results)).splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def test_means_spreads_and_paired_differences(results: Path) -> None:
    """60 and 90: 75 ± 30/√2. Over FedAvg 10 and 20: 15, and t of one degree, 12.7062, times 10/2 to each side."""
    composed = ["fedssd (m_max = 1)+fedprox × fednova", *PLACE, "50.00", "+0.00", "1"]
    gain = "+15.00 [-48.53, +78.53]"
    assert rows("fedssd", results) == [["fedssd (m_max = 1)", *PLACE, "75.00 ± 21.21", gain, "2"], composed]
    assert rows("fednova", results) == [["fednova", *PLACE, "40.00", "-10.00", "1"], composed]


def test_fedavg_is_what_nothing_else_has_part_in(results: Path) -> None:
    assert rows("fedavg", results) == [["fedavg", *PLACE, "60.00 ± 14.14", "–", "2"]]


def test_another_setting_is_not_compared(results: Path) -> None:
    alone, composed = rows("fedprox", results)
    assert alone[5] == "–"  # FedAvg was not run at that rate
    assert composed[5] == "+0.00"


def test_splits_of_their_own_and_a_shared_one_are_different_lines(
    results: Path, write_run: Callable[..., Path]
) -> None:
    """FedAvg with seeds 0 and 1 has splits 0 and 1 at 50 and 70 %; on split 1 seed 0 has 90, seed 1 the same 70."""
    write_run(results / "f-0", "fedavg", 0, [0.1, 0.9], {**PLAIN, "partition_seed": 1})
    write_run(results / "f-1", "mse", 0, [0.1, 0.8], {**PLAIN, "partition_seed": 1})
    write_run(results / "f-2", "mse", 1, [0.1, 0.9], PLAIN)
    assert [(row[2], row[4], row[6]) for row in rows("fedavg", results)] == [
        ("one for each seed", "60.00 ± 14.14", "2"),
        ("number 1 for all", "80.00 ± 14.14", "2"),
    ]
    (mse,) = rows("mse", results)  # seed 1's own split is the shared one, so that it says nothing beside it
    assert (mse[2], mse[4], mse[6]) == ("number 1 for all", "85.00 ± 7.07", "2")
    assert mse[5].startswith("+5.00 [")  # −10 and +20


def test_a_split_that_fedavg_was_not_run_on_is_not_compared(results: Path, write_run: Callable[..., Path]) -> None:
    write_run(results / "f-0", "mse", 0, [0.1, 0.9], {**PLAIN, "partition_seed": 7})
    write_run(results / "f-1", "mse", 1, [0.1, 0.9], PLAIN)
    assert [(row[2], row[5]) for row in rows("mse", results)] == [
        ("number 7 for all", "–"),
        ("one for each seed", "+20.00"),
    ]


def test_a_longer_fedavg_stands_for_a_shorter_one(results: Path, write_run: Callable[..., Path]) -> None:
    """After one round FedAvg has 10 %; a run of one round goes before it, and a shorter one stands for nothing."""
    write_run(results / "f-0", "mse", 0, [0.3], PLAIN)
    write_run(results / "f-1", "mse", 0, [0.1, 0.2, 0.3], PLAIN)
    assert [(row[3], row[5]) for row in rows("mse", results)] == [("1", "+20.00"), ("3", "–")]
    write_run(results / "f-2", "fedavg", 0, [0.25], PLAIN)
    assert [(row[3], row[5]) for row in rows("mse", results)] == [("1", "+5.00"), ("3", "–")]


def test_other_epochs_are_another_line_and_say_how_many(results: Path, write_run: Callable[..., Path]) -> None:
    write_run(results / "f-0", "mse", 0, [0.1, 0.9], {**PLAIN, "epochs": 3})
    assert [(row[1], row[5]) for row in rows("mse", results)] == [("digits, iid, 2 clients, 3 epochs", "–")]


def test_other_kernels_are_another_line(results: Path, write_run: Callable[..., Path]) -> None:
    write_run(results / "f-0", "mse", 0, [0.1, 0.9], {**PLAIN, "kernels": "off"})
    assert [(row[1], row[5]) for row in rows("mse", results)] == [("digits, iid, 2 clients, 1 epoch, kernels off", "–")]


def test_a_head_that_was_asked_for_is_another_line_beside_a_fedavg_of_its_own(
    results: Path, write_run: Callable[..., Path]
) -> None:
    """Seed 0 of FedAvg has 50 % without a head, 80 with one; MOON brings its own, and goes beside the one without."""
    write_run(results / "f-0", "fedavg", 0, [0.1, 0.8], {**PLAIN, "head": "on"})
    write_run(results / "f-1", "mse", 0, [0.1, 0.9], {**PLAIN, "head": "on"})
    write_run(results / "f-2", "mse", 0, [0.1, 0.9], {**PLAIN, "head": "off"})
    write_run(results / "f-3", "moon", 0, [0.1, 0.7], {**PLAIN, "head": "on"})
    write_run(results / "f-4", "moon", 1, [0.1, 0.7], PLAIN)  # auto: the same head, the same line
    assert [(row[0], row[4]) for row in rows("fedavg", results)] == [
        ("fedavg", "60.00 ± 14.14"),
        ("fedavg, head on", "80.00"),
    ]
    assert [(row[0], row[5]) for row in rows("mse", results)] == [("mse, head on", "+10.00"), ("mse", "+40.00")]
    (moon,) = rows("moon", results)
    assert (moon[0], moon[6]) == ("moon", "2")
    assert moon[5].startswith("+10.00 [")  # 20 and 0


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
