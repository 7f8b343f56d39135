"""``python -m studies.paper``: it trains what is missing and nothing twice, and names what was never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.paper import __main__ as program
from studies.paper.paper import METHODS
from studies.paper.results import Runs

Captured = pytest.CaptureFixture[str]
ONE = ["table3", "--scale", "small", "--only", "alpha = 0.1", "--methods", "KL", "--seeds", "1", "--rounds", "1"]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study whose results are a folder of its own."""
    monkeypatch.setattr(program, "PACKS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    return tmp_path / "out"


def test_what_is_missing_is_trained_once(alone: Path, capsys: Captured) -> None:
    words = [*ONE, "--out", str(alone), "--workers", "1"]
    assert program.main(["plan", *words]) == 0
    assert "2 runs to go" in capsys.readouterr().out
    assert program.main(["run", *words]) == 0
    runs = Runs([alone]).newest_last
    assert {(run.recipe.data, run.recipe.method, run.recipe.rounds) for run in runs} == {
        ("digits", "fedavg", 1),
        ("digits", "kl", 1),
    }
    written = {path: path.stat().st_mtime_ns for path in alone.rglob("rounds.jsonl")}
    assert program.main(["run", *words]) == 0
    assert {path: path.stat().st_mtime_ns for path in alone.rglob("rounds.jsonl")} == written
    capsys.readouterr()
    assert program.main(["plan", *words]) == 0
    assert "0 runs to go" in capsys.readouterr().out


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (["--part", "report", "--only", "FedProx"], 2 * 5),  # with FedAvg on each column
        (["--part", "report", "--only", "fedssd", "--only", "#K = 2"], 2),
        (["--part", "screen", "--only", "weight_decay=1e-05"], 4),  # two arms and their bases
        (["--part", "screen", "--only", "head"], 4),
        (["--part", "best", "--only", "scaffold-decay"], 3),
    ],
)
def test_a_plan_names_what_goes_by_a_name_and_what_it_is_compared_with(
    alone: Path, capsys: Captured, words: list[str], rows: int
) -> None:
    assert program.main(["plan", "study", *words, "--out", str(alone)]) == 0
    head, *lines, last = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["of", "column"]
    assert len(lines) == rows
    assert all(line.endswith("never run") for line in lines)
    assert last.endswith("runs to go")


@pytest.mark.quick
def test_a_plan_of_a_table(alone: Path, capsys: Captured) -> None:
    assert program.main(["plan", "table1", "--dataset", "cifar100", "--out", str(alone)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines[1:]] == list(METHODS)
    assert last == "21 runs to go"


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["plan", "table4"], "unknown table or figure 'table4'"),
        (["plan", "table1", "--only", "E = 5"], "nothing of table1 goes by these names: E = 5"),
        (["run", "table1", "--methods", "fedsd"], "--methods expects some of fedavg, "),
    ],
)
def test_mistakes_are_one_line(alone: Path, capsys: Captured, words: list[str], complaint: str) -> None:
    assert program.main([*words, "--out", str(alone)]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert not alone.exists()
