"""A user's method against runs that are there already: those are not run again, and only the like is compared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedssd.cli import bench, main
from fedssd.recipe import KEYS, MACHINE, Recipe
from fedssd.runs import tracking
from fedssd.runs.archive import write_pack
from fedssd.runs.read import packed
from fedssd.sweeps.cache import finished_cells
from fedssd.sweeps.grid import compare

METHOD = '''
from dataclasses import dataclass

from fedssd import Local


@dataclass(frozen=True)
class MyLoss(Local):
    """Nothing but cross-entropy: FedAvg under another name."""

    beta: float = 0.0

    def penalty(self, out, batch, target, params, sent, memory):
        return self.beta * out.logits.square().sum(-1)
'''
SHORT = {"rounds": "2", "epochs": "1"}
FLAGS = ["--seeds", "2", "--workers", "1", "--quiet"]


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg and FedProx on the bench's setting, cut short."""
    out = tmp_path_factory.mktemp("committed") / "runs"
    base = bench.setting_of("digits", "fedavg", SHORT)
    compare(base, ["fedavg", "fedprox"], [0, 1], out, workers=1)
    return out


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user is, with a file; the bench's setting is cut short like the committed runs."""
    monkeypatch.chdir(tmp_path)
    Path("my_method.py").write_text(METHOD)
    whole = bench.setting_of

    def short(dataset: str, method: str, changes: Mapping[str, str]) -> Recipe:
        return whole(dataset, method, {**changes, **SHORT})

    monkeypatch.setattr(bench, "setting_of", short)
    return tmp_path


def run(committed: Path, *more: str) -> int:
    return main(["bench", "my_method.py:MyLoss", *FLAGS, "--results", str(committed), *more])


