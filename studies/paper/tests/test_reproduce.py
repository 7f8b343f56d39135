"""The command that runs the paper's tables: a finished cell is found again and never run twice."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from fedssd.errors import UserError
from fedssd.recipe import Recipe
from fedssd.sweeps.cache import finished_cells
from studies.paper import batches, estimate
from studies.paper.__main__ import main
from studies.paper.batches import alone
from studies.paper.cell import Cell, missing
from studies.paper.cells import cells_of, places_of
from studies.paper.estimate import Speed
from studies.paper.paper import EXPERIMENTS
from studies.paper.tests.reproductions import QUICK, small_reproduction

COLUMNS = {column.recipe: column for experiment in EXPERIMENTS.values() for column in experiment.columns}


def test_a_finished_cell_is_never_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reproduced = small_reproduction(tmp_path)
    folders = sorted(path.parent.relative_to(reproduced) for path in reproduced.rglob("summary.json"))
    assert [str(folder) for folder in folders] == ["table1-cifar10/fedavg-0", "table1-cifar10/fedssd-0"]
    assert not (reproduced / "under-way").exists()
    assert (reproduced / "report.html").is_file()
    before = {path: path.stat().st_mtime_ns for path in reproduced.rglob("rounds.jsonl")}

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was run")

    monkeypatch.setattr(batches, "run_named", refuse)
    monkeypatch.setattr(estimate, "run_together", refuse)
    capsys.readouterr()
    assert main(["run", "figure-confusion", *QUICK, "--out", str(reproduced), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ran"] == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    rows = (reproduced / "figure-confusion.csv").read_text().splitlines()
    assert rows[0] == "setting,method,seed,model,true,called,count"
    header = json.loads((reproduced / "table1-cifar10" / "fedavg-0" / "rounds.jsonl").read_text().splitlines()[0])
    held = [row.split(",")[-1] for row in rows if ",fedavg,0,data," in row]
    assert [int(count) for count in held[:: 10 + 1]] == header["counts"][8]  # the diagonal of ten classes
    assert sum(map(int, held)) == sum(header["counts"][8])
    picture = ElementTree.fromstring((reproduced / "figure-confusion.svg").read_text())
    titles = [one.text for one in picture.iter("{http://www.w3.org/2000/svg}text") if one.get("class") == "panel"]
    assert titles[0] == "client 8 holds (digits)"
    assert titles[-2:] == ["FedAvg: client 8", "FedSSD: client 8"]


@pytest.mark.parametrize("harm", ["summary", "line"])
def test_a_damaged_cell_is_run_again_and_named(harm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once: the new run stands beside what is left of the old one, which stays where it is, out of the report."""
    reproduced = small_reproduction(tmp_path)
    run = reproduced / "table1-cifar10" / "fedavg-0"
    if harm == "summary":
        (run / "summary.json").write_text("{\n")
    else:
        (run / "rounds.jsonl").write_text((run / "rounds.jsonl").read_text().splitlines()[0] + "\n")
    said = {"summary": "summary.json is not valid JSON", "line": "rounds.jsonl has 0 rounds, and summary.json counts 1"}
    talking = [word for word in QUICK if word != "--quiet"]
    for expected in (1, 0):
        assert main(["run", "figure-confusion", *talking, "--out", str(reproduced), "--json"]) == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out)["ran"] == expected
        assert f"left out: {run}/{said[harm]}\n" in printed.err
    assert (run.parent / "fedavg-0-2" / "summary.json").is_file()


