"""Resuming: exact, refusing what has changed, and never fooled by a damaged file."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from killing import outcome
from torch import nn

import fedssd
from fedssd.cli import main
from fedssd.core import tree
from fedssd.errors import UserError
from fedssd.experiment import record, workers
from fedssd.experiment.cadence import SHARE, SOONEST, Cadence
from fedssd.experiment.commit import source_commit
from fedssd.experiment.events import Event
from fedssd.experiment.record import RunFolder
from fedssd.experiment.sealing import sealed, unsealed

Captured = pytest.CaptureFixture[str]
RUN = shlex.split(
    "--data samples.npz --clients 4 --participation 0.5 --partition iid --auxiliary 3 --rounds 6 --epochs 1 --batch 8 "
    "--engine reference --method scaffold --checkpoint-every 1"
)
KEYS: dict[str, Any] = {
    "data": "samples.npz", "clients": 4, "participation": 0.5, "partition": "iid", "auxiliary": 3, "epochs": 1,
    "batch": 8, "engine": "reference", "checkpoint_every": "1",
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_samples()
    return tmp_path


def write_samples(shift: float = 0.0) -> None:
    draws = np.random.default_rng(5)
    y = np.arange(120) % 3
    x = draws.normal(size=(120, 4)) + 2 * draws.normal(size=(3, 4))[y] + shift
    np.savez("samples.npz", x=x.astype(np.float32), y=y)


def stop_after(rounds: int) -> Callable[[Event], None]:
    """A listener that presses Ctrl-C when a round has ended."""

    def listen(event: Event) -> None:
        if event.line is not None and event.line["round"] == rounds:
            raise KeyboardInterrupt

    return listen


def interrupted(folder: str, rounds: int = 4, of: int = 6, method: str = "scaffold", **keys: Any) -> Path:
    """A run that was stopped after some rounds."""
    with pytest.raises(KeyboardInterrupt):
        fedssd.run(method, **{**KEYS, "rounds": of, **keys}, out=folder, listen=stop_after(rounds))
    return Path(folder)


def whole(**keys: Any) -> dict[str, Any]:
    """The same rounds without a stop."""
    fedssd.run("scaffold", **{**KEYS, "rounds": 6, **keys}, out="whole")
    return outcome(Path("whole"))


def one_line(capsys: Captured) -> str:
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1, printed.err
    return printed.err


def test_flipped_bits_and_cut_files_are_recognised(here: Path, capsys: Captured) -> None:
    """200 damages at random places: no traceback, and never another result."""
    expected = whole(rounds=5)
    stopped = interrupted("stopped", rounds=4, of=5)
    draw = random.Random(3)
    for number in range(200):
        folder = here / "damaged"
        shutil.copytree(stopped, folder)
        files = sorted((folder / "checkpoint").iterdir())
        assert len(files) == 5  # two checkpoints, and the beginning
        hit = draw.choice(files)
        content = bytearray(hit.read_bytes())
        place = draw.randrange(len(content))
        if draw.random() < 0.5:
            content[place] ^= 1 << draw.randrange(8)
            hit.write_bytes(content)
        else:
            hit.write_bytes(content[:place])
        assert main(["resume", "damaged"]) == 0, number
        said = capsys.readouterr().err
        assert outcome(folder) == expected, f"{number}: {hit.name} at {place}"
        if hit.stem == "round-4":  # the newest, so it was looked at
            assert len(re.findall(r"^checkpoint damaged/checkpoint/round-4.json is not used: .+$", said, re.M)) == 1
            assert "going on after round 3" in said
        else:
            assert "going on after round 4" in said
        shutil.rmtree(folder)


def test_with_no_checkpoint_left_it_starts_again(capsys: Captured) -> None:
    expected = whole()
    folder = interrupted("stopped")
    for file in (folder / "checkpoint").iterdir():
        file.write_bytes(file.read_bytes()[:-3])
    assert main(["resume", "stopped"]) == 0
    assert "starting from the beginning" in capsys.readouterr().err
    assert outcome(folder) == expected


@pytest.mark.quick
def test_a_torn_or_longer_record_is_cut_back() -> None:
    expected = whole()
    folder = interrupted("stopped")
    rounds = folder / "rounds.jsonl"
    rounds.write_bytes(rounds.read_bytes() + b'{"round": 5, "global": {"acc": 0.9}}\n{"round": 6, "glo')
    assert main(["resume", "stopped", "--quiet"]) == 0
    assert outcome(folder) == expected


def test_a_record_that_lost_lines_falls_back(capsys: Captured) -> None:
    expected = whole()
    folder = interrupted("stopped")
    lines = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_bytes(b"".join(lines[:4]))  # the header and three rounds
    assert main(["resume", "stopped"]) == 0
    said = capsys.readouterr().err
    assert "round-4.json is not used: rounds.jsonl no longer has its 4 rounds" in said
    assert "going on after round 3" in said
    assert outcome(folder) == expected


@pytest.mark.quick
def test_more_rounds_later_equal_more_rounds_at_once() -> None:
    expected = whole()
    fedssd.run("scaffold", **KEYS, rounds=2, out="longer")
    assert main(["resume", "longer", "--rounds", "6", "--quiet"]) == 0
    assert _without_matrices(outcome(Path("longer"))) == _without_matrices(expected)


def _without_matrices(found: dict[str, Any]) -> dict[str, Any]:
    """A run that was extended keeps the confusion matrices of the rounds that were once its last."""
    rounds = [{key: value for key, value in line.items() if key != "confusion"} for line in found["rounds"]]
    return {**found, "rounds": rounds}


def test_fewer_rounds_than_there_are_is_refused(capsys: Captured) -> None:
    interrupted("stopped")
    assert main(["resume", "stopped", "--rounds", "3", "--quiet"]) == 2
    assert "has 4 rounds already, and rounds = 3 is fewer" in one_line(capsys)


def test_rounds_without_any_checkpoint_are_not_thrown_away(capsys: Captured) -> None:
    """As earlier versions left them."""
    folder = interrupted("stopped")
    shutil.rmtree(folder / "checkpoint")
    before = (folder / "rounds.jsonl").read_bytes()
    assert main(["resume", "stopped", "--quiet"]) == 2
    assert "holds rounds and no checkpoint to go on from" in one_line(capsys)
    assert (folder / "rounds.jsonl").read_bytes() == before


def test_a_finished_run_stays_as_it_is(capsys: Captured) -> None:
    expected = whole()
    assert main(["resume", "whole", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 6
    assert outcome(Path("whole")) == expected


def test_a_stop_within_a_round_keeps_the_round_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, the server's turn and evaluation can all be left without a trace."""
    from fedssd.engines.reference import ReferenceEngine
    from fedssd.experiment import run, underway

    expected = whole()
    for number, (place, name) in enumerate(
        ((ReferenceEngine, "train"), (ReferenceEngine, "evaluate"), (underway, "close_round"), (run, "round_line"))
    ):
        plain, calls = getattr(place, name), iter(range(100))

        def stopping(*args: Any, plain: Any = plain, calls: Any = calls) -> Any:
            found = plain(*args)
            if next(calls) == 2:
                raise KeyboardInterrupt
            return found

        with monkeypatch.context() as patched:
            patched.setattr(place, name, stopping)
            with pytest.raises(KeyboardInterrupt):
                fedssd.run("scaffold", **{**KEYS, "checkpoint_every": "auto"}, rounds=6, out=f"stopped-{number}")
        folder = Path(f"stopped-{number}")
        assert (folder / "checkpoint" / "round-2.json").exists()
        fedssd.run("scaffold", **{**KEYS, "checkpoint_every": "auto"}, rounds=6, out=folder, resume=True)
        found = outcome(folder)
        assert {**found, "recipe": ""} == {**expected, "recipe": ""}


