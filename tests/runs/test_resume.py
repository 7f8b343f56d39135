"""Resuming is exact, and never fooled by a damaged file."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from killing import outcome
from stopping import (
    KEYS,
    RUN,
    Captured,
    folder_with_samples,  # noqa: F401  # a fixture that all use
    interrupted,
    one_line,
    reseal,
    stop_after,
    whole,
    without_matrices,
)
from torch import nn
from user_methods import GOOD

import fedssd
from fedssd.cli import main
from fedssd.core import tree
from fedssd.errors import UserError
from fedssd.runs.folder import unsealed
from fedssd.runs.provenance import source_commit
from fedssd.simulation.events import Event


@pytest.mark.parametrize("damages", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_flipped_bits_and_cut_files_are_recognised(tmp_path: Path, capsys: Captured, damages: int) -> None:
    """Damages at random places: no traceback, and never another result."""
    expected = whole(rounds=5)
    stopped = interrupted("stopped", rounds=4, of=5)
    draw = random.Random(3)
    for number in range(damages):
        folder = tmp_path / "damaged"
        shutil.copytree(stopped, folder)
        files = sorted((folder / "checkpoint").glob("round-*"))
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


def test_of_two_checkpoints_the_sound_one_counts(capsys: Captured) -> None:
    """The last is damaged: one line says so, and the run goes on from the one before."""
    expected = whole()
    folder = interrupted("stopped")
    last = folder / "checkpoint" / "round-4.safetensors"
    last.write_bytes(last.read_bytes()[:-3])
    assert main(["resume", "stopped"]) == 0
    said = capsys.readouterr().err
    assert said.count("is not used") == 1
    assert "stopped/checkpoint/round-4.json is not used: its tensors have" in said
    assert "going on after round 3" in said
    assert outcome(folder) == expected


def test_with_no_checkpoint_left_nothing_is_thrown_away(capsys: Captured) -> None:
    folder = interrupted("stopped")
    for file in (folder / "checkpoint").iterdir():
        file.write_bytes(file.read_bytes()[:-3])
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert main(["resume", "stopped"]) == 2
    said = one_line(capsys)
    assert "round-4.json is not used: its checksum does not fit" in said
    assert "round-3.json is not used: its checksum does not fit" in said
    assert "put back what it was, or remove stopped to begin anew" in said
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_a_run_killed_before_its_first_checkpoint_starts_again(capsys: Captured) -> None:
    expected = whole()
    folder = interrupted("stopped", checkpoint_every="1")
    for number in (3, 4):
        for file in (folder / "checkpoint").glob(f"round-{number}.*"):
            file.unlink()
    assert main(["resume", "stopped", "--quiet"]) == 0
    assert outcome(folder) == expected
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["round-4.json", "round-4.safetensors"])
def test_a_checkpoint_that_is_a_link_is_not_followed(name: str, capsys: Captured) -> None:
    folder = interrupted("stopped")
    file = folder / "checkpoint" / name
    file.rename(folder.parent / "elsewhere")
    file.symlink_to(folder.parent / "elsewhere")
    assert main(["resume", "stopped"]) == 0
    assert f"{name} cannot be read: it is a link" in capsys.readouterr().err


def test_a_folder_of_checkpoints_that_is_a_link_is_refused(capsys: Captured) -> None:
    folder = interrupted("stopped")
    (folder / "checkpoint").rename(folder.parent / "elsewhere")
    (folder / "checkpoint").symlink_to(folder.parent / "elsewhere")
    assert main(["resume", "stopped", "--quiet"]) == 2
    assert "stopped/checkpoint is a link" in one_line(capsys)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """Whoever may put a file into the folder must not choose what a run overwrites."""
    folder = interrupted("stopped")
    (tmp_path / "precious").write_text("mine")
    (folder / "checkpoint" / "round-5.safetensors.part").symlink_to(tmp_path / "precious")
    (folder / "summary.json.part").symlink_to(tmp_path / "precious")
    main(["resume", "stopped", "--quiet"])
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_in_place_of_a_checkpoint_is_not_waited_for(capsys: Captured) -> None:
    folder = interrupted("stopped")
    (folder / "checkpoint" / "round-4.json").unlink()
    os.mkfifo(folder / "checkpoint" / "round-4.json")
    assert main(["resume", "stopped"]) == 0
    assert "round-4.json is not used" in capsys.readouterr().err


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


def test_a_damaged_run_of_a_comparison_is_no_finished_one(tmp_path: Path, capsys: Captured) -> None:
    """Two of its rounds have changed places: the table must not count what the report leaves out."""
    out, words = tmp_path / "both", ["--rounds", "3", "--epochs", "1", "--seeds", "0", "--workers", "1"]
    assert main(["compare", "--methods", "fedavg,fedprox", *words, "--out", str(out), "--quiet"]) == 0
    record = out / "fedavg-0" / "rounds.jsonl"
    whole = record.read_text()
    header, first, second, *rest = whole.splitlines()
    record.write_text("\n".join([header, second, first, *rest, ""]))
    capsys.readouterr()
    assert main(["resume", str(out), "--quiet"]) == 2
    assert f"rounds.jsonl no longer has its 3 rounds; put back what it was, or remove {out / 'fedavg-0'}" in one_line(
        capsys
    )
    shutil.rmtree(out / "fedavg-0")
    assert main(["resume", str(out), "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    again = [json.loads(line) for line in record.read_text().splitlines()[1:]]
    before = [json.loads(line) for line in whole.splitlines()[1:]]
    assert [line["global"]["acc"] for line in again] == [line["global"]["acc"] for line in before]


def test_a_comparison_whose_method_has_changed_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_method: Callable[[str], Path], capsys: Captured
) -> None:
    """Not even where all its runs are finished: a table would have two methods under one name."""
    monkeypatch.chdir(tmp_path)
    path = write_method(GOOD)
    words = ["--rounds", "1", "--epochs", "1", "--seeds", "0", "--workers", "1", "--quiet"]
    assert main(["compare", "--methods", f"fedavg,{path}:Near", *words, "--out", "both"]) == 0
    assert main(["resume", "both", "--quiet"]) == 0
    path.write_text(GOOD.replace("mu: float = 0.1", "mu: float = 0.2"))
    capsys.readouterr()
    for more in ([], ["--rounds", "2"]):
        assert main(["resume", "both", "--quiet", *more]) == 2
        expected = (
            f"cannot go on with both: {path}:Near (its file or what it imports) has changed since; put it back, or"
        )
        assert expected in one_line(capsys)
    path.write_text(GOOD)
    assert main(["resume", "both", "--quiet"]) == 0


def test_a_run_that_goes_on_has_come_to_nothing_until_it_ends() -> None:
    """Its old summary would speak of fewer rounds than its record has, and of all of them before it was extended."""
    fedssd.run("scaffold", **KEYS, rounds=2, out="longer")
    there: list[bool] = []

    def listen(event: Event) -> None:
        if event.round is not None:
            there.append((Path("longer") / "summary.json").exists())

    fedssd.run("scaffold", **KEYS, rounds=4, out="longer", resume=True, listen=listen)
    assert there == [False, False]
    assert json.loads((Path("longer") / "summary.json").read_text())["rounds"] == 4


@pytest.mark.quick
def test_more_rounds_later_equal_more_rounds_at_once() -> None:
    expected = whole()
    fedssd.run("scaffold", **KEYS, rounds=2, out="longer")
    assert main(["resume", "longer", "--rounds", "6", "--quiet"]) == 0
    assert without_matrices(outcome(Path("longer"))) == without_matrices(expected)


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


@pytest.mark.parametrize("more", [[], ["--rounds", "9"]], ids=["as it is", "more rounds"])
def test_a_finished_run_without_checkpoints_is_said_to_be_finished(more: list[str], capsys: Captured) -> None:
    """As results/ has them."""
    before = whole()
    shutil.rmtree("whole/checkpoint")
    assert main(["resume", "whole", *more, "--quiet"]) == 2
    assert one_line(capsys) == (
        "fedssd: whole is finished: it has all its rounds, and no checkpoint to go on from to more\n"
    )
    assert outcome(Path("whole")) == before


def test_a_finished_run_stays_as_it_is(capsys: Captured) -> None:
    expected = whole()
    assert main(["resume", "whole", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 6
    assert outcome(Path("whole")) == expected


def test_a_stop_within_a_round_keeps_the_round_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, the server's turn and evaluation can all be left without a trace."""
    from fedssd.core.round import Rounds
    from fedssd.engines.reference import ReferenceEngine
    from fedssd.simulation import simulation

    expected = whole()
    for number, (place, name) in enumerate(
        (
            (ReferenceEngine, "train"),
            (ReferenceEngine, "evaluate"),
            (Rounds, "close"),
            (simulation, "measure_round"),
        )
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


def test_the_record_says_which_commit_ran() -> None:
    folder = interrupted("stopped", rounds=1)
    header = json.loads((folder / "rounds.jsonl").read_text().splitlines()[0])
    assert header["commit"] == source_commit()
    assert fedssd.run("scaffold", **KEYS, rounds=2, out=folder, resume=True).rounds[-1].number == 2
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
def test_on_a_gpu_a_deterministic_run_is_resumed_to_the_bit(method: str, model: str, tmp_path: Path) -> None:
    size = {"mlp": 8, "cnn-small": 8, "cnn": 32}[model]
    draws = np.random.default_rng(1)
    y = np.arange(600) % 4
    x = draws.normal(size=(600, 3, size, size)) + draws.normal(size=(4, 3, size, size))[y]
    np.savez(tmp_path / "images.npz", x=x.astype(np.float32), y=y)
    keys = {**KEYS, "data": "images.npz", "model": model, "engine": "vectorised", "device": "cuda", "epochs": 3}
    keys = {**keys, "deterministic": True, "rounds": 6, "partition": "dirichlet:0.5"}
    fedssd.run(method, **keys, out="whole")
    with pytest.raises(KeyboardInterrupt):
        fedssd.run(method, **keys, out="stopped", listen=stop_after(3))
    fedssd.run(method, **keys, out="stopped", resume=True)
    assert outcome(Path("stopped")) == outcome(Path("whole"))