def test_runs_taken_from_elsewhere_are_in_the_report_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the cells that were asked for, and nothing else that lies there."""
    elsewhere = small_reproduction(tmp_path)
    words = ["figure-classes", *QUICK, "--only", "table1-cifar10", "--reuse", str(elsewhere), "--out"]
    capsys.readouterr()
    assert main(["run", *words, str(tmp_path / "new"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ran"] == 0
    assert str(tmp_path / "new" / "report.html") in told["written"]
    page = (tmp_path / "new" / "report.html").read_text()
    assert "table1-cifar10/fedavg-0" in page
    assert "table1-cifar10/fedssd-0" not in page  # a cell of the figure that ran there, and not of this


def test_a_table_takes_over_what_a_figure_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reproduced = small_reproduction(tmp_path)
    quick = [*QUICK, "--methods", "fedavg,fedprox,fedssd"]
    assert main(["run", "table1", *quick, "--out", str(reproduced), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ran"] == 1
    assert (reproduced / "table1-cifar10" / "fedprox-0").is_dir()
    table = (reproduced / "table1.md").read_text()
    assert table.count("not run") == 4
    assert "on digits in its stead" in table
    assert "difference" not in table  # the paper has no digits
    rows = list(csv.DictReader((reproduced / "table1.csv").read_text().splitlines()))
    assert {row["setting"] for row in rows} == {"CIFAR-10, on digits in its stead"}
    assert {row["difference"] + row["stands_out"] for row in rows} == {""}
    assert "on digits in its stead" in (reproduced / "table1.tex").read_text()


def test_one_column_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "table2", "--scale", "small", "--rounds", "1", "--seeds", "1", "--methods", "fedavg"]
    assert main([*command, "--only", "table2-classes-2", "--out", str(tmp_path / "out"), "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["ran"] == 1
    assert {path.parent.parent.name for path in tmp_path.rglob("summary.json")} == {"table2-classes-2"}
    assert (tmp_path / "out" / "table2.md").read_text().count("#K = ") == 1


def test_other_rounds_are_other_cells_and_both_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reproduced = small_reproduction(tmp_path)
    for expected in (2, 0):
        longer = [word if word != "1" else "2" for word in QUICK[:4]] + QUICK[4:]
        assert main(["run", "figure-confusion", *longer, "--out", str(reproduced), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["ran"] == expected
    summaries = [json.loads(path.read_text()) for path in reproduced.rglob("summary.json")]
    assert sorted(summary["rounds"] for summary in summaries) == [1, 1, 2, 2]


@pytest.mark.quick
def test_cells_of_different_kernels_are_different_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (place, *_) = places_of(EXPERIMENTS["figure-confusion"], {}, small=True)
    (ours,) = cells_of(place, [0], ["fedavg"])
    plain = replace(ours, recipe=replace(ours.recipe, kernels="off"))
    groups: list[list[str]] = []
    monkeypatch.setattr(batches, "run_named", lambda recipes, *_, **__: groups.append([r.kernels for r in recipes]))
    batches.run_cells([ours, plain, replace(ours, column="other")], tmp_path)
    assert groups == [["on", "on"], ["off"]]


def test_a_run_of_an_older_version_still_counts(tmp_path: Path) -> None:
    """It knew fewer keys: those it leaves out have their defaults."""
    reproduced = small_reproduction(tmp_path)
    file = reproduced / "table1-cifar10" / "fedavg-0" / "recipe.toml"
    kept = [line for line in file.read_text().splitlines() if not line.startswith(("lr_decay", "server"))]
    keys = set(finished_cells([reproduced]))
    file.write_text("\n".join(kept) + "\n")
    assert set(finished_cells([reproduced])) == keys
    file.write_text("\n".join(kept).replace("epochs = 1", "epochs = 2") + "\n")
    assert set(finished_cells([reproduced])) != keys


@pytest.mark.quick
def test_only_one_program_fills_a_folder(tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(UserError, match="another fedssd is at work"), alone(tmp_path):
        pass
    with alone(tmp_path):
        pass


@pytest.mark.quick
def test_where_nothing_came_of_it_only_what_was_there_is_left(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for folder in (tmp_path / "mine", tmp_path / "runs" / "deep" / "out"):
        with alone(folder):
            assert folder.is_dir()
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]
    with alone(tmp_path / "runs" / "out"):
        (tmp_path / "runs" / "notes.txt").write_text("…")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mine", "notes.txt", "runs"]


@pytest.mark.quick
def test_the_estimate_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two FedAvg cells of 100 rounds × 10 epochs: 1000 passes of 0.1 s and 100 rounds of 0.5 s each, 7 s to start."""
    (place, *_) = places_of(EXPERIMENTS["table1"], {"device": "cpu"}, dataset="cifar10")
    cells = cells_of(place, [0, 1], ["fedavg"])
    monkeypatch.setattr(estimate, "probe", lambda cell, count: Speed(0.1, 0.5, 7.0))
    assert estimate.estimate(cells, workers=1) == pytest.approx(2 * (100 + 50) + 7)
    assert estimate.estimate(cells, workers=2) == pytest.approx((2 * (100 + 50) + 7) / 2)
    fewer = [replace(cell, recipe=replace(cell.recipe, participation=0.1)) for cell in cells]
    assert estimate.estimate(fewer, workers=1) == pytest.approx(2 * (10 + 50) + 7)


@pytest.mark.quick
@pytest.mark.parametrize(("participation", "epochs"), [(1.0, 1), (0.1, 10), (0.2, 5), (0.1, 4)])
def test_a_round_in_which_few_take_part_is_not_taken_for_a_long_one(
    monkeypatch: pytest.MonkeyPatch, participation: float, epochs: int
) -> None:
    """A round costs 4 s whoever trains and 2 s for a pass over all data: 4 + 2 E C, of which 4 were counted E times."""

    def together(recipes: Sequence[Recipe], _: object) -> list[SimpleNamespace]:
        train = 4 + 2 * recipes[0].epochs * recipes[0].participation
        line = SimpleNamespace(seconds={"train": train, "evaluate": 1.0})
        return [SimpleNamespace(rounds=[line, line])]

    monkeypatch.setattr(estimate, "run_together", together)
    cell = Cell("any", Recipe(method="fedavg", rounds=100, participation=participation, epochs=epochs))
    assert estimate.probe(cell, 1).of(cell) == pytest.approx(100 * (4 + 2 * epochs * participation + 1))


