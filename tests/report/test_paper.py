"""Figures for papers: files of the right kind and size, or one line that says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedssd.cli import main
from fedssd.report import paper


def test_figures_are_png_and_pdf_sized_for_a_column(real_runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = paper.write_figures([real_runs / "first"], tmp_path / "figures")
    assert {file.stem for file in written} == set(paper.FIGURES)
    for file in written:
        head = file.read_bytes()[:24]
        assert head.startswith(b"\x89PNG" if file.suffix == ".png" else b"%PDF")
        if file.suffix == ".png":
            width = int.from_bytes(head[16:20], "big")
            assert 0.7 * paper.COLUMN * 300 < width <= 1.03 * paper.COLUMN * 300  # dots at 300 an inch, margins cut


def test_without_matplotlib_one_line_says_what_to_install(
    real_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paper, "find_spec", lambda name: None)
    page = tmp_path / "report.html"
    assert main(["report", str(real_runs / "first"), "--figures", "--out", str(page)]) == 2
    assert capsys.readouterr().err == "fedssd: figures need matplotlib: pip install 'fedssd[figures]'\n"
    assert not page.exists()


def test_the_command_writes_the_page_where_it_says(
    real_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "both.html"
    assert main(["report", str(real_runs / "first"), str(real_runs / "second"), "--out", str(page)]) == 0
    assert str(page) in capsys.readouterr().out
    assert page.read_text().count("classes:2") >= 1
    assert main(["report", str(tmp_path)]) == 2
    assert "found none" in capsys.readouterr().err
    assert main(["report", str(real_runs), "--out", str(tmp_path / "no" / "page.html")]) == 2