def test_fedavg_under_another_name_gains_nothing_on_fedavg(
    here: Path, committed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in committed.rglob("*") if path.is_file()}
    assert run(committed, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ran"] == 2
    assert found["gains"]["fedavg"] == [0.0, 0.0]  # the same split, start and batches, so the same numbers
    assert list(found["gains"]) == ["fedavg", "fedprox"]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    folder = here / "runs" / "bench-MyLoss-digits"
    assert {path.name for path in folder.iterdir() if path.is_file()} >= {"bench.md", "bench.csv", "bench.tex"}
    assert "my_method.py:MyLoss" in (folder / "report.html").read_text()
    assert run(committed, "--json") == 0
    assert json.loads(capsys.readouterr().out)["ran"] == 0  # the same file: nothing to run
    Path("my_method.py").write_text(METHOD.replace("beta: float = 0.0", "beta: float = 0.0  # changed"))
    assert run(committed, "--json", "--against", "fedavg") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["ran"] == 2  # another file is another method
    assert list(again["gains"]) == ["fedavg"]


def test_packed_runs_are_rivals_as_their_folders_are(
    here: Path, committed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {file.parent.name: packed(file.parent) for file in committed.rglob("summary.json")}
    (here / "packs").mkdir()
    file = write_pack(runs, here / "packs" / "a.runs.jsonl.gz")
    gains = []
    for place in (committed, file.parent, file):
        assert run(place, "--json") == 0
        gains.append(json.loads(capsys.readouterr().out)["gains"])
    assert gains == [gains[0]] * 3
    assert set(gains[0]) == {"fedavg", "fedprox"}
    assert "a.runs.jsonl.gz" in (here / "runs" / "bench-MyLoss-digits" / "report.html").read_text()


@pytest.mark.usefixtures("here")
def test_the_table_is_printed(committed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(committed) == 0
    printed = capsys.readouterr().out
    assert "95 % interval" in printed
    assert "FedProx" in printed
    assert "+0.00" in printed


def test_a_run_on_another_split_is_refused(here: Path, committed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    altered = here / "altered"
    shutil.copytree(committed, altered)
    file = altered / "fedavg-1" / "rounds.jsonl"
    header, *rest = file.read_text().splitlines()
    file.write_text("\n".join([json.dumps(json.loads(header) | {"split_hash": "0" * 16}), *rest]) + "\n")
    assert run(altered) == 2
    assert "fedavg-1" in capsys.readouterr().err  # its checksums do not fit
    (altered / "fedavg-1" / "SHA256SUMS").unlink()  # as before there were any
    assert run(altered) == 2
    assert "fedavg seed 1" in capsys.readouterr().err
    assert not (here / "runs").exists()  # said before anything trains


def test_a_changed_import_is_another_method(here: Path, committed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FedAvg while the module it imports says 0, and something else once that says more."""
    Path("elsewhere").mkdir()
    file, helper = Path("elsewhere/my_method.py"), Path("elsewhere/strength.py")
    file.write_text("from strength import FACTOR\n" + METHOD.replace("self.beta", "FACTOR"))
    found = []
    for factor in (0.0, 0.5, 0.0):
        helper.write_text(f"FACTOR = {factor}\n")
        against = ["--results", str(committed), "--against", "fedavg", "--json"]
        assert main(["bench", f"{file}:MyLoss", *FLAGS, *against]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert [one["ran"] for one in found] == [2, 2, 0]
    assert found[0]["gains"]["fedavg"] == found[2]["gains"]["fedavg"] == [0.0, 0.0]
    assert found[1]["gains"]["fedavg"] != [0.0, 0.0]
    assert not list(here.rglob("__pycache__"))


LATE = """
    def server_memory(self, weights):
        return {"rounds": next(iter(weights["params"].values())).sum() * 0}

    def absorb(self, memory, weights, reports):
        return {"rounds": memory["rounds"] + 1}

    def broadcast(self, net, weights, memory, auxiliary):
        return {"a": memory["rounds"]} if memory["rounds"] < 1 else [][0]
"""


@pytest.mark.usefixtures("here")
def test_a_mended_file_begins_anew(committed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What failed in its second round was another method: nothing of it goes on."""
    Path("my_method.py").write_text(METHOD + LATE)
    assert run(committed, "--against", "fedavg") == 2
    line = len((METHOD + LATE).splitlines())
    expected = f"my_method.py:{line}: MyLoss.broadcast fails in round 2: IndexError: list index out of range"
    assert capsys.readouterr().err == f"fedssd: {expected}\n"
    Path("my_method.py").write_text(METHOD)
    assert run(committed, "--against", "fedavg", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ran"] == 2
    assert found["gains"]["fedavg"] == [0.0, 0.0]


def test_another_file_s_class_of_the_same_name_has_its_own_folder(
    here: Path, committed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("another.py").write_text(METHOD.replace("beta: float = 0.0", "beta: float = 0.5"))
    tables = []
    for file in ("my_method.py", "another.py", "./my_method.py", ".//another.py"):
        against = ["--results", str(committed), "--against", "fedavg", "--json"]
        assert main(["bench", f"{file}:MyLoss", *FLAGS, *against]) == 0
        found = json.loads(capsys.readouterr().out)
        tables.append((found["folder"], found["ran"], (here / found["folder"] / "bench.md").read_text()))
    assert [(folder, ran) for folder, ran, _ in tables] == [
        ("runs/bench-MyLoss-digits", 2),
        ("runs/bench-MyLoss-digits-2", 2),
        ("runs/bench-MyLoss-digits", 0),
        ("runs/bench-MyLoss-digits-2", 0),
    ]
    assert tables[0][2] == tables[2][2] != tables[1][2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against", "moon"], "no finished run of moon"),
        (["--dataset", "cifar11"], "did you mean 'cifar10'"),
        (["--set", "myloss.gamma=1"], "gamma"),
        (["--results", "."], "no finished run on the setting"),
        (
            ["--set", "lr=0.1"],
            "--set is for options of your method, such as myloss.beta=0.5; lr is a key of the recipe",
        ),
        (["--set", "lr-decay=0.9"], "lr_decay is a key of the recipe, which stays that of the committed runs"),
        (["--seeds", "0"], "at least 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_line(
    here: Path, committed: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(committed, *words) == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1
    assert not (here / "runs").exists()


def test_where_it_runs_can_be_set(here: Path, committed: Path) -> None:
    assert run(committed, "--set", "engine=reference", "--quiet") == 0
    (header, *_) = next((here / "runs").rglob("rounds.jsonl")).read_text().splitlines()
    assert json.loads(header)["engine"] == "reference"


@pytest.mark.quick
@pytest.mark.parametrize("key", sorted({*KEYS} - {*MACHINE}))
def test_no_key_of_the_recipe_can_be_set(key: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed key is another setting, on which nothing is committed."""
    assert main(["bench", "my_method.py:MyLoss", "--set", f"{key}=1"]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("fedssd bench: ")
    assert f" {key} " in complaint
    assert complaint.count("\n") == 1
    assert not (here / "runs").exists()


def test_looking_for_finished_runs_executes_no_file(here: Path, committed: Path) -> None:
    """A recipe in a folder somebody sent may name a file; that is no reason to load it."""
    folder = here / "sent"
    shutil.copytree(committed, folder)
    Path("evil.py").write_text("raise SystemExit('executed')")
    recipe = folder / "fedavg-0" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('method = "fedavg"', 'method = "evil.py:Evil"'))
    assert len(finished_cells([folder])) == 3


def test_committed_digits_runs_are_on_the_bench_s_setting() -> None:
    found = bench.rivals(bench.setting_of("digits", "fedavg", {}), 3, bench.COMMITTED)
    assert list(found)[:7] == ["fedavg", "fedprox", "fedcurv", "moon", "fedntd", "fedcad", "fedssd"]
    assert all([run.summary.seed for run in runs] == [0, 1, 2] for runs in found.values())


def test_committed_cifar10_runs_are_on_the_bench_s_setting() -> None:
    base = bench.setting_of("cifar10", "fedavg", {})
    assert {"fedavg", "fedssd"} <= set(bench.rivals(base, 3, bench.COMMITTED))


def test_a_run_that_does_not_say_what_it_was_trained_on_is_refused(
    here: Path, committed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    altered = here / "altered"
    shutil.copytree(committed, altered)
    file = altered / "fedprox-0" / "rounds.jsonl"
    header, *rest = file.read_text().splitlines()
    kept = {key: value for key, value in json.loads(header).items() if key != "data"}
    file.write_text("\n".join([json.dumps(kept), *rest]) + "\n")
    file.with_name("SHA256SUMS").unlink()
    assert run(altered) == 2
    assert "fedprox seed 0" in capsys.readouterr().err
    assert not (here / "runs").exists()


@pytest.mark.usefixtures("here")
def test_a_tracker_is_told_of_the_user_s_runs_where_they_will_be(
    committed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the folders they end in, not by those in which they are under way."""
    followed: dict[str, str] = {}

    def follow(run: tracking.Followed) -> SimpleNamespace:
        followed[run.name] = run.group
        return SimpleNamespace(last=0, tell=lambda number, figures: None, close=lambda whole: None)

    monkeypatch.setattr(tracking, "find_spec", lambda _: True)
    monkeypatch.setitem(tracking.TRACKERS, "wandb", follow)
    assert run(committed, "--out", "mine", "--track", "wandb") == 0
    found = [path.parent.relative_to("mine").as_posix() for path in Path("mine").rglob("summary.json")]
    assert followed == dict.fromkeys(found, "mine") != {}
    assert run(committed, "--out", "other", "--track", "wandbb") == 2
    assert "did you mean 'wandb'?" in capsys.readouterr().err
    assert not Path("other").exists()
