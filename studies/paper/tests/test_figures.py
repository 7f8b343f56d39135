"""The paper's figures, described: every dot, line and cell has its number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedssd.errors import UserError
from fedssd.runs.read import read_run
from fedssd.simulation.result import Result
from studies.paper.figures import (
    by_round,
    classes,
    confusion,
    distribution,
    draw,
    forgetting,
    learning_curves,
    mechanism,
    promises,
)
from studies.paper.tests.toy import toy_round

Write = Callable[..., Path]


def titled(titles: list[str], tmp_path: Path, write_run: Write) -> dict[str, list[Result]]:
    """FedAvg in each setting, on two seeds; locals know half of what the global model does."""
    return {
        title: [
            read_run(write_run(tmp_path / f"{title}-{seed}", "fedavg", seed, [0.2, 0.4 + 0.2 * seed]))
            for seed in (0, 1)
        ]
        for title in titles
    }


def test_forgetting_has_a_dot_a_round_and_a_line_a_setting(tmp_path: Path, write_run: Write) -> None:
    """Means over the seeds: 20 and 50 % of the global model, half of that of the clients'."""
    chart = forgetting(titled(["classes:2", "iid"], tmp_path, write_run))
    assert chart is not None
    dots, gaps = chart.panels
    assert [(line.name, list(line.x), list(line.y)) for line in dots.lines] == [
        ("classes:2", pytest.approx([10, 25]), pytest.approx([20, 50])),
        ("iid", pytest.approx([10, 25]), pytest.approx([20, 50])),
    ]
    assert [list(line.y) for line in gaps.lines] == 2 * [pytest.approx([10, 25])]
    assert [line.colour for line in dots.lines] == [line.colour for line in gaps.lines]
    assert len({line.colour for line in dots.lines}) == 2


def with_client_0(runs: dict[str, list[Result]]) -> dict[str, list[Result]]:
    """Whose client 0 knows nothing of the first class and all of the second."""

    def seen(run: Result) -> Result:
        return replace(run, rounds=tuple(replace(one, client_0_class_accuracy=(0.0, 1.0)) for one in run.rounds))

    return {title: [seen(run) for run in found] for title, found in runs.items()}


def test_classes_are_shaded_by_their_mean_accuracy(tmp_path: Path, write_run: Write) -> None:
    """The global model has 0.2 in the first round, and in the second 0.4 and 0.6 on two seeds."""
    chart = classes(with_client_0(titled(["iid"], tmp_path, write_run)))
    assert chart is not None
    ours, client = chart.panels
    assert (ours.title, client.title) == ("iid: global model", "iid: client 0")
    assert ours.matrix is not None
    assert client.matrix is not None
    assert [list(row) for row in ours.matrix.values] == 2 * [pytest.approx([20, 50])]  # a row a class
    assert client.matrix.values == [[0, 0], [100, 100]]
    assert (ours.matrix.full, ours.matrix.first) == (100, 1)
    assert "2 seeds" in chart.note


def test_who_holds_what_has_a_scale_for_each_dataset() -> None:
    first, second = distribution({"a": [[1, 3], [2, 0]], "b": [[7]]}).panels
    assert first.matrix is not None
    assert second.matrix is not None
    assert first.matrix.values == [[1, 2], [3, 0]]  # classes down, clients across
    assert (first.matrix.full, second.matrix.full) == (3, 7)


def test_confusion_has_what_is_held_what_was_sent_and_what_was_made_of_it(tmp_path: Path, write_run: Write) -> None:
    sent, after = [[4, 0], [3, 1]], [[1, 3], [0, 4]]
    runs = []
    for method in ("fedavg", "fedssd"):
        seen = {"confusion": {"global": sent, "local": {"8": after}}}
        run = read_run(write_run(tmp_path / method, method, 0, [0.5, 0.6], **seen))
        runs.append(replace(run, provenance={**run.provenance, "counts": [[9, 9]] * 8 + [[2, 6]]}))
    chart = confusion({"iid": runs})
    assert chart is not None
    assert [panel.title for panel in chart.panels] == [
        "client 8 holds, samples",
        "the global model, %",
        "FedAvg: client 8, seed 0, %",
        "FedSSD: client 8, seed 0, %",
    ]
    values = [panel.matrix.values for panel in chart.panels if panel.matrix]
    assert values[0] == [[2, 0], [0, 6]]
    assert values[1:] == [[[100, 0], [75, 25]], *2 * [[[25, 75], [0, 100]]]]


def test_learning_curves_have_two_panels_a_setting(tmp_path: Path, write_run: Write) -> None:
    chart = learning_curves(titled(["C = 0.1", "C = 0.2"], tmp_path, write_run))
    assert [panel.title for panel in chart.panels] == [
        f"{share}: {whose}"
        for share in ("C = 0.1", "C = 0.2")
        for whose in ("global model", "clients' own models, mean")
    ]
    assert [list(line.y) for panel in chart.panels[:2] for line in panel.lines] == [
        pytest.approx([20, 50]),
        pytest.approx([10, 25]),
    ]


def test_gains_are_means_over_seeds_and_columns_by_classes_are_dashed() -> None:
    chart = by_round({"CIFAR-10": {"#K = 2": {1: [1.0, 3.0], 2: [5.0]}, "δ = 0.1": {1: [-1.0]}}})
    assert chart is not None
    (panel,) = chart.panels
    assert [(line.name, list(line.y), line.dash) for line in panel.lines] == [
        ("#K = 2", [2, 5], 1),
        ("δ = 0.1", [-1], 0),
    ]
    assert panel.note == "1 to 2 seeds"
    assert by_round({}) is None
    gains = {f"{data}, M_max = {n}": {"δ = 10": {1: [0.0], 2: [n]}} for data in ("CIFAR-10", "Digits") for n in (1, 5)}
    both = by_round(gains)
    assert both is not None
    assert [panel.high for panel in both.panels] == pytest.approx([5.2, 5.2, 1.04, 5.2])  # 4 % of room above


@pytest.mark.parametrize("m_max", [0.01, 1.0, 30.0])
def test_the_theorem_s_figure_draws_what_there_is(m_max: float) -> None:
    """At M_max = 0.01 condition 2 fails in both forms, and only the observed decrease is left."""
    decrease, margin = promises([toy_round()] * 3, m_max, 10.0, "a < b").panels
    names = [line.name for line in decrease.lines]
    assert names[0] == "observed"
    assert ("promised, as printed" in names) == (2 * m_max > 2)
    assert [line.name for line in margin.lines] == ["as printed", "as derived"]  # μ + L_m there always is
    assert (decrease.note == "nothing is promised") == (m_max == 0.01)
    assert all(any(map(math.isfinite, line.y)) for line in decrease.lines)


def test_a_figure_is_written_under_its_name_and_one_of_nothing_is_refused(tmp_path: Path, write_run: Write) -> None:
    pytest.importorskip("matplotlib")
    runs = titled(["a"], tmp_path, write_run)
    file = draw("figure-forgetting", runs, tmp_path)
    assert file == tmp_path / "figure-forgetting.svg"
    ElementTree.fromstring(file.read_text())
    with pytest.raises(UserError, match="recorded nothing that figure-confusion"):
        draw("figure-confusion", runs, tmp_path)
    nothing: Sequence[object] = (confusion({}), classes({}), forgetting({}), mechanism({}))
    assert not any(nothing)
