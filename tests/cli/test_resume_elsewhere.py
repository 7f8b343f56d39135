"""``fedssd resume`` on folders that something else goes on with: one line that names the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedssd.cli import main
from fedssd.flower.app import APP

pytestmark = pytest.mark.quick
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def refused(capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)

    def line(*words: str) -> str:
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert main(list(words)) == 2
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        return printed.err.strip()

    return line


def of_flower(folder: Path) -> None:
    """Line 0 as a federation's server writes it."""
    header, rest = (folder / "rounds.jsonl").read_text().split("\n", 1)
    (folder / "rounds.jsonl").write_text(json.dumps(json.loads(header) | {"engine": "flower"}) + "\n" + rest)


@pytest.mark.parametrize(
    "words", [["resume", "lab/runs/federation"], ["run", "--resume", "--out", "lab/runs/federation"]]
)
def test_a_federation_s_run(
    tmp_path: Path, write_run: Callable[..., Path], refused: Callable[..., str], words: list[str]
) -> None:
    of_flower(write_run(tmp_path / "lab" / "runs" / "federation", "fedavg", 0, [0.5], {"rounds": 3}))
    (tmp_path / "lab" / APP).write_text("")
    said = refused(*words)
    assert "is a federation's run: go on with " in said
    assert said.endswith("federation run lab --resume lab/runs/federation")


def test_a_federation_s_run_away_from_its_app(
    tmp_path: Path, write_run: Callable[..., Path], refused: Callable[..., str]
) -> None:
    of_flower(write_run(tmp_path / "copied", "fedavg", 0, [0.5], {"rounds": 3}))
    assert refused("resume", "copied").endswith("federation run APP --resume copied")


def test_a_federation_s_app(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "lab").mkdir()
    for name in (APP, "recipe.toml"):
        (tmp_path / "lab" / name).write_text("")
    assert refused("resume", "lab").endswith("federation run lab --resume lab/runs/federation")


def test_a_reproduction(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "paper" / "under-way" / "batch").mkdir(parents=True)
    assert refused("resume", "paper").endswith("`studies.paper` or `fedssd bench`: the same command goes on with it")


def test_a_folder_of_runs_and_a_slip(
    tmp_path: Path, write_run: Callable[..., Path], refused: Callable[..., str]
) -> None:
    write_run(tmp_path / "runs" / "digits-fedssd-0", "fedssd", 0, [0.5])
    assert refused("resume", "runs").endswith("name one of those in it, runs/digits-fedssd-0")
    assert refused("resume", "runs/digits-fedsd-0").endswith("not there: did you mean runs/digits-fedssd-0?")
