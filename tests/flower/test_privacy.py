"""Flower's clipping and noise around our app: what they promise holds for what travels."""

from __future__ import annotations

import json
import math
import re
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping
from inprocess import InProcessGrid, nodes_for
from scipy.integrate import quad
from scipy.optimize import bisect

from fedssd.core import tree
from fedssd.flower.samples import deal, read_server
from fedssd.flower.server import Wrap, serve
from fedssd.flower.settings import Settings
from fedssd.recipe import load_recipe
from fedssd.simulation.result import Result

ROOT = Path(__file__).resolve().parent.parent.parent
NORM = 0.05
SMALL = {"rounds": 2, "epochs": 2, "clients": 3, "auxiliary": 8, "model": "mlp", "engine": "reference", "device": "cpu"}


def run(folder: Path, mods: Sequence[Any], wrap: Wrap | None = None) -> tuple[Result, list[float]]:
    """A run, and how far every upload was from the weights it started from."""
    recipe = load_recipe(None, {**SMALL, "method": "fedssd"})
    file = folder / "recipe.toml"
    file.write_text(recipe.to_toml(), encoding="utf-8")
    grid = InProcessGrid(nodes_for(file, deal(recipe, folder / "samples"), mods=mods))
    distances: list[float] = []

    def watch(round_: int, _node: int, reply: Message) -> Message:
        if round_:
            assert reply.has_content(), reply.error.reason
            sent, got = grid.sent[-1].content.array_records, reply.content.array_records
            pairs = [(sent["weights"][name].numpy(), got["weights"][name].numpy()) for name in sent["weights"]]
            distances.append(sum(float(((b - a) ** 2).sum()) for a, b in pairs) ** 0.5)
        return reply

    grid.tamper = watch
    samples = read_server(folder / "samples" / "server" / "samples.npz", recipe)
    settings = Settings(wait=1.0, weighting="equal")
    return serve(grid, recipe, samples, settings, folder / "run", wrap).result(), distances


def test_updates_are_clipped(tmp_path: Path) -> None:
    """FedSSD's credibility matrix is beside the arrays, so the mods find the one record they expect."""

    def wrap(ours: Any) -> DifferentialPrivacyClientSideFixedClipping:
        return DifferentialPrivacyClientSideFixedClipping(ours, 0.0, NORM, 3)

    result, distances = run(tmp_path, [fixedclipping_mod], wrap)
    assert len(distances) == 6
    assert distances == pytest.approx([NORM] * 6, rel=1e-3)  # training moves further than that, so all are at the bound
    assert all(line.dropped == {} for line in result.rounds)


def test_noise_of_the_server_is_in_the_next_round_and_the_record(tmp_path: Path) -> None:
    """Noise with deviation z·C/n on every weight: with 17,226 of them its size is known to a per cent."""
    noise, count = 30.0, 17226

    def wrap(ours: Any) -> DifferentialPrivacyClientSideFixedClipping:
        return DifferentialPrivacyClientSideFixedClipping(ours, noise, NORM, 3)

    result, _ = run(tmp_path, [fixedclipping_mod], wrap)
    flat = torch.cat([leaf.reshape(-1) for leaf in tree.leaves(result.weights["params"])])
    assert len(flat) == count
    deviation = noise * NORM / 3
    assert float(flat.std()) == pytest.approx(deviation * 2**0.5, rel=0.05)  # of two rounds


def test_local_noise(tmp_path: Path) -> None:
    """σ = s √(2 ln(1.25/δ)) / ε on each of 17,226 weights, so ‖noise‖ is close to σ √17,226."""
    epsilon, delta, count = 100.0, 1e-5, 17226
    _, distances = run(tmp_path, [LocalDpMod(NORM, 1.0, epsilon, delta)])
    sigma = (2 * torch.log(torch.tensor(1.25 / delta)).item()) ** 0.5 / epsilon
    assert distances == pytest.approx([sigma * count**0.5] * 6, rel=0.03)


DELTA = 1e-5


def exact(sensitivity: float, sigma: float, rounds: int) -> float:
    """ε by the definition alone: δ = ∫ max(0, p − e^ε q), p and q being N(μ, 1) and N(0, 1), integrated numerically."""
    mu = math.sqrt(rounds) * sensitivity / sigma

    def excess(epsilon: float) -> float:
        edge = epsilon / mu - mu / 2  # how far right of p's mean p = e^ε q; beyond, p is the larger

        def density(z: float) -> float:
            return math.exp(-z * z / 2) * -math.expm1(-mu * (z - edge)) / math.sqrt(2 * math.pi)

        return quad(density, max(edge, -12.0), max(edge, 0.0) + 12.0, epsabs=1e-13, limit=500)[0] - DELTA

    return bisect(excess, 1e-9, mu * mu / 2 + 10 * mu + 10, xtol=1e-9)


def told_deviation(told: float) -> float:
    """What `test_local_noise` measures: the deviation for a sensitivity of 1 when the mod is told this ε."""
    return math.sqrt(2 * math.log(1.25 / DELTA)) / told


def test_the_page_s_epsilons_are_those_of_the_noise() -> None:
    """In words and in the table, to the last digit shown, from the definition and not from the script's formula."""
    page = " ".join((ROOT / "docs" / "privacy.md").read_text(encoding="utf-8").split())
    once, run = ({told: exact(1, told_deviation(told), rounds) for told in (30, 300)} for rounds in (1, 20))
    assert f"told 30 gives ε = {once[30]:.1f} in one round and {run[30]:.0f} over 20 rounds" in page
    assert f"told 300 gives {once[300]:,.0f} and {run[300]:,.0f}" in page
    once, run = ({told: exact(2, told_deviation(told), rounds) for told in (30, 300)} for rounds in (1, 20))
    gives = f"{once[30]:,.0f} or {once[300]:,.0f} in one round, {run[30]:,.0f} or {run[300]:,.0f} over 20"
    assert f"Told 30 or 300 with S = C, the mod then gives {gives}" in page
    assert f"a multiplier of 1, which ends at 25 %, comes to an ε of {exact(1, 1, 20):.0f} over the run" in page
    assert f"only sets its deviation, here {2 * told_deviation(50):.2f}" in page

    noise = {"multiplier 0.1": 0.1, "multiplier 1.0": 1.0}
    noise |= {f"σ = {told_deviation(told):.4g}": told_deviation(told) for told in (300, 30)}
    shown = re.findall(r"\| clipped at 1, noise at the \w+, ([^|]+) \|[^|]+\|[^|]+\| ([^|]+) \| ([^|]+) \|", page)
    assert [name for name, *_ in shown] == list(noise)
    for name, *cells in shown:
        for sensitivity, cell in zip((1, 2), cells, strict=True):
            for rounds, figure in zip((1, 20), cell.split("; "), strict=True):
                digits = len(figure.partition(".")[2])
                assert figure == f"{exact(sensitivity, noise[name], rounds):,.{digits}f}"


def test_the_table_of_costs_is_made_from_the_runs() -> None:
    """Every setting on three seeds, none of them with a client left out, and the table as the script makes it."""
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "federation_privacy.py"))
    found = json.loads((ROOT / "results" / "privacy" / "digits.json").read_text(encoding="utf-8"))
    assert benchmark["table"](found) in (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    assert {(run["setting"], run["seed"]) for run in found["runs"]} == {
        (setting, seed) for setting in benchmark["SETTINGS"] for seed in range(3)
    }
    assert all(run["dropped"] == 0 for run in found["runs"])
