"""Longer checks: the engines stay together over thirty rounds, and a whole comparison repeats to the bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fedssd
from fedssd.core import tree
from fedssd.methods.registry import LOCALS
from fedssd.simulation.events import Event

pytestmark = pytest.mark.slow
KEYS = {"data": "digits", "partition": "dirichlet:0.1", "participation": 0.6, "epochs": 2, "batch": 32, "auxiliary": 8}


@pytest.mark.parametrize("method", LOCALS)
def test_engines_agree_over_thirty_rounds(method: str) -> None:
    """In float64; rounding grows with every round, most of all where a method contrasts features."""
    found = [fedssd.run(method, **KEYS, rounds=30, precision="fp64", engine=e) for e in ("reference", "vectorised")]
    pairs = zip(*(tree.leaves(one.weights) for one in found), strict=True)
    assert max(float((a - b).abs().max()) for a, b in pairs) <= 1e-8
    assert [line.clients for line in found[0].rounds] == [line.clients for line in found[1].rounds]


def test_a_comparison_repeats_to_the_bit() -> None:
    def accuracies(workers: int) -> list[list[float]]:
        results = fedssd.compare(seeds=[0, 1], **KEYS, rounds=4, workers=workers)
        return [[line.accuracy for line in result.rounds] for result in results]

    assert accuracies(2) == accuracies(2)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads its memory from /proc")
def test_a_thousand_rounds_take_the_memory_of_a_hundred(tmp_path: Path) -> None:
    """What grows is the rounds that the run returns, less than 10 kB each."""
    taken: dict[int, int] = {}

    def listen(event: Event) -> None:
        if event.round is not None and event.round.number in (100, 1000):
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            taken[event.round.number] = pages * os.sysconf("SC_PAGE_SIZE")

    keys = {"data": "digits", "partition": "dirichlet:0.5", "clients": 4, "epochs": 1, "auxiliary": 8}
    fedssd.run("fedssd", **keys, rounds=1000, checkpoint_every="10", out=tmp_path / "run", listen=listen)
    assert taken[1000] <= 1.02 * taken[100]
