"""A reproduction that was cut short goes on where it stopped, once somebody wants it, and loses nothing it finished."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedssd.sweeps.cache import finished_cells, recipes_of_finished
from studies.paper import batches, estimate
from studies.paper.__main__ import main
from studies.paper.cell import Cell
from studies.paper.cells import cells_of, places_of
from studies.paper.paper import EXPERIMENTS
from studies.paper.tests.reproductions import QUICK, interrupted_at, small_reproduction


def measured(run: Path) -> list[Any]:
    """A run's rounds less the seconds they took."""
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()[1:]]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_what_was_interrupted_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """FedAvg has its three rounds and FedSSD one when Ctrl-C comes, after the two rounds that were a probe."""
    three = [word if word != "1" else "3" for word in QUICK[:4]] + QUICK[4:]
    command = ["run", "figure-confusion", *three, "--out"]
    assert main([*command, str(tmp_path / "whole")]) == 0
    with interrupted_at(2 + 3 + 2, monkeypatch):
        assert main([*command, str(tmp_path / "cut")]) == 130
    assert "1 of 2 cells finished" in capsys.readouterr().err
    assert (tmp_path / "cut" / "under-way" / "batch" / "table1-cifar10" / "fedssd-0" / "checkpoint").is_dir()
    assert main([*command, str(tmp_path / "cut"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ran"] == 1
    assert not (tmp_path / "cut" / "under-way").exists()
    for name in ("table1-cifar10/fedavg-0", "table1-cifar10/fedssd-0"):
        assert measured(tmp_path / "cut" / name) == measured(tmp_path / "whole" / name)
    header = json.loads((tmp_path / "cut/table1-cifar10/fedssd-0/rounds.jsonl").read_text().splitlines()[0])
    assert header["resumed"][0]["round"] == 1


def test_what_was_interrupted_waits_until_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reproduced = small_reproduction(tmp_path)
    monkeypatch.setattr(estimate, "estimate", lambda *_: 1.0)
    two = [word if word != "1" else "2" for word in QUICK[:4]] + QUICK[4:]
    with interrupted_at(1, monkeypatch):
        assert main(["run", "figure-confusion", *two, "--out", str(reproduced)]) == 130
    for words, expected in ((QUICK, 0), (two, 2)):
        assert (reproduced / "under-way" / "batch" / "runs.json").is_file()
        assert main(["run", "figure-confusion", *words, "--out", str(reproduced), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["ran"] == expected
    assert not (reproduced / "under-way").exists()
    assert len(list(reproduced.rglob("summary.json"))) == 4


def cut_short(out: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Cell]:
    """A batch of FedAvg, which has its two rounds, and FedSSD, which has none; and FedSSD by another name."""
    (place, *_) = places_of(EXPERIMENTS["figure-confusion"], {"rounds": "2", "epochs": "1"}, small=True)
    avg, ssd = cells_of(place, [0])
    with interrupted_at(3, monkeypatch), pytest.raises(KeyboardInterrupt):
        batches.run_cells([avg, ssd], out, workers=1)
    assert (out / "under-way" / "batch" / "runs.json").is_file()
    return {"avg": avg, "ssd": ssd, "other": replace(ssd, column="other")}


@pytest.mark.parametrize("wanted", [("avg", "ssd", "other"), ("avg", "other"), ("ssd",)], ids=" ".join)
def test_an_interrupted_batch_goes_on_by_whatever_name_its_rest_is_wanted(
    wanted: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = cut_short(tmp_path, monkeypatch)
    begun = batches.interrupted(tmp_path, [cells[name] for name in wanted])
    assert [[cell.name for cell in batch] for _, batch in begun] == [[cells["avg"].name, cells["ssd"].name]]
    batches.run_cells([], tmp_path, 1, begun=begun)
    assert not (tmp_path / "under-way").exists()
    assert {key: str(run.relative_to(tmp_path)) for key, run in finished_cells([tmp_path]).items()} == {
        cells[name].key: cells[name].name for name in ("avg", "ssd")
    }


def test_what_a_batch_finished_comes_home_when_its_rest_is_run_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = cut_short(tmp_path, monkeypatch)
    assert batches.interrupted(tmp_path, [cells["avg"]]) == []  # nobody wants its rest yet
    batches.run_cells([cells["other"]], tmp_path, 1)
    assert not (tmp_path / "under-way").exists()
    assert {str(run.relative_to(tmp_path)) for run in finished_cells([tmp_path]).values()} == {
        cells["avg"].name,
        cells["other"].name,
    }


def test_an_interrupted_batch_of_other_kernels_waits_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cell is finished with our kernels, and without them cut short after two of its three rounds."""
    (place, *_) = places_of(EXPERIMENTS["figure-confusion"], {"rounds": "3", "epochs": "1"}, small=True)
    (ours,) = cells_of(place, [0], ["fedavg"])
    plain = replace(ours, recipe=replace(ours.recipe, kernels="off"))
    with interrupted_at(3, monkeypatch), pytest.raises(KeyboardInterrupt):
        batches.run_cells([plain], tmp_path, workers=1)
    assert batches.interrupted(tmp_path, [ours]) == []  # nobody wants it with these kernels
    batches.run_cells([ours], tmp_path, workers=1)
    batches.run_cells([], tmp_path, workers=1)
    assert len(list(tmp_path.glob("under-way/batch/**/rounds.jsonl"))) == 1
    begun = batches.interrupted(tmp_path, [plain])
    assert [[cell.recipe.kernels for cell in batch] for _, batch in begun] == [["off"]]
    batches.run_cells([plain], tmp_path, workers=1, begun=begun)
    assert not (tmp_path / "under-way").exists()
    found = {recipe.kernels: folder for recipe, folder in recipes_of_finished([tmp_path])}
    assert found.keys() == {"on", "off"}
    header = json.loads((found["off"] / "rounds.jsonl").read_text().splitlines()[0])
    assert header["resumed"][0]["round"] == 2


def test_what_does_not_say_what_it_is_is_gathered(tmp_path: Path) -> None:
    """As after a kill and a damaged disk: finished and unfinished runs where they ran, and no plan of them."""
    reproduced = small_reproduction(tmp_path)
    (reproduced / "table1-cifar10").rename(reproduced / "aside")
    batch = reproduced / "under-way" / "batch"
    batch.mkdir(parents=True)
    (reproduced / "aside").rename(batch / "table1-cifar10")
    (batch / "table1-cifar10" / "fedssd-0" / "summary.json").unlink()
    assert batches.interrupted(reproduced, []) == []
    assert [path.parent.name for path in reproduced.rglob("summary.json")] == ["fedavg-0"]
    assert not (reproduced / "under-way").exists()
