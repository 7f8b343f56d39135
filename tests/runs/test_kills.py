"""A run that is killed at any moment and resumed ends as if nothing had happened, for every method and both engines."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from killing import Ended, Nursery, outcome

from fedssd.cli import main
from fedssd.methods import LOCALS, SERVERS

ENGINES = ("reference", "vectorised")
METHODS = [*((local, "fedavg") for local in LOCALS), *(("fedavg", server) for server in SERVERS if server != "fedavg")]
FEW = [("moon", "fedavg"), ("scaffold", "fednova")]  # memories at the clients, at the server, and a server half
KILLS = 20  # of every method
OPTIONS = {"feddf": ["--set", "feddf.steps=5"]}
KEYS = (
    "--data samples.npz --clients 5 --participation 0.4 --partition iid --auxiliary 3 --rounds 5 --epochs 2 --batch 8"
)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as one:
        yield one


@pytest.fixture(autouse=True)
def samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three clouds of points, few enough for a round to take milliseconds."""
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(5)
    y = np.arange(150) % 3
    x = draws.normal(size=(150, 4)) + 2 * draws.normal(size=(3, 4))[y]
    np.savez("samples.npz", x=x.astype(np.float32), y=y)


def command(method: str, server: str, engine: str) -> list[str]:
    words = ["--method", method, "--server", server, "--engine", engine, "--checkpoint-every", "1", "--quiet"]
    return ["run", *KEYS.split(), *words, *OPTIONS.get(server, [])]


def no_traceback(ended: Ended) -> None:
    assert "Traceback" not in ended.said, ended.said
    assert ended.killed or ended.status == 0, ended.said


def check_kills(nursery: Nursery, method: str, server: str, engine: str, kills: int, *more: str) -> None:
    """Kill and resume, over and over; whenever a run gets to its end, compare it and begin another."""
    words = [*command(method, server, engine), *more]
    whole = nursery.run(*words, "--out", "whole")
    no_traceback(whole)
    expected = outcome(Path("whole"))
    draw = random.Random(f"{method} {server} {engine}")
    done, number = 0, 0
    while done < kills:
        folder = Path(f"killed-{number}")
        begun = (folder / "recipe.toml").exists()
        again = ["resume", str(folder), "--quiet"] if begun and draw.random() < 0.5 else None
        moment = {"after": draw.uniform(0, whole.seconds)} if draw.random() < 0.5 else {"at": draw.randint(1, 70)}
        ended = nursery.run(*(again or [*words, "--out", str(folder), "--resume"]), **moment)
        no_traceback(ended)
        done += ended.killed
        if done == kills and ended.killed:
            ended = nursery.run(*words, "--out", str(folder), "--resume")
            no_traceback(ended)
        if not ended.killed:
            assert outcome(folder) == expected
            number += 1


@pytest.mark.parametrize(("method", "server", "engine"), [(*FEW[0], "reference"), (*FEW[1], "vectorised")])
def test_some_methods_survive_kills(nursery: Nursery, method: str, server: str, engine: str) -> None:
    check_kills(nursery, method, server, engine, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "server"), METHODS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_method_survives_kills(nursery: Nursery, method: str, server: str, engine: str) -> None:
    check_kills(nursery, method, server, engine, KILLS // len(ENGINES))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("method", "server"), FEW)
def test_a_deterministic_run_on_a_gpu_survives_kills(nursery: Nursery, method: str, server: str) -> None:
    check_kills(nursery, method, server, "vectorised", 3, "--device", "cuda", "--deterministic")


@pytest.mark.slow
def test_the_program_itself_survives_a_kill(tmp_path: Path) -> None:
    """Without any help of ours: ``python -m fedssd run``, SIGKILL, ``python -m fedssd resume``."""
    words = [sys.executable, "-m", "fedssd", *command("fedcurv", "fedavg", "reference"), "--rounds", "40"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*words, "--out", "killed"], env=environment) as process:
        limit = time.monotonic() + 60
        while not (tmp_path / "killed/checkpoint/round-3.json").exists() and time.monotonic() < limit:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    subprocess.run([*words[:3], "resume", "killed"], env=environment, check=True, capture_output=True)
    assert main([*words[3:], "--out", "whole"]) == 0
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("times", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_a_killed_comparison_goes_on(nursery: Nursery, tmp_path: Path, times: int) -> None:
    """Runs that went side by side go on side by side: their rounding depends on it."""
    words = ["compare", *KEYS.split(), "--methods", "fedavg,moon", "--seeds", "0,1", "--engine", "vectorised"]
    words += ["--checkpoint-every", "1", "--quiet", "--workers", "1"]
    whole = nursery.run(*words, "--out", "whole")
    no_traceback(whole)
    draw = random.Random(7)
    kills = 0
    while kills < times:
        folder = f"killed-{kills}"
        ended = nursery.run(*words, "--out", folder, "--resume", at=draw.randint(5, 120))
        kills += ended.killed
        if ended.killed and times > 1:
            no_traceback(nursery.run(*words, "--out", folder, "--resume", after=draw.uniform(0, whole.seconds)))
        if ended.killed:
            no_traceback(nursery.run(*words, "--out", folder, "--resume"))
        for run in sorted((tmp_path / "whole").glob("*-*")):
            assert outcome(tmp_path / folder / run.name) == outcome(run)
        assert (tmp_path / folder / "table.csv").exists()


@pytest.mark.parametrize(
    ("sent", "status", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize("engine", ["reference", pytest.param("vectorised", marks=pytest.mark.slow)])
def test_a_signal_is_answered_with_a_checkpoint_and_the_way_on(
    nursery: Nursery, sent: int, status: int, word: str, engine: str
) -> None:
    words = [*command("moon", "fedavg", engine), "--rounds", "20", "--checkpoint-every", "auto"]
    ended = nursery.run(*words, "--out", "stopped", lines=("stopped/rounds.jsonl", 4), by=sent)
    assert ended.status == status, ended.said
    rounds = (Path("stopped") / "rounds.jsonl").read_bytes().count(b"\n") - 1
    assert rounds >= 3
    assert ended.said.count("\n") == 1
    assert ended.said.startswith(f"fedssd: {word}; {rounds} rounds kept in stopped; go on with: ")
    assert ended.said.endswith(" resume stopped\n")
    assert (Path("stopped") / "checkpoint" / f"round-{rounds}.json").exists()
    no_traceback(nursery.run("resume", "stopped", "--quiet"))
    no_traceback(nursery.run(*words, "--out", "whole"))
    assert outcome(Path("stopped")) == outcome(Path("whole"))
