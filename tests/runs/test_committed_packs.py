"""The packs of results/: whole, counting, small, and the one that comes with fedssd is one of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fedssd.experiment.recipe import Recipe, merge
from fedssd.runs.archive import packs_below, read_pack
from fedssd.runs.read import is_finished, read_files
from fedssd.runs.rules import still_valid

ROOT = Path(__file__).parents[2]
PACKS = packs_below(ROOT / "results")
ROUNDS_ALONE = {"cifar10-kernels-off.runs.jsonl.gz", "fedssd-one-run.runs.jsonl.gz"}


@pytest.mark.parametrize("file", PACKS, ids=lambda file: file.name.partition(".")[0])
def test_every_run_is_whole_and_ends_as_its_summary_says(file: Path) -> None:
    for name, packed in read_pack(file).items():
        run = read_files(file / name)
        assert packed.header["recipe_hash"] == run.summary["recipe_hash"]
        assert still_valid(run.header, merge(Recipe(), run.recipe, name))
        assert is_finished(file / name) == (file.name not in ROUNDS_ALONE)
        if "final" in run.summary:
            final, best, measured = run.summary["final"], run.summary["best"], [x["global"]["acc"] for x in run.rounds]
            assert (measured[-1], max(measured), measured[best["round"] - 1]) == (
                final["acc"],
                best["acc"],
                best["acc"],
            )
            assert run.rounds[-1].get("forgetting") == final.get("forgetting")
        assert sum(line["bytes_up"] for line in run.rounds) == run.summary["bytes_up"]


def test_bench_has_its_rivals_where_fedssd_is_installed() -> None:
    name = "digits.runs.jsonl.gz"
    assert (ROOT / "src" / "fedssd" / "results" / name).read_bytes() == (ROOT / "results" / name).read_bytes()


def test_results_stay_few_and_small() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.check_output(["git", "ls-files", "-z", "results"], cwd=ROOT, text=True).split("\0")[:-1]
    there = [ROOT / name for name in listed if (ROOT / name).exists()]
    assert len(there) <= 30
    assert sum(file.stat().st_size for file in there) <= 4_000_000
