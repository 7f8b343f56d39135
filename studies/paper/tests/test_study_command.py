"""``python -m studies.paper run study``: a part is run once, and mistakes are one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies.paper.__main__ import main
from studies.paper.batches import RECORD
from studies.paper.study.design import load_design
from studies.paper.study.parts import Study
from studies.paper.study.trials import BASE
from studies.paper.tests.told import Told

ALONG = ["what", "it", "is", "compared", "with"]
TINY = ["--scale", "small", "--rounds", "1", "--set", "epochs=1", "--workers", "1", "--quiet"]


@pytest.mark.quick
def test_a_departure_that_did_not_survive_is_confirmed_if_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing survives a screen of which all ends are alike; weight decay has two arms, each beside its base."""
    command = ["run", "study", *TINY, "--seeds", "0,3", "--out", str(tmp_path / "out")]
    study = Study(load_design(), True, {"rounds": "1", "epochs": "1"}, (0,), (3,))
    assert [t.group for t in study.trials("confirm", Told(lambda *_: 60.0))] == [BASE] * len(study.design.arms)
    assert {t.label for t in study.optional("confirm")} == {t.label for t in study.possible("confirm")} - {BASE}
    assert study.optional("report") == []
    assert main([*command, "--part", "confirm", "--only", "weight_decay=1e-05", "--plan"]) != 0
    assert "follows from part 'screen'" in capsys.readouterr().err


