"""Many runs with a cache: what is there is read, what failed is given back, an edited file is another method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedssd import Recipe, run_many
from fedssd.sweeps import cache

SMALL: dict[str, Any] = {"data": "digits", "rounds": 1, "epochs": 1, "clients": 3, "auxiliary": 4, "model": "mlp"}
METHOD = """
from dataclasses import dataclass

from fedssd import Local


@dataclass(frozen=True)
class Mine(Local):
    beta: float = 0.0

    def penalty(self, out, batch, target, params, sent, memory):
        return self.beta * out.logits.square().sum(-1)
"""


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of what was trained, call by call."""
    calls: list[list[str]] = []
    real = cache.run_named

    def noted(recipes: Any, names: Any, *rest: Any, **keys: Any) -> Any:
        calls.append(list(names))
        return real(recipes, names, *rest, **keys)

    monkeypatch.setattr(cache, "run_named", noted)
    return calls


def test_a_method_in_a_file_is_read_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[list[str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("mine.py")
    file.write_text(METHOD)
    recipes = [Recipe(**SMALL, method=method) for method in ("fedavg", "mine.py:Mine")]
    plain, mine = run_many(recipes, cache="runs")
    assert plain.summary.accuracy == mine.summary.accuracy  # nothing but cross-entropy: FedAvg by another name
    again = run_many(recipes, cache="runs")
    assert [one.folder for one in again] == [plain.folder, mine.folder]
    file.write_text(METHOD.replace("beta: float = 0.0", "beta: float = 0.0  # the same, and who knows"))
    other = run_many(recipes, cache="runs")
    assert [len(names) for names in trained] == [2, 1]
    assert other[0].folder == plain.folder
    assert other[1].folder != mine.folder


def test_a_run_that_failed_is_given_back_and_not_kept(tmp_path: Path, trained: list[list[str]]) -> None:
    """Of three clients two reply with 10,000 times their update: no round is taken, and the third ends the run."""
    bad = Recipe(**{**SMALL, "rounds": 5, "faults": "scale=2x1e4", "reach": 0.0}, method="fedavg")
    good = Recipe(**SMALL, method="fedavg")
    for _ in range(2):
        failed, whole = run_many([bad, good], cache=tmp_path)
        assert (failed.summary.status, whole.summary.status) == ("failed", "completed")
        assert failed.folder is None
    assert [len(names) for names in trained] == [2, 1]