CHANGES = {
    "lr = 0.01": ("lr = 0.02", "lr was 0.01 and is 0.02"),
    "seed = 0": ("seed = 1", "seed was 0 and is 1"),
    'method = "scaffold"': ('method = "fedavg"', "method was 'scaffold' and is 'fedavg'"),
}


@pytest.mark.parametrize("line", CHANGES)
def test_a_changed_recipe_is_refused_by_its_key(line: str, capsys: Captured) -> None:
    folder = interrupted("stopped")
    before = (folder / "rounds.jsonl").read_bytes()
    text = (folder / "recipe.toml").read_text()
    assert f"\n{line}\n" in text
    (folder / "recipe.toml").write_text(text.replace(f"\n{line}\n", f"\n{CHANGES[line][0]}\n"))
    assert main(["resume", "stopped", "--quiet"]) == 2
    assert CHANGES[line][1] in one_line(capsys)
    assert (folder / "rounds.jsonl").read_bytes() == before


def test_other_flags_are_refused_too(capsys: Captured) -> None:
    interrupted("stopped")
    assert main(["run", *RUN, "--out", "stopped", "--resume", "--momentum", "0.5", "--quiet"]) == 2
    assert "momentum was 0.9 and is 0.5" in one_line(capsys)


def test_a_changed_option_is_refused_by_its_name(capsys: Captured) -> None:
    interrupted("stopped", method="fedprox")
    words = [*RUN, "--method", "fedprox", "--set", "fedprox.mu=0.5", "--out", "stopped", "--resume", "--quiet"]
    assert main(["run", *words]) == 2
    assert "options.fedprox.mu was 0.01 and is 0.5" in one_line(capsys)


