"""The paper's figures, drawn: every dot, line and cell is where its number says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedssd.runs.read import read_run
from fedssd.simulation.result import Result
from studies.paper.report.figure_pictures import by_class, confusion, forgetting
from studies.paper.report.shaded_grids import LEFT, PANEL, TOP, split_picture

Write = Callable[..., Path]
SVG = "{http://www.w3.org/2000/svg}"


def marks(svg: str, kind: str, style: str = "") -> list[ElementTree.Element]:
    return [one for one in ElementTree.fromstring(svg).iter(f"{SVG}{kind}") if style in (one.get("class") or "")]


def titled(titles: list[str], tmp_path: Path, write_run: Write) -> list[tuple[str, Result]]:
    """FedAvg in each setting, on two seeds; locals know half of what the global model does."""
    return [
        (title, read_run(write_run(tmp_path / f"{title}-{seed}", "fedavg", seed, [0.2, 0.4 + 0.2 * seed])))
        for title in titles
        for seed in (0, 1)
    ]


def test_forgetting_has_a_dot_a_round_and_a_line_a_setting(tmp_path: Path, write_run: Write) -> None:
    svg = forgetting(titled(["classes:2", "iid"], tmp_path, write_run), "digits")
    dots = marks(svg, "circle")
    assert len(dots) == 2 * 2  # settings × rounds
    x, y = ([float(dot.get(key, "")) for dot in dots[:2]] for key in ("cx", "cy"))
    # Means over the seeds: 10 and 20 %, then 25 and 50 %; both axes have one scale, so steps are as 15 to 30.
    assert (y[0] - y[1]) / 294 == pytest.approx(2 * (x[1] - x[0]) / 320, rel=0.02)  # the heights and widths of a panel
    assert len(marks(svg, "polyline", "line")) == 2
    last = [one.text for one in marks(svg, "text", "value")]
    assert last == ["25.0", "25.0"]  # 50 − 25 points
    assert "(digits)" in svg


def with_client_0(runs: list[tuple[str, Result]]) -> list[tuple[str, Result]]:
    """Whose client 0 knows nothing of the first class and all of the second."""
    known = (0.0, 1.0)
    alike = [tuple(replace(one, client_0_class_accuracy=known) for one in run.rounds) for _, run in runs]
    return [(title, replace(run, rounds=rounds)) for (title, run), rounds in zip(runs, alike, strict=True)]


def test_classes_are_shaded_by_their_mean_accuracy(tmp_path: Path, write_run: Write) -> None:
    """The global model has 0.2 in the first round, and in the second 0.4 and 0.6 on two seeds."""
    svg = by_class(with_client_0(titled(["iid"], tmp_path, write_run)))
    assert [one.text for one in marks(svg, "text", "panel")] == ["iid: global, 2 seeds", "iid: client 0, 2 seeds"]
    shades = [cell.get("fill-opacity") for cell in marks(svg, "rect", "cell")]
    assert shades == ["0.200", "0.200", "0.500", "0.500", "1.000", "1.000"]  # no cell where nothing is right


def test_every_panel_has_a_scale_and_four_stand_two_in_a_row(tmp_path: Path, write_run: Write) -> None:
    svg = by_class(with_client_0(titled(["a", "b"], tmp_path, write_run)))
    ends = [one.text for one in marks(svg, "text", "tick") if "%" in (one.text or "")]
    assert ends == ["0 %", "100 %"] * 4
    shades = [shade.get("fill-opacity") for shade in marks(svg, "rect", "shade")]
    assert shades[:11] == [f"{n / 10:.3f}" for n in range(11)]
    assert len(shades) == 4 * 11
    lefts = [one.get("x") for one in marks(svg, "text", "panel")]
    assert lefts == [lefts[0], lefts[1]] * 2
    samples = split_picture([("a", [[1, 3], [2, 0]])])
    assert {"0", "3 samples"} < {one.text for one in marks(samples, "text", "tick")}


def test_confusion_has_what_is_held_what_was_sent_and_what_was_made_of_it(tmp_path: Path, write_run: Write) -> None:
    sent, after = [[4, 0], [3, 1]], [[1, 3], [0, 4]]
    runs = []
    for method in ("fedavg", "fedssd"):
        seen = {"confusion": {"global": sent, "local": {"8": after}}}
        run = read_run(write_run(tmp_path / method, method, 0, [0.5, 0.6], **seen))
        counts = [[9, 9]] * 8 + [[2, 6]]
        runs.append(("iid", replace(run, provenance={**run.provenance, "counts": counts})))
    svg = confusion(runs)
    titles = [one.text for one in marks(svg, "text", "panel")]
    assert titles == ["client 8 holds", "the global model", "FedAvg: client 8", "FedSSD: client 8"]
    cells = marks(svg, "rect", "cell")
    assert [cell.get("fill-opacity") for cell in cells[:2]] == ["0.333", "1.000"]  # 2 and 6 of at most 6
    assert [cell.get("fill-opacity") for cell in cells[2:5]] == [
        "1.000",
        "0.750",
        "0.250",
    ]  # by called class, then true
    assert [float(cells[0].get(key, "")) for key in ("x", "y", "width")] == [LEFT, TOP, PANEL / 2]
    (note,) = marks(svg, "text", "quiet")
    assert note.text == "share of a class's test samples that are called so; seed 0, last round"
    ends = [one.text for one in marks(svg, "text", "tick") if not (one.text or "").isdigit()]
    assert ends == ["class", "6 samples", *["called", "0 %", "100 %"] * 3]


def test_runs_that_hold_nothing_of_it_have_no_picture(tmp_path: Path, write_run: Write) -> None:
    run = read_run(write_run(tmp_path / "one", "fedavg", 0, [0.5]))
    assert confusion([("iid", run)]) == ""
    assert forgetting([]) == by_class([]) == confusion([]) == ""
