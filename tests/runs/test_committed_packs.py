"""The packs of results/: whole, counting, small, and the one that comes with fedssd is one of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fedssd.runs.archive import packs_below, read_pack
from fedssd.runs.read import is_finished, read_run
from fedssd.runs.rules import still_valid

ROOT = Path(__file__).parents[2]
PACKS = packs_below(ROOT / "results")
ROUNDS_ALONE = {"cifar10-kernels-off.runs.jsonl.gz", "fedssd-one-run.runs.jsonl.gz"}


@pytest.mark.parametrize("file", PACKS, ids=lambda file: file.name.partition(".")[0])
def test_every_run_is_whole_and_ends_as_its_summary_says(file: Path) -> None:
    for name, packed in read_pack(file).items():
        run = read_run(file / name)
        assert packed.header["recipe_hash"] == run.summary.recipe_hash
        of_older_rules = run.recipe.data == "cifar10" and "scaffold" in run.recipe.method  # anew, when there is a GPU
        assert still_valid(run.provenance, run.recipe) != of_older_rules
        assert is_finished(file / name) == (file.name not in ROUNDS_ALONE)
        measured = [one.accuracy for one in run.rounds]
        if (ended := run.summary).accuracy is not None:
            assert (measured[-1], max(measured)) == (ended.accuracy, ended.best_accuracy)
            assert measured[(ended.best_round or 0) - 1] == ended.best_accuracy
            assert run.rounds[-1].forgetting == ended.forgetting
        assert sum(one.bytes_up for one in run.rounds) == ended.bytes_up


def test_bench_has_its_rivals_where_fedssd_is_installed() -> None:
    name = "digits.runs.jsonl.gz"
    assert (ROOT / "src" / "fedssd" / "results" / name).read_bytes() == (ROOT / "results" / name).read_bytes()


def test_results_stay_few_and_small() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.check_output(["git", "ls-files", "-z", "results"], cwd=ROOT, text=True).split("\0")[:-1]
    there = [ROOT / name for name in listed if (ROOT / name).exists()]
    assert len(there) <= 31
    assert sum(file.stat().st_size for file in there) <= 4_000_000
