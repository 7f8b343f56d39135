"""Every method and ten compositions on digits, strongly non-IID, three seeds: one command, one pack.

    python -m studies.paper.digits_tables [--workers 2] [--keep]

Takes the strengths of the recipe digits. Writes results/digits.runs.jsonl.gz anew, and its copy that comes with
fedssd; `make docs` then shows it. A server half alone runs with plain cross-entropy. With ``--keep`` only
what is not in that file runs. One row, every client alone, is what the methods without shared weights start from.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import NamedTuple

import fedssd
from fedssd import Recipe

ROOT = Path(__file__).resolve().parents[2]
PACK = ROOT / "results/digits.runs.jsonl.gz"
COPY = ROOT / "src/fedssd/results" / PACK.name  # the rivals of `fedssd bench` where it is installed
SEEDS = (0, 1, 2)
LOCAL: tuple[str, ...] = ("fedavg", "fedprox", "fedcurv", "moon", "fedntd", "fedcad", "fedssd", "kl", "mse")
LOCAL += ("scaffold", "fedgkd", "fedsam", "fedlc", "fedrs", "fd", "fedmd", "cronus")
SERVER: tuple[str, ...] = ("fednova", "ida", "feddf", "pfnm", "fedma", "fedavgm", "fedadam", "fedyogi", "fedadagrad")
SERVER += ("median", "trimmed-mean", "krum", "clipping")
ALONE = "alone"
COMPOSED = ["fedssd+fedprox", "fedssd+fedntd", "fedssd+fedgkd", "fedssd+scaffold"]
COMPOSED += [f"fedssd × {name}" for name in ("fednova", "ida", "feddf", "pfnm", "fedma")] + ["fedssd+fedprox × fednova"]


class Pair(NamedTuple):
    """A local half and a server half, by the label that tables have."""

    label: str

    def recipe(self, seed: int) -> Recipe:
        """What a run of it is."""
        base = Recipe.load("digits", seed=seed)
        if self.label == ALONE:
            return base.replace(method="fd", **{"fd.gamma": 0.0})
        if self.label in SERVER:
            return base.replace(method="fedavg", server=self.label)
        local, _, server = self.label.partition(" × ")
        return base.replace(method=local, server=server or "fedavg")


PAIRS = [Pair(label) for label in (*LOCAL, *SERVER, ALONE, *COMPOSED)]


def main() -> None:
    """Run what is wanted and write the pack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    recipes = [pair.recipe(seed) for pair in PAIRS for seed in SEEDS]
    runs = fedssd.run_many(recipes, reuse=[PACK] if args.keep else [], workers=args.workers)
    fedssd.write_runs(runs, PACK)  # only now, when everything has run
    shutil.copy(PACK, COPY)


if __name__ == "__main__":
    main()
