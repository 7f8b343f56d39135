"""What checkpoints cost: the share of a run's time that goes into them, at default settings.

    python benchmarks/checkpoints.py [--methods fedssd,moon,fedcurv] [--times 3]

Runs the recipe digits and times every write of a checkpoint, syncing included, the first and the last too.
It is counted directly, because two runs of a few seconds differ by more than what is measured here.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from fedssd.recipe import load_recipe
from fedssd.runs import loop
from fedssd.runs.loop import run_recipe

ROOT = Path(__file__).resolve().parent.parent


def share(method: str) -> tuple[float, float, int]:
    """Seconds in checkpoints, seconds in all, and how many were written."""
    spent: list[float] = []
    plain = loop.save_checkpoint

    def timed(*args: Any) -> None:
        begun = time.perf_counter()
        plain(*args)
        spent.append(time.perf_counter() - begun)

    recipe = load_recipe("digits", {"method": method})
    loop.save_checkpoint = timed
    try:
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            run_recipe(recipe, Path(folder) / "run")
            return sum(spent), time.perf_counter() - begun, len(spent)
    finally:
        loop.save_checkpoint = plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="fedavg,fedssd,moon,fedcurv")
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    for method in args.methods.split(","):
        found = [share(method) for _ in range(args.times)]
        ratios = [spent / total for spent, total, _ in found]
        spent, total, count = found[ratios.index(sorted(ratios)[len(ratios) // 2])]
        print(
            f"{method:<8} {100 * median(ratios):.2f} % of the time ({1000 * spent:.0f} ms of {total:.1f} s, "
            f"{count} checkpoints); worst of {args.times}: {100 * max(ratios):.2f} %"
        )


if __name__ == "__main__":
    main()
