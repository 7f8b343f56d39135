"""All of the paper on digits, from nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies.paper.__main__ import main

pytestmark = pytest.mark.slow


def test_everything_of_the_paper_on_digits_and_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From nothing, then again: the second call finds every cell finished and writes the same tables."""
    command = ["run", "all", "--scale", "small", "--out", str(tmp_path), "--quiet", "--json"]
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["ran"] == 2 * (7 + 4 * 7 + 3 * 3 + 2 * 7 + 4 * 7 + 1)  # seeds × what is left of tables and figures
    tables = {name: (tmp_path / name).read_text() for name in ("table1.md", "table2.csv", "table3.tex", "epochs.md")}
    assert "not run" not in "".join(tables.values())
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["ran"] == 0
    assert {name: (tmp_path / name).read_text() for name in tables} == tables
