"""The same run made twice counts once, wherever tables are made: the one begun last."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedssd.runs.read import newest_last
from fedssd.sweeps.cache import finished_cells, recipes_of_finished

pytestmark = pytest.mark.quick
LATER, EARLIER = "2026-02-01T10:00:00+00:00", "2026-01-01T10:00:00+00:00"
Write = Callable[..., Path]


@pytest.fixture
def twice(tmp_path: Path, write_run: Write) -> Path:
    """One recipe run twice: with 50 % in what was begun later and has the first path, then with 70 %."""
    for name, acc, started in (("a", 0.5, LATER), ("b", 0.7, EARLIER)):
        folder = write_run(tmp_path / name, "fedavg", 0, [acc], {"model": "mlp", "partial_batch": "keep"})
        header, rest = (folder / "rounds.jsonl").read_text().split("\n", 1)
        (folder / "rounds.jsonl").write_text(json.dumps(json.loads(header) | {"started": started}) + "\n" + rest)
    return tmp_path


def test_cells_of_the_paper_s_tables(twice: Path) -> None:
    assert [run.name for run in finished_cells([twice]).values()] == ["a"]
    assert [run.name for _, run in recipes_of_finished([twice])] == ["b", "a"]
    assert len(list(recipes_of_finished([twice, twice / "a"]))) == 2  # a folder named twice is one


def test_runs_that_do_not_say_are_older_in_the_order_of_their_paths(tmp_path: Path, write_run: Write) -> None:
    for name in ("b", "a"):
        write_run(tmp_path / name, "fedavg", 0, [0.5])
    (tmp_path / "c").mkdir()  # no record at all
    assert [run.name for run in newest_last([tmp_path / name for name in "cba"])] == ["a", "b", "c"]


def test_a_run_says_when_it_was_begun(real_runs: Path) -> None:
    header = json.loads((real_runs / "first" / "fedavg-0" / "rounds.jsonl").read_text().split("\n")[0])
    assert header["started"] > "2026-01-01T00:00:00+00:00"
    assert header["started"].endswith("+00:00")
