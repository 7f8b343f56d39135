"""Comparisons and sweeps go on: what is finished is not run again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from killing import outcome
from stopping import (
    RUN,
    Captured,
    folder_with_samples,  # noqa: F401  # a fixture that all use
    one_line,
    without_matrices,
)

from fedssd.cli import main
from fedssd.sweeps import workers

COMPARE = [
    "compare",
    *RUN[:-4],
    "--checkpoint-every",
    "1",
    "--methods",
    "fedavg,moon",
    "--seeds",
    "0,1",
    "--workers",
    "1",
]


def test_finished_runs_are_not_run_again_and_missing_ones_run(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*COMPARE, "--out", "whole", "--quiet"]) == 0
    table = capsys.readouterr().out.splitlines()[:6]
    expected = {run.name: outcome(run) for run in Path("whole").iterdir() if run.is_dir()}
    shutil.rmtree("whole/moon-0")
    ran: list[str] = []
    plain = workers.run_together

    def noted(recipes: Any, outs: list[Path], *rest: Any, **keys: Any) -> Any:
        ran.extend(out.name for out in outs)
        return plain(recipes, outs, *rest, **keys)

    monkeypatch.setattr(workers, "run_together", noted)
    assert main(["resume", "whole", "--workers", "1", "--quiet"]) == 0
    assert ran == ["moon-0"]
    assert capsys.readouterr().out.splitlines()[:6] == table
    assert {run.name: outcome(run) for run in Path("whole").iterdir() if run.is_dir()} == expected
    assert main(["resume", "whole", "--rounds", "8", "--workers", "1", "--quiet", "--json"]) == 0
    assert [run["rounds"] for run in json.loads(capsys.readouterr().out)["runs"]] == [8] * 4
    assert len(ran) == 1 + 4


def test_a_comparison_asked_for_otherwise_is_refused(capsys: Captured) -> None:
    assert main([*COMPARE, "--rounds", "1", "--out", "some", "--quiet"]) == 0
    capsys.readouterr()
    for change, why in ((["--lr", "0.5"], "lr was 0.01 and is 0.5"), (["--seeds", "0"], "seeds was [0, 1] and is [0]")):
        assert main([*COMPARE, "--rounds", "1", "--out", "some", "--resume", "--quiet", *change]) == 2
        assert why in one_line(capsys)
    assert main(["resume", "some", "--rounds", "0", "--quiet"]) == 2
    assert "rounds expects" in one_line(capsys)
    assert main(["resume", "some", "--rounds", "3", "--workers", "1", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["resume", "some", "--rounds", "2", "--quiet"]) == 2
    assert "rounds was 3 and 2 is fewer" in one_line(capsys)
    plan = Path("some/runs.json")
    plan.write_bytes(plan.read_bytes().replace(b"moon", b"mood"))
    assert main(["resume", "some"]) == 2
    assert "runs.json cannot be used: its checksum does not fit" in one_line(capsys)


def test_a_sweep_goes_on(capsys: Captured) -> None:
    words = ["sweep", *RUN, "--method", "fedprox", "--grid", "fedprox.mu=0.1,1", "--seeds", "0,1", "--workers", "1"]
    assert main([*words, "--out", "whole", "--quiet", "--json"]) == 0
    expected = {run.name: without_matrices(outcome(run)) for run in Path("whole").iterdir() if run.is_dir()}
    assert len(expected) == 4
    assert main([*words, "--out", "more", "--quiet", "--rounds", "2"]) == 0
    capsys.readouterr()
    assert main(["resume", "more", "--rounds", "6", "--workers", "1", "--quiet", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["cells"]) == 2
    found = {run.name: without_matrices(outcome(run)) for run in Path("more").iterdir() if run.is_dir()}
    assert found == expected


def test_a_run_that_went_side_by_side_is_not_resumed_alone(capsys: Captured) -> None:
    words = [*COMPARE, "--engine", "vectorised", "--methods", "fedavg", "--out", "group", "--quiet"]
    assert main(words) == 0
    capsys.readouterr()
    assert main(["resume", "group/fedavg-0", "--rounds", "9", "--quiet"]) == 2
    assert "went side by side with 1 other runs and goes on with them only: fedssd resume group" in one_line(capsys)
    expected = outcome(Path("group/fedavg-1"))
    shutil.rmtree("group/fedavg-1")
    assert main(["resume", "group", "--quiet"]) == 0  # the missing one runs, and the other with it
    assert outcome(Path("group/fedavg-1")) == expected