def test_a_part_runs_once_and_leaves_records_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "study", *TINY, "--part", "screen", "--only", "floor", "--seeds", "1"]
    out = tmp_path / "out"
    for expected in (3, 0):  # FedAvg and FedSSD at the base, and FedSSD without the floor
        assert main([*command, "--out", str(out), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["ran"] == expected
    runs = sorted(path.parent for path in out.rglob("summary.json"))
    assert {str(run.relative_to(out)) for run in runs} == {
        f"screen/{group}/fedssd-0.5/fedssd-1" for group in (BASE, "floor/fedssd.floor=0.0")
    } | {f"screen/{BASE}/fedavg/fedavg-1"}
    assert {path.name for run in runs for path in run.iterdir()} == set(RECORD)
    page = (out / "study.md").read_text()
    assert page.startswith("On digits, in the place of CIFAR-10")
    rows = [line for line in page.splitlines() if line.startswith("| `fedssd.floor=0.0` | fedssd-0.5 | 1 |")]
    assert len(rows) == 1
    assert rows[0].endswith("| one seed says nothing |")
    assert "| `fedcad.lam=0.01` | fedcad | 1 | not run yet | not run yet | – | not run yet |" in page
    assert (out / "images" / "study-mechanism.svg").is_file()
    assert main([*command, "--out", str(out), "--plan"]) == 0
    _, counts, _, *rows = capsys.readouterr().out.splitlines()
    assert counts.split() == ["screen", "3", "3", "0", "0", "0.0"]
    assert [row.split() for row in rows] == [
        ["setting", "or", "choice", "label", "arm", "seeds", "finished"],
        ["floor", "fedssd.floor=0.0", "fedssd-0.5", "1", "1", "of", "1"],
        ["base", "base", "fedavg", "1", "1", "of", "1", *ALONG],
        ["base", "base", "fedssd-0.5", "1", "1", "of", "1", *ALONG],
    ]
    assert main([*command, "--out", str(out), "--plan", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["parts"]
    rows = plan.pop("rows")
    assert plan == {"part": "screen", "cells": 3, "finished": 3, "programs": 0, "widest": 0, "model_steps": 0}
    named, *along = rows
    assert named == {
        "setting": "floor",
        "label": "fedssd.floor=0.0",
        "arm": "fedssd-0.5",
        "seeds": [1],
        "finished": 1,
        "comes_along": False,
    }
    assert [(row["setting"], row["arm"], row["comes_along"]) for row in along] == [
        (BASE, "fedavg", True),
        (BASE, "fedssd-0.5", True),
    ]


def test_a_strength_on_digits_runs_beside_fedavg_on_its_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "study", *TINY, "--part", "digits-columns", "--only", "M_max = 0.3", "--only", "#K = 2"]
    out = tmp_path / "out"
    assert main([*command, "--seeds", "101", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ran"] == 2
    place = "digits-columns/table2-classes-2"
    assert {str(path.parent.relative_to(out)) for path in out.rglob("summary.json")} == {
        f"{place}/fedavg/fedavg-101",
        f"{place}/fedssd.m_max=0.3/fedssd/fedssd-101",
    }
    page = (out / "study.md").read_text()
    assert "| `digits-columns` | 35 | 2 | 101 | 1 |\n" in page
    (row,) = (line for line in page.splitlines() if line.startswith("| #K = 2 |") and line.count("|") == 9)
    gain = row.split(" | ")[2:]  # of 0.01, 0.03, 0.1, 0.3, 1 and 3
    assert [cell.strip(" |") for cell in gain[:3] + gain[4:]] == ["–"] * 5
    assert gain[3] != "–"
    assert "best over all columns on the tuning seeds" not in page  # of which one was run
    assert (out / "chosen.toml").read_text().count("\n") == 1  # one column of five chooses nothing


@pytest.mark.quick
def test_a_plan_lists_the_rows_of_what_goes_by_all_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One departure on one arm of two, the base of that arm and FedAvg with the same departure, on two seeds each."""
    command = ["run", "study", *TINY, "--plan", "--seeds", "0,2", "--out", str(tmp_path / "out")]
    names = ["--only", "weight_decay=1e-05", "--only", "fedssd-0.5"]
    assert main([*command, "--part", "screen", *names, "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["parts"]
    assert [(row["label"], row["arm"], row["comes_along"]) for row in plan["rows"]] == [
        ("weight_decay=1e-05", "fedssd-0.5", False),
        (BASE, "fedssd-0.5", True),
        ("weight_decay=1e-05", "fedavg", True),
    ]
    assert [(row["seeds"], row["finished"]) for row in plan["rows"]] == [([0, 2], 0)] * 3
    assert plan["cells"] == 6
    assert main([*command, "--part", "screen"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2  # without names the counts alone
    assert main([*command, "--part", "screen", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["parts"][0]["rows"]
    assert {row["arm"] for row in rows if row["setting"] == BASE} == {*load_design().arms}


def test_of_a_run_s_rounds_the_last_alone_is_kept_in_full(tmp_path: Path) -> None:
    command = ["run", "study", *TINY, "--rounds", "2", "--part", "screen", "--only", "floor", "--seeds", "1"]
    assert main([*command, "--out", str(tmp_path / "out"), "--quiet"]) == 0
    for record in (tmp_path / "out").rglob("fedssd-1/rounds.jsonl"):
        _, first, last = map(json.loads, record.read_text().splitlines())
        assert last.keys() - first.keys() == {"credibility", "confusion", "client_0"}
        assert last["local"].keys() - first["local"].keys() == {"acc"}
        assert first["global"]["acc"] == pytest.approx(first["forgetting"] + first["local"]["acc_mean"])


@pytest.mark.quick
def test_a_plan_of_all_says_what_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "study", *TINY, "--plan", "--seeds", "1,101", "--out", str(tmp_path / "out")]
    assert main([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["parts"]
    assert [row["part"] for row in rows] == [
        "screen",
        "profile",
        "tune",
        "columns",
        "compose",
        "digits-columns",
    ]  # choose
    assert ["waits" in row for row in rows] == [False, False, True, True, True, False]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "tune            part 'tune' of the study follows from part 'profile'" in shown
    heads, *_, last = shown.splitlines()
    assert last.split()[:3] == ["digits-columns", "35", "0"]  # FedAvg and six strengths on five columns, one seed
    assert heads.index("cells") + len("cells") == last.index("35") + len("35")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--part", "report", "--seeds", "0"], "part 'report' reports, and choices are made on seeds 0, 1, 2"),
        (["--part", "screen", "--seeds", "3"], "part 'screen' chooses"),
        (
            ["--part", "scren"],
            "expected one of screen, confirm, profile, tune, columns, report, compose, best, "
            "digits-columns, digits-choices, digits, all (did you mean",
        ),
        (["--part", "bogus", "--plan"], "unknown part 'bogus'"),
        (["--part", "bogus", "--seeds", "1"], "unknown part 'bogus'"),
        (["--plan", "--rounds", "0"], "rounds expects a whole number of at least 1"),
        (
            ["--only", "fedssd-outside"],
            "needs --part beside it; the parts that have 'fedssd-outside': screen, confirm,",
        ),
        (["--only", "fedsdd-outside"], "is in no part of the study (did you mean 'fedssd-outside'?)"),
        (
            ["--part", "screen", "--only", "floor", "--only", "fedcad"],
            "no row of part 'screen' goes by --only 'floor' and 'fedcad' together",
        ),
        (["--part", "screen", "--only", "floor", "--only", "hed"], "--only expects one of base, head"),
        (["--only", "FedProx", "--only", "#K = 2"], "the parts that have 'FedProx' and '#K = 2': report"),
        (["--part", "report", "--only", "M_max = 7"], "--only expects one of #K = 2, #K = 5, δ = 0.1, δ = 0.5, δ = 10"),
        (["--part", "report", "--only", "#K=7"], "got '#K=7' (did you mean '#K = "),
        (["--part", "digits-columns", "--seeds", "0"], "done on seeds 100, 101, 102 alone: got 0"),
        (["--part", "screen", "--only", "padding"], "--only expects one of base, head, weight-decay, partial-batch"),
        (["--pipeline", "head=on"], "the study has no pipeline 'head=on': expected one of head=auto,weight_decay=0.0,"),
        (
            ["--part", "screen", "--pipeline", "x"],
            "for the parts that have one (tune, columns, report, compose, best), got --part",
        ),
        (["--set", "fedssd.m_max=3"], "the study itself sets fedssd.m_max in some of its recipes"),
        (["--part", "tune"], "follows from part 'profile'"),
        (["--part", "screen", "--only", "hed"], "--only expects one of base, head"),
        (["--dataset", "cifar10"], "--dataset is for the paper's tables"),
        (["--seeds", "x"], "whole numbers"),
        (["--seeds", ","], "whole numbers"),
        (["--seeds", "0,0"], "the study runs every seed once: expected different seeds, got 0,0"),
        (["--part", "best", "--seeds", "0,3,4,3"], "expected different seeds, got 3,4,3"),
    ],
)
@pytest.mark.quick
def test_mistakes_are_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "study", *TINY, *words, "--out", str(tmp_path / "out")]) == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.quick
def test_flags_of_the_study_are_refused_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "table1", "--part", "tune"]) == 2
    assert "--part is for the study" in capsys.readouterr().err
    assert main(["run", "table1", "--pipeline", "x"]) == 2
    assert "--pipeline is for the study" in capsys.readouterr().err
