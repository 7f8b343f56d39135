"""run and compare for real, on a federation small enough to wait for; and Ctrl-C while they work."""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from fedssd.cli import main

Captured = pytest.CaptureFixture[str]
SMALL = shlex.split("--engine reference --clients 3 --rounds 2 --epochs 1 --lr 0.1")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_run_says_what_it_does_how_it_went_and_where_it_is(here: Path, capsys: Captured) -> None:
    assert main(["run", "--data", "digits", *SMALL, "--set", "fedssd.m_max=0.1"]) == 0
    printed = capsys.readouterr()
    short = "a short run: rounds × epochs = 2 × 1 where the recipe digits has 20 × 10; its accuracy says little"
    opening = f"fedssd on digits, dirichlet:0.5, 3 clients, 2 rounds of 1 epoch\n{short}\nreference engine"
    assert printed.err.startswith(opening)
    result, local, brief, cost, where = printed.out.splitlines()
    assert brief == short
    assert result.startswith("fedssd on digits, seed 0: global accuracy ")
    assert "forgetting gap" in local
    assert "MB up" in cost
    assert where.startswith("results: runs/digits-fedssd-0/")
    folder = here / "runs" / "digits-fedssd-0"
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 1 + 2
    assert "m_max = 0.1" in (folder / "recipe.toml").read_text()


def test_json_is_the_summary_and_the_same_recipe_gives_the_same_numbers(here: Path, capsys: Captured) -> None:
    assert main(["run", *SMALL, "--json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert first == json.loads((here / "runs" / "digits-fedssd-0" / "summary.json").read_text())
    assert main(["run", "--recipe", "runs/digits-fedssd-0/recipe.toml", "--json", "--quiet"]) == 0
    printed = capsys.readouterr()
    again = json.loads(printed.out)
    assert printed.err == ""
    assert (again["final"], again["recipe_hash"]) == (first["final"], first["recipe_hash"])
    assert (here / "runs" / "digits-fedssd-0-2").is_dir()  # a taken name is numbered


def test_every_way_to_set_a_key_means_the_same(here: Path, capsys: Captured) -> None:
    (here / "recipe.toml").write_text('engine = "reference"\nclients = 3\nrounds = 1\nepochs = 1\nlr = 0.5\n')
    words = ["run", "--recipe", "recipe.toml", "--lr", "0.1", "--set", "batch=32", "--no-evaluate-local", "--json"]
    assert main([*words, "--out", "elsewhere", "--quiet"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert "local_acc" not in summary["final"]
    written = (here / "elsewhere" / "recipe.toml").read_text()
    for line in ("lr = 0.1", "batch = 32", "rounds = 1", "evaluate_local = false"):
        assert line in written.splitlines()


def test_compare_prints_and_writes_the_table(here: Path, capsys: Captured) -> None:
    words = ["--methods", "fedavg,fedssd", "--seeds", "0,1", "--workers", "1"]
    assert main(["compare", *SMALL, *words]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("2 methods × 2 seeds on digits")
    lines = printed.out.splitlines()
    assert [line.split()[0] for line in lines[3:5]] == ["fedavg", "fedssd"]
    assert "over 2 seeds" in printed.out
    assert lines[-1].startswith("results: runs/compare-digits/")
    folder = here / "runs" / "compare-digits"
    ElementTree.fromstring((folder / "curves.svg").read_text())
    assert "| fedssd |" in (folder / "table.md").read_text()
    rows = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    summaries = [json.loads((folder / f"fedssd-{seed}" / "summary.json").read_text()) for seed in (0, 1)]
    mean = sum(summary["final"]["acc"] for summary in summaries) / 2
    assert float(rows[1]["final_acc_mean"]) == pytest.approx(mean, rel=1e-9)


def test_compare_as_json(capsys: Captured) -> None:
    words = ["--methods", "fedavg", "--seeds", "3", "--workers", "1", "--quiet", "--json"]
    assert main(["compare", *SMALL, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(run["method"], run["seed"]) for run in found["runs"]] == [("fedavg", 3)]


BARE = """
import sys
for name in ("rich", "sklearn", "PIL", "pandas"):
    sys.modules[name] = None  # importing it now fails
from fedssd.cli import main
sys.stderr.isatty = lambda: True
sys.exit(main(sys.argv[1:]))
"""


def test_a_bare_machine_needs_torch_numpy_scipy_and_safetensors_only(here: Path) -> None:
    draws = np.random.default_rng(0)
    np.savez(here / "mine.npz", x=draws.normal(size=(90, 4)).astype(np.float32), y=np.arange(90) % 3)
    words = ["run", "--data", "mine.npz", *SMALL, "--auxiliary", "2"]
    done = subprocess.run([sys.executable, "-c", BARE, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2/2 rounds  fedssd seed 0: " in done.stderr
    assert "results: runs/mine-fedssd-0/" in done.stdout


def still_running(session: int) -> list[str]:
    """Processes of a session that are alive; the dead that nobody has collected yet do not count."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it may end while we look
            state, _parent, _group, its_session = status.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                found.append(status.parent.name)
    return found


def recorded(folder: Path) -> int:
    return sum(max(0, file.read_bytes().count(b"\n") - 1) for file in folder.rglob("rounds.jsonl"))


@pytest.mark.parametrize("command", ["run", "compare --methods fedavg,fedssd --seeds 0,1 --workers 2"])
def test_an_interruption_says_what_was_kept_and_leaves_no_process(command: str, here: Path) -> None:
    words = [sys.executable, "-m", "fedssd", *command.split(), *SMALL, "--rounds", "5000", "--out", "kept", "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, start_new_session=True, env=environment) as job:
        began = time.monotonic()
        while recorded(here / "kept") < 3 and time.monotonic() - began < 60:
            time.sleep(0.1)
        os.killpg(job.pid, signal.SIGINT)  # as a terminal does: every process of the job hears it
        out, err = job.communicate(timeout=30)
    assert job.returncode == 130
    assert out == ""
    assert err.count("\n") == 1, err
    rounds = recorded(here / "kept")
    assert rounds >= 3
    for record in (here / "kept").rglob("rounds.jsonl"):
        last = record.read_bytes().count(b"\n") - 1
        assert (record.parent / "checkpoint" / f"round-{last}.json").exists()
    assert err.startswith(f"fedssd: interrupted; {rounds} rounds")
    assert err.endswith("kept in kept; go on with: python -m fedssd resume kept\n")
    limit = time.monotonic() + 20  # multiprocessing's own helper ends by itself, a moment after its parent
    while still_running(job.pid) and time.monotonic() < limit:
        time.sleep(0.1)
    assert still_running(job.pid) == []


@pytest.mark.slow
def test_workers_go_with_a_parent_that_is_killed(here: Path) -> None:
    """Otherwise they would still write into a folder that is being resumed."""
    words = "compare --methods fedavg,fedssd --seeds 0,1 --workers 2 --rounds 5000 --out kept --quiet"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "fedssd",
        *words.split(),
        *(word for word in SMALL if word not in ("--rounds", "2")),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True, env=environment) as job:
        began = time.monotonic()
        while recorded(here / "kept") < 3 and time.monotonic() - began < 60:
            time.sleep(0.1)
        job.kill()
    limit = time.monotonic() + 20
    while still_running(job.pid) and time.monotonic() < limit:
        time.sleep(0.1)
    assert still_running(job.pid) == []
