"""Figures for papers: files of the right kind and size, or one line that says what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from fedssd.cli import main
from fedssd.reports import plots
from fedssd.reports.charts import Chart, Line, Matrix, Panel, series_of
from fedssd.reports.figures import FIGURES
from fedssd.reports.grouping import settings
from fedssd.reports.line_names import spaced
from fedssd.runs.read import collect, read_run
from fedssd.simulation.result import Result
from fedssd.sweeps import grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def test_figures_are_png_and_pdf_sized_for_a_column(real_runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = plots.write_figures([real_runs / "first"], tmp_path / "figures")
    assert {file.stem for file in written} == set(FIGURES)
    for file in written:
        head = file.read_bytes()[:24]
        assert head.startswith(b"\x89PNG" if file.suffix == ".png" else b"%PDF")
        if file.suffix == ".png":
            width = int.from_bytes(head[16:20], "big")
            assert 0.7 * plots.COLUMN * 300 < width <= 1.03 * plots.COLUMN * 300  # dots at 300 an inch, margins cut


def lines_of(names: list[str], last: float = 2.0) -> list[Line]:
    return [Line(name, [1, 2, 3], [1.0, 1.5, last + place / 100], [0.1] * 3) for place, name in enumerate(names)]


def drawn(chart: Chart) -> Figure:
    with plots.styled(plots.ON_A_PAGE):
        return plots.on_a_page(chart)


def test_a_chart_is_the_same_bytes_every_time_and_well_formed() -> None:
    pytest.importorskip("matplotlib")
    grid = Panel("<b> & 'c'", matrix=Matrix([[1, 2], [3, 0]], 3, "samples"), across="client")
    chart = Chart("A <title> & more", [Panel("lines", lines_of(["a", "b"])), grid], "a note")
    text = plots.svg(chart)
    assert text == plots.svg(chart)
    assert "date" not in text.lower()
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert any(one.text == "A <title> & more" for one in root.iter())


def test_names_stand_at_the_ends_of_their_lines_and_none_on_another() -> None:
    pytest.importorskip("matplotlib")
    names = [f"method {n}" for n in range(9)]
    figure = drawn(Chart("many", [Panel("one", lines_of(names)), Panel("two", lines_of([*names, "x" * 40]))]))
    for axes, count in zip(figure.axes, (9, 10), strict=True):
        boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
        assert len(boxes) == count
        assert all(below.y1 <= above.y0 + 1 for below, above in pairwise(boxes))  # to a pixel
        assert all(box.x0 > axes.get_window_extent().x1 for box in boxes)
    first, second = figure.axes
    assert max(text.get_window_extent().x1 for text in first.texts) < second.get_tightbbox().x0
    assert max(text.get_window_extent().x1 for text in second.texts) <= figure.bbox.x1
    assert [text.get_text() for text in second.texts][-1] == f"{'x' * 23}…  2.1"  # 2.09


def test_lines_bands_and_dots_are_where_their_numbers_say() -> None:
    pytest.importorskip("matplotlib")
    dots = Line("a", [1.0, 2.0], [3.0, 4.0], dots=True, joined=False)
    axes = drawn(Chart("both", [Panel("", lines_of(["a"])), Panel("", [dots], diagonal=True)])).axes
    assert [list(values) for values in axes[0].lines[0].get_data()] == [[1, 2, 3], [1.0, 1.5, 2.0]]
    (band,) = axes[0].collections
    corners = band.get_paths()[0].vertices
    assert {round(float(y), 6) for _, y in corners} == {0.9, 1.1, 1.4, 1.6, 1.9, 2.1}
    assert axes[1].collections[0].get_offsets().tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_cells_are_shaded_by_their_share_of_the_full_colour() -> None:
    pytest.importorskip("matplotlib")
    counts = [[4.0, 0.0], [1.0, 2.0]]
    figure = drawn(Chart("", [Panel("", matrix=Matrix(counts, 4, "samples", first=1))]))
    image = figure.axes[0].images[0]
    assert image.get_array().tolist() == counts
    assert (image.get_clim(), image.get_extent()) == ((0, 4), [0.5, 2.5, 1.5, -0.5])  # columns from 1, rows downwards
    assert figure.axes[1].get_ylabel() == "training samples"


@pytest.mark.parametrize("chart", [Chart("nothing", []), Chart("one", [Panel("", [Line("a", [1], [0.0])])])])
def test_odd_charts_are_still_drawn(chart: Chart) -> None:
    pytest.importorskip("matplotlib")
    assert "nan" not in plots.svg(chart)


def test_places_move_as_little_as_can_be_and_keep_their_order() -> None:
    """Three at 10, 11 and 12 stand at 6, 11 and 16; a fourth at 30 stays; at the edge they stay within."""
    assert spaced([10, 30, 12, 11], 5, 0, 100) == pytest.approx([6, 30, 16, 11])
    assert spaced([1, 2], 5, 0, 100) == pytest.approx([0, 5])
    assert spaced([99, 100], 5, 0, 100) == pytest.approx([95, 100])
    assert spaced([], 5, 0, 100) == []


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
    series = series_of(setting)
    chart = FIGURES["curves-global"](series)
    assert chart is not None
    with plots.styled():
        lines = plots.in_a_column(chart).axes[0].get_lines()
    assert len(lines) == len({(str(line.get_color()), str(line.get_linestyle())) for line in lines}) == 16
    confusion = FIGURES["confusion"](series)
    assert confusion is not None
    assert [panel.title for panel in confusion.panels] == [
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
    distinct = [f"{name}{n or ''}" for n, name in enumerate(names)]
    with plots.styled():
        figure = plots.in_a_column(Chart("", [Panel("", lines_of(distinct))]))
        figure.savefig(tmp_path / "lines.png", bbox_inches="tight", pad_inches=0.02)
    assert int.from_bytes((tmp_path / "lines.png").read_bytes()[16:20], "big") <= 1.03 * plots.COLUMN * 300
    box, picture = figure.legends[0].get_window_extent(), figure.axes[0].get_tightbbox()
    assert box.y1 <= picture.y0  # no name on a line


def test_without_matplotlib_one_line_says_what_to_install(
    real_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    page = tmp_path / "report.html"
    assert main(["report", str(real_runs / "first"), "--figures", "--out", str(page)]) == 2
    assert capsys.readouterr().err == "fedssd: figures need matplotlib: pip install 'fedssd[figures]'\n"
    assert not page.exists()


def test_compare_leaves_the_curves_out_without_matplotlib_and_says_so(
    tmp_path: Path, write_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [read_run(write_run(tmp_path / "runs", "fedavg", 0, [0.5, 0.6]))]

    def finished(*given: Any) -> list[Result]:
        given[3].mkdir()  # the folder
        return results

    monkeypatch.setattr(grid, "compare", finished)
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    words = ["compare", "--methods", "fedavg", "--seeds", "0", "--out"]
    assert main([*words, str(tmp_path / "without")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-2].endswith("/without/ (report.html, table.md, table.csv, a folder for each run)")
    assert said[-1] == "left out: curves.svg, which needs matplotlib: pip install 'fedssd[figures]'"
    assert not (tmp_path / "without" / "curves.svg").exists()
    assert (tmp_path / "without" / "report.html").exists()
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(grid, "compare", finished)
    assert main([*words, str(tmp_path / "with")]) == 0
    assert "table.csv, curves.svg, a folder" in capsys.readouterr().out
    ElementTree.fromstring((tmp_path / "with" / "curves.svg").read_text())


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
