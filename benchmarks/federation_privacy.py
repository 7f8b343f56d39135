"""What Flower's clipping and noise cost FedSSD on digits: the app's messages, with the nodes in this process.

python benchmarks/federation_privacy.py [SEEDS]
"""

from __future__ import annotations

import contextlib
import io
import logging
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "flower"))

from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, Strategy
from inprocess import InProcessGrid, nodes_for

from fedssd.deployment.samples import deal, read_server
from fedssd.deployment.server import serve
from fedssd.deployment.settings import Settings
from fedssd.engines.flower.strategy import FederatedStrategy
from fedssd.experiment.recipe import load_recipe

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


SETTINGS: dict[str, tuple[list[Any], Wrap | None]] = {
    "neither clipping nor noise": ([], None),
    "clipped at 1": central(1.0, 0.0),
    **{f"clipped at 1, noise at the server, multiplier {noise}": central(1.0, noise) for noise in (0.1, 1.0)},
    **{f"clipped at 1, noise at the client, ε = {epsilon} a round": local(1.0, epsilon) for epsilon in (300, 30)},
}


def accuracy(seed: int, mods: list[Any], wrap: Wrap | None) -> float:
    """The final global accuracy of one run."""
    np.random.seed(seed)  # Flower's noise has no other seed
    here = Path(__file__).resolve().parent.parent / "recipes" / "digits.toml"
    recipe = replace(load_recipe(here, {"method": "fedssd", "seed": seed}), engine="reference", device="cpu")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        place = Path(folder)
        (place / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
        files = deal(recipe, place / "samples")
        grid = InProcessGrid(nodes_for(place / "recipe.toml", files, mods=mods))
        samples = read_server(place / "samples" / "server" / "samples.npz", recipe)
        settings = Settings(weighting="equal")
        result = serve(grid, recipe, samples, settings, None, wrap).result()
    return float(result.summary["final"]["acc"])


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
    print("| setting | final accuracy, mean (and range) |\n|---|---|")
    for name, (mods, wrap) in SETTINGS.items():
        found = [100 * accuracy(seed, mods, wrap) for seed in seeds]
        print(f"| {name} | {statistics.mean(found):.1f} ({min(found):.1f} to {max(found):.1f}) |", flush=True)


if __name__ == "__main__":
    main()
