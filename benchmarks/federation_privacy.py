"""What Flower's clipping and noise cost FedSSD on digits: the app's messages, with the nodes in this process.

Writes results/privacy/digits.json, every run's figures, of which docs/privacy.md shows the table, with the ε that
the noise comes to: Flower computes its noise from an ε by a formula that holds below 1 only.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import math
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "flower"))

from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, Strategy
from inprocess import InProcessGrid, nodes_for
from scipy.optimize import brentq
from scipy.special import log_ndtr

import fedssd
from fedssd.flower.library import PINNED
from fedssd.flower.samples import deal, read_server
from fedssd.flower.server import serve
from fedssd.flower.settings import Settings
from fedssd.flower.strategy import FederatedStrategy
from fedssd.recipe import load_recipe

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "results" / "privacy"
DELTA = 1e-5
NORM = 1.0
ROUNDS = 20  # of recipes/digits.toml
Wrap = Callable[[FederatedStrategy], Strategy]


def central(noise: float) -> tuple[list[Any], Wrap]:
    """Clipped at the client; noise at the server, ``noise`` times the norm on the sum of the updates."""

    def wrap(ours: FederatedStrategy) -> Strategy:
        return DifferentialPrivacyClientSideFixedClipping(ours, noise, NORM, ours.population)

    return [fixedclipping_mod], wrap


def local(told: float) -> tuple[list[Any], None]:
    """Clipped and noised at the client; ``told`` is what the mod calls ε, and which is not."""
    return [LocalDpMod(NORM, NORM, told, DELTA)], None


def deviation(told: float) -> float:
    """The deviation of the noise that Flower's mod adds when told this ε."""
    return NORM * math.sqrt(2 * math.log(1.25 / DELTA)) / told


PLAIN = "neither clipping nor noise"
SERVER_NOISE = {f"clipped at 1, noise at the server, multiplier {noise}": noise for noise in (0.1, 1.0)}
CLIENT_NOISE = {f"clipped at 1, noise at the client, σ = {deviation(told):.4g}": told for told in (300.0, 30.0)}
SETTINGS: dict[str, tuple[list[Any], Wrap | None]] = {
    PLAIN: ([], None),
    "clipped at 1": central(0.0),
    **{name: central(noise) for name, noise in SERVER_NOISE.items()},
    **{name: local(told) for name, told in CLIENT_NOISE.items()},
}
# The deviation of the noise on one client's update or, at the server, on the sum of all.
DEVIATIONS = {name: noise * NORM for name, noise in SERVER_NOISE.items()}
DEVIATIONS |= {name: deviation(told) for name, told in CLIENT_NOISE.items()}


def epsilon(sensitivity: float, sigma: float, rounds: int, delta: float = DELTA) -> float:
    """ε of ``rounds`` rounds of Gaussian noise, exactly: the root of δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).

    μ = √rounds · sensitivity / σ. Balle and Wang, Improving the Gaussian mechanism for differential privacy, ICML 2018.
    """
    mu = math.sqrt(rounds) * sensitivity / sigma

    def excess(value: float) -> float:
        less = math.exp(value + log_ndtr(-mu / 2 - value / mu))
        return float(math.exp(log_ndtr(mu / 2 - value / mu)) - less - delta)

    if excess(0.0) <= 0:
        return 0.0
    most = 1.0
    while excess(most) > 0:
        most *= 2
    return float(brentq(excess, 0.0, most))


def run(setting: str, seed: int) -> dict[str, Any]:
    """One run's figures."""
    mods, wrap = SETTINGS[setting]
    np.random.seed(seed)  # Flower's noise has no other seed
    given = load_recipe(ROOT / "recipes" / "digits.toml", {"method": "fedssd", "seed": seed})
    recipe = replace(given, engine="reference", device="cpu")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        place = Path(folder)
        (place / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
        files = deal(recipe, place / "samples")
        grid = InProcessGrid(nodes_for(place / "recipe.toml", files, mods=mods))
        samples = read_server(place / "samples" / "server" / "samples.npz", recipe)
        result = serve(grid, recipe, samples, Settings(weighting="equal"), None, wrap).result()
    final, best = result.summary.accuracy, result.summary.best_accuracy
    left_out = sum(len(one.dropped) for one in result.rounds)
    return {"setting": setting, "seed": seed, "acc": final, "best": best, "dropped": left_out}


def table(found: dict[str, Any]) -> str:
    """Final accuracy by setting over the seeds, the mean difference from the run without either, and ε of the noise."""
    plain = {one["seed"]: one["acc"] for one in found["runs"] if one["setting"] == PLAIN}
    heads = [
        "setting",
        "final accuracy %",
        "cost, points",
        *(f"ε, {kind}" for kind in ("present or absent", "any data")),
    ]
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " ---: |" * 4]
    for setting in SETTINGS:
        mine = {one["seed"]: one["acc"] for one in found["runs"] if one["setting"] == setting}
        percent = [100 * acc for acc in mine.values()]
        spread = f" ± {stdev(percent):.1f}" if len(percent) > 1 else ""
        cost = fmean(100 * (plain[seed] - acc) for seed, acc in mine.items())
        cells = [setting, f"{fmean(percent):.1f}{spread}", "" if setting == PLAIN else f"{cost:.1f}"]
        cells += [_both(NORM, setting), _both(2 * NORM, setting)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"Mean ± standard deviation over {len(plain)} seeds; the cost is the mean of the seeds' differences."]
    lines += [f"ε is that of one round, then that of all {ROUNDS}, at δ = {DELTA}."]
    return "\n".join(lines) + "\n"


def _both(sensitivity: float, setting: str) -> str:
    """ε of a round and of the run, where there is noise."""
    if setting not in DEVIATIONS:
        return "∞"
    both = (epsilon(sensitivity, DEVIATIONS[setting], rounds) for rounds in (1, ROUNDS))
    return "; ".join(f"{one:,.{0 if one >= 100 else 1}f}" for one in both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2")
    seeds = [int(seed) for seed in parser.parse_args().seeds.split(",")]
    logging.getLogger("flwr").setLevel(logging.ERROR)
    runs = []
    for setting in SETTINGS:
        for seed in seeds:
            runs.append(run(setting, seed))
            print(runs[-1], file=sys.stderr, flush=True)
    versions = {"fedssd": fedssd.__version__, "torch": str(torch.__version__), "flwr": PINNED}
    versions |= {"numpy": np.__version__, "python": platform.python_version()}
    found = {"recipe": "digits", "method": "fedssd", "delta": DELTA, "versions": versions, "runs": runs}
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "digits.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