def test_changed_data_are_refused(capsys: Captured) -> None:
    interrupted("stopped")
    write_samples(shift=0.25)
    assert main(["resume", "stopped", "--quiet"]) == 2
    assert re.search(r"data \(its content\) was '[0-9a-f]{16}' and is '[0-9a-f]{16}'", one_line(capsys))


MINE = """
from dataclasses import dataclass
from fedssd import Local

@dataclass(frozen=True)
class Mine(Local):
    beta: float = 0.1

    def penalty(self, out, batch, target, params, sent, memory):
        return self.beta * out.logits.pow(2).sum(-1)
"""


def test_a_changed_method_file_is_refused(here: Path, capsys: Captured) -> None:
    (here / "mine.py").write_text(MINE)
    interrupted("stopped", method="mine.py:Mine")
    (here / "mine.py").write_text(MINE.replace("pow(2)", "pow(4)"))
    assert main(["resume", "stopped", "--quiet"]) == 2
    assert "method (its file) was" in one_line(capsys)


def reseal(file: Path, **changes: Any) -> None:
    """Change what a checkpoint says and seal it again, as another version would have."""
    content = unsealed(file)
    for key, value in changes.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) else value
    file.write_bytes(sealed(content))


def test_a_checkpoint_of_another_format_or_recipe_is_passed_over(capsys: Captured) -> None:
    expected = whole()
    for name, change, why in (
        ("format", {"format": 999}, "it is of format 999"),
        ("recipe", {"recipe": {"lr": 5.0}}, "lr was 5.0 and is 0.01"),
        ("round", {"round": 2}, "it is the one of round 2"),
        ("keys", {"machine": {"moon": "full"}}, "does not hold what a checkpoint holds"),
    ):
        folder = interrupted(name)
        reseal(folder / "checkpoint" / "round-4.json", **change)
        assert main(["resume", name]) == 0
        said = capsys.readouterr().err
        assert why in said
        assert "going on after round 3" in said
        assert outcome(folder) == expected


def test_another_machine_is_said(capsys: Captured) -> None:
    folder = interrupted("stopped")
    reseal(folder / "checkpoint" / "round-4.json", machine={"torch": "1.0", "processor": "PDP-11"})
    assert main(["resume", "stopped"]) == 0
    assert "processor was PDP-11 and is" in capsys.readouterr().err


