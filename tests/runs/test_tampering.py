"""Whatever byte of whatever file of a run's folder is another: the file is named, and nothing is read from it."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from stopping import KEYS, Captured, folder_with_samples  # noqa: F401  # a fixture that all use

import fedssd
from fedssd.cli import main
from fedssd.core.tree import leaves
from fedssd.errors import DamagedError
from fedssd.runs.read import SUMMED, SUMS, read_run

FLIPS = 12


@pytest.fixture
def run(folder_with_samples: None) -> Path:  # noqa: ARG001, F811
    fedssd.run("fedavg", **KEYS, rounds=3, out="run")
    return Path("run")


def flip(file: Path, draw: random.Random) -> bytes:
    """Change one bit; returns what was there."""
    before = file.read_bytes()
    changed = bytearray(before)
    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    file.write_bytes(changed)
    return before


def test_a_flipped_bit_in_any_file_is_named(run: Path, capsys: Captured) -> None:
    draw = random.Random(5)
    for name in (*SUMMED, SUMS):
        for _ in range(FLIPS):
            before = flip(run / name, draw)
            with pytest.raises(DamagedError, match=name) as caught:
                leaves(read_run(run).weights or {})
            assert "\n" not in str(caught.value)
            (run / name).write_bytes(before)
    assert read_run(run).weights is not None
    flip(run / "rounds.jsonl", draw)
    assert main(["report", str(run)]) == 2
    assert "rounds.jsonl is not what the run left" in capsys.readouterr().err


def test_a_list_that_is_cut_short_is_named(run: Path) -> None:
    (run / SUMS).write_bytes(b"")
    with pytest.raises(DamagedError, match="SHA256SUMS is no list"):
        read_run(run)


def test_weights_may_be_removed_and_a_folder_of_an_earlier_version_has_no_list(run: Path) -> None:
    (run / "weights.safetensors").unlink()
    assert read_run(run).weights is None
    (run / SUMS).unlink()
    assert len(read_run(run).rounds) == 3


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_somebody_else_s_program_reads_the_list(run: Path) -> None:
    done = subprocess.run(["sha256sum", "--check", SUMS], cwd=run, capture_output=True, text=True, check=True)
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == list(SUMMED)


def test_a_run_that_goes_on_has_a_new_list(run: Path) -> None:
    before = (run / SUMS).read_bytes()
    assert main(["resume", str(run), "--rounds", "4", "--quiet"]) == 0
    assert (run / SUMS).read_bytes() != before
    assert len(read_run(run).rounds) == 4