@pytest.mark.quick
def test_on_a_gpu_cells_that_share_a_program_are_a_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Splits may differ within a program, the number of local steps, the model and a method's words may not."""
    places = [place for name in ("table2", "epochs") for place in places_of(EXPERIMENTS[name], {}, False, "cifar10")]
    cells = missing([cell for place in places for cell in cells_of(place, [0, 1, 2])], {})
    groups: list[list[str]] = []

    def note(_: Sequence[Any], names: list[str], *__: Any, **___: Any) -> None:
        groups.append(names)

    monkeypatch.setattr(batches, "run_named", note)
    monkeypatch.setattr(batches, "pick_device", lambda name: torch.device("cuda"))
    batches.run_cells(cells, tmp_path)
    assert sorted(map(len, groups)) == [3] * 7 * 4 + [15] * 7  # four other E; five splits of each method side by side
    assert {name.rpartition("/")[2] for name in groups[0]} == {"fedavg-0", "fedavg-1", "fedavg-2"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tabel1"], "did you mean 'table1'"),
        (["table1", "--dataset", "mnist"], "unknown dataset"),
        (["table2", "--dataset", "cifar100"], "no column on cifar100"),
        (["table1", "--seeds", "0"], "at least 1"),
        (["table1", "--seeds", "x"], "--seeds expects how many seeds"),
        (["table1", "--methods", "fedsdd"], "got 'fedsdd'"),
        (["table1", "--methods", ","], "--methods expects at least one of fedavg, fedprox, fedcurv"),
        (["table1", "--set", "seed=3"], "--set cannot change it"),
        (["table1", "--set", "epochs"], "KEY=VALUE"),
        (["table3", "--part", "screen"], "--part is for the study"),
        (
            ["table2", "--only", "table2-classes-2", "--only", "table2-classes-5"],
            "--only expects one column of the paper's tables, got 'table2-classes-2' and 'table2-classes-5'",
        ),
        (["table3", "--only", "head"], "--only expects one of table3-alpha-0.01, table3-alpha-0.1, table3-alpha-0.5"),
        (["table1", "--reuse", "nowhere"], "--reuse expects a folder with runs, got nowhere, which is not there"),
        (["table1", "--reuse", __file__], f"got {__file__}, which is a file"),
        (["table1", "--dataset", "cifar10"], "cifar10 is not prepared"),
        (["table1", "--rounds", "0"], "rounds expects a whole number of at least 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.quick
def test_mistakes_are_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FEDSSD_CACHE", str(tmp_path / "empty"))
    assert main(["run", *words, "--out", str(tmp_path / "out"), "--quiet"]) == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (
            ["table2", "--only", "#k=2", "--methods", "FedSSD"],
            [("table2-classes-2", "fedavg"), ("table2-classes-2", "fedssd")],
        ),
        (
            ["table3", "--only", "alpha = 0.1", "--methods", "kl"],
            [("table3-alpha-0.1", "fedavg"), ("table3-alpha-0.1", "kl")],
        ),
        (["figure-confusion", "--methods", "fedssd"], [("table1-cifar10", "fedssd")]),  # no gain is shown there
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)
def test_a_plan_names_the_cells_and_fedavg_where_gains_are_measured_against_it(
    words: list[str], rows: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["run", *words, "--seeds", "2", "--plan", "--json", "--out", str(out)]) == 0
    planned = json.loads(capsys.readouterr().out)["cells"]
    assert planned == [{"column": c, "method": m, "seeds": [0, 1], "finished": 0} for c, m in rows]
    assert main(["run", *words, "--plan", "--out", str(out)]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in shown] == [["column", "method"], *map(list, rows)]
    assert shown[1][-3:] == ["0", "of", "3"]
    assert not out.exists()


def test_what_client_8_keeps_is_written_beside_the_tables_it_is_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From runs that come with this repository: nothing trains, and no data are there to train on."""
    monkeypatch.setenv("FEDSSD_CACHE", str(tmp_path / "empty"))
    results, out = Path(__file__).parents[3] / "results", tmp_path / "out"
    words = ["--only", "α = 0.1", "--methods", "KL", "--reuse", str(results), "--out", str(out), "--json"]
    assert main(["run", "table3", *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ran"] == 0
    assert str(out / "client-8.md") in told["written"]
    rows = (out / "client-8.md").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "## What client 8 keeps of the global model"
    assert any(row.startswith("| KL, α = 0.1 |") for row in rows)


def test_the_distribution_figure_trains_nothing(tmp_path: Path) -> None:
    assert main(["run", "figure-distribution", *QUICK, "--out", str(tmp_path)]) == 0
    rows = (tmp_path / "figure-distribution.csv").read_text().splitlines()[1:]
    assert len(rows) == 10 * 10  # clients × classes
    held = sum(int(row.rsplit(",", 1)[1]) for row in rows)
    cells = ElementTree.fromstring((tmp_path / "figure-distribution.svg").read_text()).findall(".//{*}rect")
    assert sum(cell.get("class") == "cell" for cell in cells) == sum(not row.endswith(",0") for row in rows)
    assert held == 1438 - 10 * 8  # digits' training samples less eight of each class at the server
