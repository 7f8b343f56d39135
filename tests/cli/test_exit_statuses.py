"""Every way in which a run or a federation ends, and its exit status: 0, 1, 2, or 128 and a signal's number.

Elsewhere, through processes and real signals: wrong input (test_bad_inputs), a full disk (runs/test_checkpoints),
Ctrl-C and SIGTERM with what they leave (test_commands, runs/test_kills), status 1 after three rollbacks
(runs/test_spoiled_models), damaged checkpoints (runs/test_resume), keys and doors (flower/test_enrolment, test_door).
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedssd.cli import main
from fedssd.errors import UserError
from fedssd.flower.app import write_app
from fedssd.flower.command import Ending
from fedssd.flower.settings import Settings
from fedssd.recipe import load_recipe
from fedssd.runs.signals import Terminated

Captured = pytest.CaptureFixture[str]
RUN = shlex.split(
    "run --engine reference --clients 3 --rounds 3 --epochs 1 --model mlp --method fedavg --quiet --out out"
)
NO_ROOM = "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried 8 bytes."


def fails(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSSD_CACHE", str(tmp_path / "cache"))


IN_A_ROUND: dict[str, tuple[BaseException, int, str]] = {
    "memory": (MemoryError(), 2, "out of memory"),
    "a card's memory": (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"), 2, "out of memory"),
    "a processor's memory": (RuntimeError(NO_ROOM), 2, "out of memory"),
    "a full disk": (UserError(f"cannot write to out: {os.strerror(errno.ENOSPC)}"), 2, "No space left on device"),
    "Ctrl-C": (KeyboardInterrupt(), 130, "interrupted"),
    "SIGTERM": (Terminated(), 143, "terminated"),
    "whoever reads is gone": (BrokenPipeError(), 141, ""),
}


@pytest.mark.parametrize("what", IN_A_ROUND)
def test_what_ends_a_run_in_its_second_round(what: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    from fedssd.runs import loop

    error, status, says = IN_A_ROUND[what]
    real, rounds = loop.one_round, list[int]()

    def one_round(*args: Any) -> Any:
        rounds.append(len(rounds) + 1)
        return real(*args) if len(rounds) == 1 else fails(error)()

    monkeypatch.setattr(loop, "one_round", one_round)
    monkeypatch.setattr("fedssd.cli._close_quietly", lambda: None)
    assert main(RUN) == status
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == (1 if says else 0)
    assert (Path("out") / "rounds.jsonl").read_bytes().count(b"\n") == 2  # the header, and the round it has


def test_a_fault_of_ours_is_no_fault_of_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python shows it whole and ends with status 1."""
    monkeypatch.setattr("fedssd.runs.loop.one_round", fails(RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        main(RUN)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("run --recipe missing.toml", 2),
        ("run --rounds none", 2),
        ("run --data missing.npz", 2),
        ("run --data cifar10", 2),
        ("resume missing", 2),
        ("report missing", 2),
        ("runn", 2),
        ("run --no-such-flag", 2),
        ("--version", 0),
        ("run --help", 0),
        ("federation up missing", 2),
        ("federation run missing", 2),
        ("federation serve missing", 2),
        ("federation list missing", 2),
        ("federation approve missing", 2),
        ("federation journal verify missing", 2),
        ("federation node server:1 --client 0 --data . --key missing --authority missing", 2),
    ],
)
def test_commands_that_cannot_begin(words: str, status: int) -> None:
    assert main(words.split()) == status


ENDINGS = {
    "completed": ("finished:completed", "", 0),
    "too few clients": ("finished:failed", "round 4 needs 3 clients, and 2 were connected after 20 s", 2),
    "a run that failed": ("finished:failed", "failed in round 3: 3 rounds in a row were rolled back", 2),
    "the server's app is gone": ("finished:failed", "No heartbeat received from the task", 2),
    "stopped by its operator": ("finished:stopped", "", 2),
}


@pytest.mark.parametrize("what", ENDINGS)
def test_how_a_federation_s_run_ends(what: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    state, details, expected = ENDINGS[what]
    write_app(Path("lab"), load_recipe(None, {"clients": 2}), Settings())

    def run(_: Any, given: dict[str, Any], _say: Any) -> Ending:
        Path(given["out"]).mkdir(parents=True)
        (Path(given["out"]) / "summary.json").write_text('{"rounds": 3, "final": {"acc": 0.5}}')
        return Ending("1", state, details)

    monkeypatch.setattr("fedssd.flower.local.LocalFederation.run", run)
    assert main(["federation", "run", "lab"]) == expected
    said = capsys.readouterr().err
    assert said.count("\n") == (1 if expected else 0)
    assert not expected or (details or state) in said


@pytest.mark.parametrize(
    ("error", "expected", "says"),
    [
        (UserError("the SuperLink has ended: start it with `fedssd federation up`"), 2, "the SuperLink has ended"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Terminated(), 143, "terminated"),
    ],
)
def test_a_federation_s_server_is_lost_or_its_operator_leaves(
    error: BaseException, expected: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    write_app(Path("lab"), load_recipe(None, {"clients": 2}), Settings())
    monkeypatch.setattr("fedssd.flower.local.LocalFederation.run", fails(error))
    assert main(["federation", "run", "lab"]) == expected
    assert says in capsys.readouterr().err


def test_a_node_with_a_key_that_others_read_does_not_start(capsys: Captured) -> None:
    for name in ("key", "ca.crt", "samples"):
        Path(name).write_text("x")
    Path("key").chmod(0o644)
    words = "federation node 127.0.0.1:1 --client 0 --data samples --key key --authority ca.crt --state state"
    assert main(words.split()) == 2
    assert "key can be read by others (mode 644)" in capsys.readouterr().err


def test_an_app_that_nobody_approves_is_not_approved(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr("fedssd.flower.approval.read_code", lambda app: b"an app")
    monkeypatch.setattr("fedssd.flower.approval.describe", lambda content: "recipe.toml")
    assert main(["federation", "approve", "lab", "--state", "state"]) == 2
    assert "nobody is there to be asked" in capsys.readouterr().err
    assert not Path("state").exists()
