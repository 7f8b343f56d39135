"""What Flower's clipping and noise cost FedSSD on digits: the app's messages, with the nodes in this process.

Writes results/privacy/digits.json (every run's figures) and table.md, which docs/federation.md shows.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
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

import fedssd
from fedssd.experiment.recipe import load_recipe
from fedssd.flower.library import PINNED
from fedssd.flower.samples import deal, read_server
from fedssd.flower.server import serve
from fedssd.flower.settings import Settings
from fedssd.flower.strategy import FederatedStrategy

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "results" / "privacy"
DELTA = 1e-5
Wrap = Callable[[FederatedStrategy], Strategy]


def central(norm: float, noise: float) -> tuple[list[Any], Wrap]:
    """Clipped at the client, noise at the server."""

    def wrap(ours: FederatedStrategy) -> Strategy:
        return DifferentialPrivacyClientSideFixedClipping(ours, noise, norm, ours.population)

    return [fixedclipping_mod], wrap


def local(norm: float, epsilon: float) -> tuple[list[Any], None]:
    """Clipped and noised at the client; with equal weights the mean moves by at most ``norm`` for one client."""
    return [LocalDpMod(norm, norm, epsilon, DELTA)], None


PLAIN = "neither clipping nor noise"
SETTINGS: dict[str, tuple[list[Any], Wrap | None]] = {
    PLAIN: ([], None),
    "clipped at 1": central(1.0, 0.0),
    **{f"clipped at 1, noise at the server, multiplier {noise}": central(1.0, noise) for noise in (0.1, 1.0)},
    **{f"clipped at 1, noise at the client, ε = {epsilon} a round": local(1.0, epsilon) for epsilon in (300, 30)},
}


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
    final, best = result.summary["final"]["acc"], result.summary["best"]["acc"]
    left_out = sum(len(line["dropped"]) for line in result.rounds)
    return {"setting": setting, "seed": seed, "acc": final, "best": best, "dropped": left_out}


def table(found: dict[str, Any]) -> str:
    """Final accuracy by setting over the seeds, and the mean difference from the run without either, seed by seed."""
    plain = {one["seed"]: one["acc"] for one in found["runs"] if one["setting"] == PLAIN}
    lines = ["| setting | final accuracy % | cost, points |", "| --- | ---: | ---: |"]
    for setting in SETTINGS:
        mine = {one["seed"]: one["acc"] for one in found["runs"] if one["setting"] == setting}
        percent = [100 * acc for acc in mine.values()]
        spread = f" ± {stdev(percent):.1f}" if len(percent) > 1 else ""
        cost = fmean(100 * (plain[seed] - acc) for seed, acc in mine.items())
        lines.append(f"| {setting} | {fmean(percent):.1f}{spread} | {'' if setting == PLAIN else f'{cost:.1f}'} |")
    lines += ["", f"Mean ± standard deviation over {len(plain)} seeds; the cost is the mean of the seeds' differences."]
    return "\n".join(lines) + "\n"


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
    found = {"recipe": "recipes/digits.toml", "method": "fedssd", "delta": DELTA, "versions": versions, "runs": runs}
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "digits.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (OUT / "table.md").write_text(table(found), encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