def test_engine_width_and_threads_are_taken_from_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {**KEYS, "engine": "auto", "rounds": 6}
    folder = interrupted("stopped", engine="auto")
    written = unsealed(folder / "checkpoint" / "round-4.json")["machine"]
    assert (written["engine"], written["threads"]) == ("vectorised", 1)
    assert written["width"] > 0
    reseal(folder / "checkpoint" / "round-4.json", machine={"engine": "reference", "threads": 2})
    used = []
    from fedssd.engines.reference import ReferenceEngine

    plain = ReferenceEngine.train
    monkeypatch.setattr(
        ReferenceEngine, "train", lambda self, jobs: used.append(torch.get_num_threads()) or plain(self, jobs)
    )
    before = torch.get_num_threads()
    fedssd.run("scaffold", **keys, out=folder, resume=True)
    assert used == [2, 2]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_disk_that_fails_is_one_line_and_the_checkpoint_stays(
    code: int, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """At every operation in turn, so also in the middle of a checkpoint."""
    expected = whole()
    with monkeypatch.context() as patched:
        count = count_operations(patched, lambda _: None)
        assert main(["run", *RUN, "--out", "counted", "--quiet"]) == 0
    capsys.readouterr()
    for fatal in range(4, count[0], 7):

        def fail(number: int, fatal: int = fatal) -> None:
            if number >= fatal:
                raise OSError(code, os.strerror(code))

        folder = f"failed-{fatal}"
        with monkeypatch.context() as patched:
            count_operations(patched, fail)
            assert main(["run", *RUN, "--out", folder, "--quiet"]) == 2
        said = one_line(capsys)
        assert f"cannot write to {folder}" in said
        assert os.strerror(code) in said
        assert not list(Path(folder).rglob("*.part"))
        assert main(["run", *RUN, "--out", folder, "--resume", "--quiet"]) == 0
        assert outcome(Path(folder)) == expected
        capsys.readouterr()


def count_operations(patched: pytest.MonkeyPatch, each: Callable[[int], None]) -> list[int]:
    """Count what happens to files; ``each`` hears the number and may fail."""
    calls = [0]

    def counted(function: Any) -> Any:
        def call(*args: Any, **keys: Any) -> Any:
            calls[0] += 1
            each(calls[0])
            return function(*args, **keys)

        return call

    for name in ("fsync", "replace"):
        patched.setattr(os, name, counted(getattr(os, name)))
    return calls


def test_a_checkpoint_is_synced_before_it_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted("stopped", rounds=1)
    seen: list[tuple[str, str]] = []
    sync, rename = os.fsync, os.replace

    def name_of(file: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{file}")).name

    monkeypatch.setattr(os, "fsync", lambda file: seen.append(("sync", name_of(file))) or sync(file))
    monkeypatch.setattr(os, "replace", lambda a, b: seen.append(("name", Path(b).name)) or rename(a, b))
    fedssd.run("scaffold", **KEYS, rounds=6, out="stopped", resume=True)
    mine = [step for step in seen if "round-2" in step[1] or step in (("sync", "checkpoint"), ("sync", "rounds.jsonl"))]
    start = mine.index(("sync", "rounds.jsonl"))
    expected = []
    for file in ("round-2.safetensors", "round-2.json"):
        expected += [("sync", f"{file}.part"), ("name", file)]
    assert mine[start + 1 : start + 6] == [*expected, ("sync", "checkpoint")]


@pytest.mark.quick
def test_the_last_two_checkpoints_and_the_beginning_are_kept() -> None:
    folder = interrupted("stopped", rounds=5)
    names = sorted(file.name for file in (folder / "checkpoint").iterdir())
    assert names == ["round-0.json", *(f"round-{n}.{kind}" for n in (4, 5) for kind in ("json", "safetensors"))]


@pytest.mark.quick
def test_auto_spends_a_hundredth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 3 s and checkpoints of 2 s: one may come when 200 s have passed since the last."""
    now = [0.0]
    monkeypatch.setattr("fedssd.experiment.cadence.time.monotonic", lambda: now[0])
    cadence = Cadence("auto")
    cost, rounds, written = 2.0, 1000, 0
    for number in range(1, rounds + 1):
        now[0] += 3.0
        if cadence.due(number):
            now[0] += cost
            cadence.wrote(cost)
            written += 1
    assert SOONEST == 5.0  # the first one, whose cost nobody knows yet, comes after two rounds
    assert written == 1 + (3 * rounds - 6) // 201  # then each after 67 rounds, the first to end at 200 s or more
    assert written * cost <= (3 * rounds) / SHARE + cost


@pytest.mark.quick
@pytest.mark.parametrize(("every", "due"), [("3", [3, 6, 9]), ("25s", [3, 6, 9]), ("1m", [6]), ("never", [])])
def test_rounds_and_times_between_checkpoints(every: str, due: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rounds of ten seconds."""
    now = [0.0]
    monkeypatch.setattr("fedssd.experiment.cadence.time.monotonic", lambda: now[0])
    cadence, found = Cadence(every), []
    for number in range(1, 11):
        now[0] += 10.0
        if cadence.due(number):
            found.append(number)
            cadence.wrote(0.0)
    assert found == due


@pytest.mark.parametrize("every", ["0", "-1", "1.5", "5x", "m", "", "often", "9" * 5000])
def test_a_wrong_interval_is_refused(every: str, capsys: Captured) -> None:
    assert main(["run", *RUN, f"--checkpoint-every={every}"]) == 2
    assert "checkpoint_every expects" in one_line(capsys)


def test_a_folder_in_use_or_of_something_else_is_refused(
    here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "PATIENCE", 0.1)
    folder = RunFolder(interrupted("stopped"))
    folder.hold()
    assert main(["resume", "stopped", "--quiet"]) == 2
    assert "another fedssd is writing to stopped" in one_line(capsys)
    folder.release()
    (here / "letters").mkdir()
    (here / "letters" / "dear.txt").write_text("…")
    assert main(["resume", "letters"]) == 2
    assert "it holds none" in one_line(capsys)
    assert main(["run", *RUN, "--out", "letters", "--resume", "--quiet"]) == 2
    assert "already holds something" in one_line(capsys)


def test_resume_by_name_takes_the_newest_folder(capsys: Captured) -> None:
    for _ in range(2):
        assert main(["run", *RUN, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["run", *RUN, "--resume", "--rounds", "7", "--quiet"]) == 0
    assert "runs/samples-scaffold-0-2/" in capsys.readouterr().out


def test_own_arrays_and_a_module_are_resumed(capsys: Captured) -> None:
    def keys() -> dict[str, Any]:
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(90, 4, generator=draw)
        y = torch.arange(90) % 3
        module = nn.Linear(4, 3)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draw))
        clients = [(x[:40], y[:40]), (x[40:], y[40:])]
        return {"model": module, "clients": clients, "test": (x, y), "auxiliary": 0, "epochs": 1, "batch": 16}

    expected = fedssd.run("fedcurv", **keys(), rounds=5)
    with pytest.raises(KeyboardInterrupt):
        fedssd.run("fedcurv", **keys(), rounds=5, out="own", listen=stop_after(2))
    found = fedssd.run("fedcurv", **keys(), rounds=5, out="own", resume=True)
    pairs = zip(tree.leaves(found.weights), tree.leaves(expected.weights), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert main(["resume", "own"]) == 2
    assert "which no file holds" in one_line(capsys)
    with pytest.raises(UserError, match="weights have other names, shapes or types"):
        fedssd.run("fedcurv", **{**keys(), "model": nn.Linear(4, 3, bias=False)}, rounds=5, out="own", resume=True)


COMPARE = [
    "compare",
    *RUN[:-4],
    "--checkpoint-every",
    "1",
    "--methods",
    "fedavg,moon",
    "--seeds",
    "0,1",
    "--workers",
    "1",
]


def test_finished_runs_are_not_run_again_and_missing_ones_run(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*COMPARE, "--out", "whole", "--quiet"]) == 0
    table = capsys.readouterr().out.splitlines()[:6]
    expected = {run.name: outcome(run) for run in Path("whole").iterdir() if run.is_dir()}
    shutil.rmtree("whole/moon-0")
    ran: list[str] = []
    plain = workers.run_together

    def noted(recipes: Any, outs: list[Path], *rest: Any, **keys: Any) -> Any:
        ran.extend(out.name for out in outs)
        return plain(recipes, outs, *rest, **keys)

    monkeypatch.setattr(workers, "run_together", noted)
    assert main(["resume", "whole", "--workers", "1", "--quiet"]) == 0
    assert ran == ["moon-0"]
    assert capsys.readouterr().out.splitlines()[:6] == table
    assert {run.name: outcome(run) for run in Path("whole").iterdir() if run.is_dir()} == expected
    assert main(["resume", "whole", "--rounds", "8", "--workers", "1", "--quiet", "--json"]) == 0
    assert [run["rounds"] for run in json.loads(capsys.readouterr().out)["runs"]] == [8] * 4
    assert len(ran) == 1 + 4


def test_a_comparison_asked_for_otherwise_is_refused(capsys: Captured) -> None:
    assert main([*COMPARE, "--rounds", "1", "--out", "some", "--quiet"]) == 0
    capsys.readouterr()
    for change, why in ((["--lr", "0.5"], "lr was 0.01 and is 0.5"), (["--seeds", "0"], "seeds was [0, 1] and is [0]")):
        assert main([*COMPARE, "--rounds", "1", "--out", "some", "--resume", "--quiet", *change]) == 2
        assert why in one_line(capsys)
    assert main(["resume", "some", "--rounds", "0", "--quiet"]) == 2
    assert "rounds expects" in one_line(capsys)
    assert main(["resume", "some", "--rounds", "3", "--workers", "1", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["resume", "some", "--rounds", "2", "--quiet"]) == 2
    assert "rounds was 3 and 2 is fewer" in one_line(capsys)
    plan = Path("some/runs.json")
    plan.write_bytes(plan.read_bytes().replace(b"moon", b"mood"))
    assert main(["resume", "some"]) == 2
    assert "runs.json cannot be used: its checksum does not fit" in one_line(capsys)


def test_a_sweep_goes_on(capsys: Captured) -> None:
    words = ["sweep", *RUN, "--method", "fedprox", "--grid", "fedprox.mu=0.1,1", "--seeds", "0,1", "--workers", "1"]
    assert main([*words, "--out", "whole", "--quiet", "--json"]) == 0
    expected = {run.name: _without_matrices(outcome(run)) for run in Path("whole").iterdir() if run.is_dir()}
    assert len(expected) == 4
    assert main([*words, "--out", "more", "--quiet", "--rounds", "2"]) == 0
    capsys.readouterr()
    assert main(["resume", "more", "--rounds", "6", "--workers", "1", "--quiet", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["cells"]) == 2
    found = {run.name: _without_matrices(outcome(run)) for run in Path("more").iterdir() if run.is_dir()}
    assert found == expected


def test_a_run_that_went_side_by_side_is_not_resumed_alone(capsys: Captured) -> None:
    words = [*COMPARE, "--engine", "vectorised", "--methods", "fedavg", "--out", "group", "--quiet"]
    assert main(words) == 0
    capsys.readouterr()
    assert main(["resume", "group/fedavg-0", "--rounds", "9", "--quiet"]) == 2
    assert "went side by side with 1 other runs and goes on with them only: fedssd resume group" in one_line(capsys)
    expected = outcome(Path("group/fedavg-1"))
    shutil.rmtree("group/fedavg-1")
    assert main(["resume", "group", "--quiet"]) == 0  # the missing one runs, and the other with it
    assert outcome(Path("group/fedavg-1")) == expected


def test_the_record_says_which_commit_ran() -> None:
    folder = interrupted("stopped", rounds=1)
    header = json.loads((folder / "rounds.jsonl").read_text().splitlines()[0])
    assert header["commit"] == source_commit()
    assert fedssd.run("scaffold", **KEYS, rounds=2, out=folder, resume=True).rounds[-1]["round"] == 2
    header = json.loads((folder / "rounds.jsonl").read_text().splitlines()[0])
    assert [entry["round"] for entry in header["resumed"]] == [1]


def test_deterministic_runs_alike_on_the_cpu() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    plain, strict = (fedssd.run("fedssd", **KEYS, rounds=2, deterministic=wanted) for wanted in (False, True))
    assert torch.are_deterministic_algorithms_enabled() == before
    pairs = zip(tree.leaves(plain.weights), tree.leaves(strict.weights), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert plain.recipe.hash == strict.recipe.hash


def test_what_cannot_be_repeated_is_named(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    from fedssd.engines.reference import ReferenceEngine

    def unsure(*_: object) -> None:
        raise RuntimeError("put_ does not have a deterministic implementation, but you set … You can turn it off.")

    monkeypatch.setattr(ReferenceEngine, "train", unsure)
    assert main(["run", *RUN, "--deterministic", "--quiet"]) == 2
    assert "deterministic = true cannot be had here: put_ does not have" in one_line(capsys)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("model", ["mlp", "cnn-small", "cnn"])
@pytest.mark.parametrize("method", ["fedssd", "moon", "scaffold", "fedcurv"])
def test_on_a_gpu_a_deterministic_run_is_resumed_to_the_bit(method: str, model: str, here: Path) -> None:
    size = {"mlp": 8, "cnn-small": 8, "cnn": 32}[model]
    draws = np.random.default_rng(1)
    y = np.arange(600) % 4
    x = draws.normal(size=(600, 3, size, size)) + draws.normal(size=(4, 3, size, size))[y]
    np.savez(here / "images.npz", x=x.astype(np.float32), y=y)
    keys = {**KEYS, "data": "images.npz", "model": model, "engine": "vectorised", "device": "cuda", "epochs": 3}
    keys = {**keys, "deterministic": True, "rounds": 6, "partition": "dirichlet:0.5"}
    fedssd.run(method, **keys, out="whole")
    with pytest.raises(KeyboardInterrupt):
        fedssd.run(method, **keys, out="stopped", listen=stop_after(3))
    fedssd.run(method, **keys, out="stopped", resume=True)
    assert outcome(Path("stopped")) == outcome(Path("whole"))
