"""Runs found by their recipes, and the figures of tables, by arithmetic on runs of a few rounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedssd import Recipe
from studies.paper import method_pages, tables
from studies.paper.formats import code, interval, paired, reached, spread, table
from studies.paper.paper import CIFAR10, EXPERIMENTS
from studies.paper.results import Runs

pytestmark = pytest.mark.quick
LATER, EARLIER = "2026-02-01T10:00:00+00:00", "2026-01-01T10:00:00+00:00"
Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("first", "shown"),
    [
        ([3, 5, 4], "4"),
        ([3, 4], "3.5"),
        ([3, None, 5], "5 (2/3)"),
        ([None, None, 5], "> 100 (1/3)"),
        ([5, None], "> 52.5 (1/2)"),
        ([], "–"),
    ],
)
def test_rounds_to_fedavg_s_accuracy_are_a_median(first: list[int | None], shown: str) -> None:
    assert reached(first, 100) == shown


def test_a_difference_is_paired_by_seed() -> None:
    """Gains 1, 2, 3: mean 2, standard error 1/√3, Student's t for two degrees of freedom 4.302653."""
    found = paired({0: 10.0, 1: 20.0, 2: 30.0, 5: 0.0}, {0: 11.0, 1: 22.0, 2: 33.0, 7: 1.0})
    assert interval(found) == f"+2.00 [{2 - 4.302653 / 3**0.5:+.2f}, {2 + 4.302653 / 3**0.5:+.2f}]"
    assert interval(paired({0: 1.0}, {0: 0.998})) == "+0.00"  # no sign on what is written as nought
    assert interval(paired({0: 1.0}, {1: 1.0})) == "–"
    assert interval(paired({0: 1.0, 1: 2.0}, {0: 2.0, 1: 3.01})).endswith("] *")


def test_a_spread_is_a_mean_and_a_standard_deviation() -> None:
    assert (spread([1.0, 2.0, 3.0]), spread([1.0]), spread([])) == ("2.00 ± 1.00 (3)", "1.00 (1)", "not run yet")
    assert spread([100.0, 100.4], 2) == "100 ± 0.3 (2)"


def test_a_bar_does_not_end_a_cell() -> None:
    assert table(("a", "b"), [["|D|", code("x")]]).splitlines()[2] == r"| \|D\| | `x` |"


@pytest.fixture
def write(tmp_path: Path, write_run: Write) -> Callable[..., Recipe]:
    """Write a run of Table 1's CIFAR-10 with these accuracies, over as many rounds."""

    def one(name: str, method: str, seed: int, accuracies: list[float], started: str = LATER, **keys: object) -> Recipe:
        recipe = CIFAR10.setting(method=method, rounds=len(accuracies), **keys).replace(seed=seed)
        plain = {key: value for key, value in vars(recipe.resolved()).items() if key in Recipe.__dataclass_fields__}
        folder = write_run(tmp_path / name, method, seed, accuracies, plain)
        header, rest = (folder / "rounds.jsonl").read_text().split("\n", 1)
        (folder / "rounds.jsonl").write_text(json.dumps(json.loads(header) | {"started": started}) + "\n" + rest)
        return recipe

    return one


def test_the_first_rounds_of_a_longer_run_are_the_shorter_run(tmp_path: Path, write: Callable[..., Recipe]) -> None:
    longer = write("a", "fedavg", 0, [0.1, 0.2, 0.3, 0.4])
    runs = Runs([tmp_path])
    assert runs.percent(longer.replace(rounds=3), [0, 1]) == {0: pytest.approx(30.0)}
    assert runs.find(longer.replace(rounds=5)) is None
    assert runs.find(longer.replace(rounds=3, evaluate_every=2)) is None  # the last round of that one is evaluated
    shorter = write("b", "fedavg", 0, [0.1, 0.2, 0.35])
    assert Runs([tmp_path]).percent(shorter, [0]) == {0: pytest.approx(35.0)}  # as it was run
    assert Runs([tmp_path]).percent(longer, [0], "late") == {0: pytest.approx(25.0)}


def test_of_a_run_made_twice_the_one_begun_last_counts(tmp_path: Path, write: Callable[..., Recipe]) -> None:
    recipe = write("a", "fedavg", 0, [0.5], LATER)
    write("b", "fedavg", 0, [0.7], EARLIER)
    runs = Runs([tmp_path])
    assert runs.percent(recipe, [0]) == {0: pytest.approx(50.0)}
    (line,) = method_pages.lines_of(Runs([tmp_path / "b", tmp_path / "a"]).newest_last)
    assert list(line.percent.values()) == [pytest.approx(50.0)]


def test_a_column_of_the_paper(tmp_path: Path, write: Callable[..., Recipe]) -> None:
    """FedAvg ends at 60 and 70 %, FedSSD at 63 and 71: a gain of 2 with t(1) = 12.706 and a standard error of 1."""
    for seed, end in ((0, 0.60), (1, 0.70)):
        write(f"fedavg-{seed}", "fedavg", seed, [0.5, end, end])
        write(f"fedssd-{seed}", "fedssd", seed, [0.5, 0.6, end + (0.03 if seed == 0 else 0.01)])
    base = CIFAR10.setting(rounds=3)
    fedavg, *_, ours = tables.cells(CIFAR10, base, Runs([tmp_path]))
    assert interval(ours.gain) == f"+2.00 [{2 - 12.7062:+.2f}, {2 + 12.7062:+.2f}]"
    assert ours.reaching == [2, 3]
    assert (round(ours.difference or 0, 2), ours.stands_out) == (round(67 - 73.38, 2), True)  # both spreads are smaller
    assert (fedavg.difference, fedavg.far_off) == (pytest.approx(65 - 70.49), True)
    assert ours.printed_gain == pytest.approx(73.38 - 70.49)
    shown = tables.section(EXPERIMENTS["table1"], Runs([tmp_path]))
    assert (
        "Not run yet: CIFAR-10 (`table1-cifar10`), CIFAR-100 (`table1-cifar100`)" in shown
    )  # these have 3 rounds of 100


def test_kernels_are_apart(tmp_path: Path, write: Callable[..., Recipe]) -> None:
    recipe = write("a", "fedavg", 0, [0.5], kernels="off")
    assert Runs([tmp_path]).find(recipe) is not None
    assert Runs([tmp_path]).find(recipe.replace(kernels="on")) is None
