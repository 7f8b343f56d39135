"""Run folders that commit db18e6d wrote, in tests/data/old_runs: every later commit reads, reports and resumes them.

They were made in the folder that holds their samples, the second one ended by SIGKILL when its record had four rounds:

    fedssd run --data samples.npz --model cnn-small --clients 3 --partition iid --auxiliary 4 --rounds 6 --epochs 4 \
        --batch 8 --lr 0.05 --engine reference --method fedssd --fedssd.m-max 1 --checkpoint-every 6 --out finished
    fedssd run (the same up to the engine) --participation 0.67 --method scaffold --checkpoint-every 3 --out interrupted
"""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedssd.cli import main

OLD = Path(__file__).parent.parent / "data" / "old_runs"
ROUNDING = 1e-3  # of the weights' norm: another processor sums in another order


@pytest.fixture(autouse=True)
def old_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")


def fedssd(*words: str) -> None:
    assert main([*words]) == 0


def lines(folder: str) -> list[dict[str, Any]]:
    """A record's rounds, but for how long they took."""
    found = [json.loads(line) for line in Path(folder, "rounds.jsonl").read_text().splitlines()[1:]]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


def vector(file: str) -> Any:
    arrays = load_file(file)
    return np.concatenate([arrays[key].ravel() for key in sorted(arrays)])


def distance(one: str, other: str) -> float:
    """How far the weights of two runs are apart, for their norm."""
    left, right = (vector(f"{folder}/weights.safetensors") for folder in (one, other))
    return float(np.linalg.norm(left - right) / np.linalg.norm(right))


def recipe() -> dict[str, Any]:
    return tomllib.loads(Path("finished", "recipe.toml").read_text())


def test_a_finished_run_is_left_as_it_is() -> None:
    """But for keys that a recipe has gained since, and the header's list of resumptions."""
    before, asked, weights = lines("finished"), recipe(), Path("finished/weights.safetensors").read_bytes()
    fedssd("resume", "finished", "--quiet")
    assert lines("finished") == before
    assert {key: recipe()[key] for key in asked} == asked
    assert Path("finished/weights.safetensors").read_bytes() == weights


def test_it_is_extended() -> None:
    kept = lines("finished")
    fedssd("resume", "finished", "--rounds", "7", "--quiet")
    fedssd("run", "--recipe", "finished/recipe.toml", "--rounds", "7", "--out", "whole", "--quiet")
    assert lines("finished")[:6] == kept
    assert len(lines("finished")) == 7
    assert distance("finished", "whole") < ROUNDING


def test_its_recipe_means_the_same_run() -> None:
    fedssd("run", "--recipe", "finished/recipe.toml", "--out", "again", "--quiet")
    then, now = (json.loads(Path(folder, "summary.json").read_text()) for folder in ("finished", "again"))
    assert {key: now[key] for key in ("recipe_hash", "split_hash", "method", "rounds", "bytes_up", "bytes_down")} == {
        key: then[key] for key in ("recipe_hash", "split_hash", "method", "rounds", "bytes_up", "bytes_down")
    }
    assert now["final"]["acc"] == pytest.approx(then["final"]["acc"], abs=1 / 18)  # one of 18 test samples
    assert distance("again", "finished") < ROUNDING


def test_the_finished_one_is_reported_and_the_other_named(capsys: pytest.CaptureFixture[str]) -> None:
    fedssd("report", "finished", "interrupted", "--out", "page.html")
    curve = [round(1e4 * line["global"]["acc"]) for line in lines("finished")]
    assert json.dumps(curve, separators=(",", ":")) in Path("page.html").read_text()
    assert "interrupted is still running or was interrupted" in capsys.readouterr().err


def test_the_interrupted_run_goes_on_from_its_checkpoint() -> None:
    kept = lines("interrupted")
    assert len(kept) == 4
    fedssd("resume", "interrupted", "--quiet")
    fedssd("run", "--recipe", "interrupted/recipe.toml", "--out", "whole", "--quiet")
    assert lines("interrupted")[:3] == kept[:3]  # the fourth had no checkpoint, and ran again
    assert [line["round"] for line in lines("interrupted")] == [1, 2, 3, 4, 5, 6]
    assert [line["clients"] for line in lines("interrupted")] == [line["clients"] for line in lines("whole")]
    assert distance("interrupted", "whole") < ROUNDING
    assert distance("interrupted", "finished") > 100 * ROUNDING  # another run is farther away


def test_a_checkpoint_of_another_recipe_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--recipe", "interrupted/recipe.toml", "--lr", "0.1", "--out", "interrupted", "--resume", "--quiet"]
    assert main(words) == 2
    assert "lr was 0.05 and is 0.1" in capsys.readouterr().err
    assert len(lines("interrupted")) == 4
