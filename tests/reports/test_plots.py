"""Figures for papers: files of the right kind and size, or one line that says what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedssd.cli import main
from fedssd.reports import plots
from fedssd.reports.grouping import settings
from fedssd.reports.page import setting_content
from fedssd.runs.read import collect


def test_figures_are_png_and_pdf_sized_for_a_column(real_runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = plots.write_figures([real_runs / "first"], tmp_path / "figures")
    assert {file.stem for file in written} == set(plots.FIGURES)
    for file in written:
        head = file.read_bytes()[:24]
        assert head.startswith(b"\x89PNG" if file.suffix == ".png" else b"%PDF")
        if file.suffix == ".png":
            width = int.from_bytes(head[16:20], "big")
            assert 0.7 * plots.COLUMN * 300 < width <= 1.03 * plots.COLUMN * 300  # dots at 300 an inch, margins cut


def test_no_two_lines_of_a_figure_look_alike_and_fedssd_s_best_is_shown_beside_fedavg(
    tmp_path: Path, write_run: Callable[..., Path]
) -> None:
    pytest.importorskip("matplotlib")
    matrix = [[3, 1], [0, 4]]
    seen = {"confusion": {"global": matrix, "local": {"8": matrix}}}
    write_run(tmp_path / "fedavg", "fedavg", 0, [0.4, 0.5], **seen)
    for number in range(1, 16):  # more lines than there are colours; the eighth ends best
        options = {"fedssd": {"m_max": number}}
        write_run(
            tmp_path / f"{number:02}", "fedssd", 0, [0.4, 0.9 - abs(number - 8) / 100], {"options": options}, **seen
        )
    (setting,) = settings(collect([tmp_path]))
    content = plots._distinct(setting_content(setting))
    figure = plots.FIGURES["curves-global"](content)
    assert figure is not None
    lines = figure.axes[0].get_lines()
    assert len(lines) == len({(line.get_color(), line.get_linestyle()) for line in lines}) == 16
    confusion = plots.FIGURES["confusion"](content)
    assert confusion is not None
    titles = [axes.get_title() for axes in confusion.axes]
    assert titles == [
        "FedAvg, global",
        "FedAvg, client 8 after",
        "FedSSD m_max=8, global",
        "FedSSD m_max=8, client 8 after",
    ]


@pytest.mark.slow
def test_the_command_says_how_many_figures_are_where(
    real_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert main(["report", str(real_runs), "--figures", "--out", str(tmp_path / "page.html")]) == 0
    count = len(list((tmp_path / "figures").rglob("*.pdf")))
    assert capsys.readouterr().out.splitlines()[1] == f"{count} figures as PNG and PDF in {tmp_path}/figures/"


@pytest.mark.parametrize("names", [["FedAvg"], ["FedAvg", "MOON"] * 5, ["FedSSD m_max=0.03 square=outside", "mse"] * 4])
def test_names_of_lines_stand_below_and_within_the_column(names: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure, ((axes,),) = plots._sheet()
    alone = figure.get_figheight()
    for name in names:
        axes.plot([0, 1], [0, 1], label=name)
    plots._labelled(figure, axes, "round", "accuracy")
    plots._save(figure, tmp_path / "lines")
    assert int.from_bytes((tmp_path / "lines.png").read_bytes()[16:20], "big") <= 1.03 * plots.COLUMN * 300
    box, picture = figure.legends[0].get_window_extent(), axes.get_tightbbox()
    assert box.y1 <= picture.y0  # no name on a line
    assert figure.get_figheight() > alone


def test_without_matplotlib_one_line_says_what_to_install(
    real_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
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


def stopped(folder: Path, write: Callable[..., Path]) -> Path:
    """A run that is under way, or was killed: rounds and no summary."""
    (write(folder, "fedavg", 1, [0.5], {"rounds": 9}) / "summary.json").unlink()
    return folder


def test_a_run_that_reproduce_or_bench_began_is_gone_on_with_by_the_same_command(
    tmp_path: Path, write_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """``resume`` refuses such folders, so it is not what a report says."""
    run = stopped(tmp_path / "runs" / "under-way" / "batch" / "table1-cifar10" / "fedavg-1", write_run)
    assert main(["report", str(tmp_path / "runs")]) == 2
    said = "is still running or was interrupted, which the same `studies.paper` or `fedssd bench` goes on with\n"
    assert capsys.readouterr().err.endswith(f"{run} {said}")


def test_a_run_without_summary_is_named_with_what_goes_on_with_it(
    tmp_path: Path, write_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stopped(tmp_path / "runs" / "mine", write_run)
    for asked in (folder, tmp_path / "runs"):
        assert main(["report", str(asked)]) == 2
        complaint = capsys.readouterr().err
        assert complaint.startswith(f"fedssd: expected a finished run in {asked}: {folder} is still running or was")
        assert f"resume {folder}`" in complaint
        assert complaint.count("\n") == 1
    assert not list(tmp_path.rglob("report*"))


def test_unfinished_runs_beside_finished_ones_are_mentioned(
    tmp_path: Path, write_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "done", "fedavg", 0, [0.5])
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "runs.json").write_text("{}")  # a comparison goes on as a whole
    left = [stopped(tmp_path / "both" / name, write_run) for name in "ab"]
    assert main(["report", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unfinished"] == [str(run) for run in left]
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert said.startswith(f"left out: {left[0]}, {left[1]} are still running or were interrupted")
    assert said.count("resume ") == 1
    assert f"resume {tmp_path / 'both'}`" in said
    assert main(["report", str(tmp_path / "done")]) == 0
    assert capsys.readouterr().err == ""
