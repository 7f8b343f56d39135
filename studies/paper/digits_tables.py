"""Every registered method and ten compositions on digits, strongly non-IID, three seeds: one command, one table.

    python -m studies.paper.digits_tables [--workers 2] [--seeds 0,1,2] [--keep]

Takes the strengths of the recipe digits. Writes results/digits.runs.jsonl.gz anew, and its copy that comes with
fedssd, and then the tables and pictures of the pages, as `make docs` does.
A local half runs with the server half of its name where there is one, else with FedAvg's; a server half that is no
local half runs with plain cross-entropy. One row more, every client alone, is what the methods without shared weights
start from. What is refused is named, with the reason, and left out. With `--keep` only what is new or has another
recipe hash runs, and the rest is taken from that file: as long as the rules it was made under still hold.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fedssd.errors import UserError
from fedssd.methods.registry import LOCALS, SERVERS
from fedssd.recipe import Recipe, check, load_recipe
from fedssd.runs.archive import read_pack, write_pack
from fedssd.runs.read import packed
from fedssd.runs.rules import still_valid
from fedssd.simulation.setup import assemble
from fedssd.sweeps.grid import run_named

ROOT = Path(__file__).resolve().parents[2]
PACK = ROOT / "results/digits.runs.jsonl.gz"
COPY = ROOT / "src/fedssd/results" / PACK.name  # the rivals of `fedssd bench` where it is installed


class Pair(NamedTuple):
    """A local half and a server half."""

    local: str
    server: str = "fedavg"
    name: str = ""  # in place of theirs
    options: Mapping[str, Mapping[str, float]] = MappingProxyType({})  # beside the recipe's

    def of(self, base: Recipe, seed: int = 0) -> Recipe:
        options = {**base.options, **self.options}
        return replace(base, method=self.local, server=self.server, options=options, seed=seed)

    @property
    def label(self) -> str:
        if self.name:
            return self.name
        if self.server in ("fedavg", self.local):
            return self.local
        return self.server if self.local == "fedavg" else f"{self.local} × {self.server}"


ALONE = Pair("fd", name="alone", options={"fd": {"gamma": 0.0}})
COMPOSITIONS = [
    Pair("fedssd+fedprox"),
    Pair("fedssd+fedntd"),
    Pair("fedssd+fedgkd"),
    Pair("fedssd+scaffold"),
    Pair("fedssd", "fednova"),
    Pair("fedssd", "ida"),
    Pair("fedssd", "feddf"),
    Pair("fedssd", "pfnm"),
    Pair("fedssd", "fedma"),
    Pair("fedssd+fedprox", "fednova"),
]


def pairs() -> list[Pair]:
    """All that is registered, every client alone, and the compositions."""
    alone = [Pair(name, name if name in SERVERS else "fedavg") for name in LOCALS]
    alone += [Pair("fedavg", name) for name in SERVERS if name not in LOCALS]
    return [*alone, ALONE, *COMPOSITIONS]


def accepted(base: Recipe, pair: Pair) -> bool:
    try:
        check(pair.of(base))
    except UserError as error:
        print(f"left out: {pair.label}: {error}")
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    base = load_recipe("digits", {})
    runs = [(pair, seed) for pair in pairs() if accepted(base, pair) for seed in seeds]
    recipes = [pair.of(base, seed) for pair, seed in runs]
    names = [f"{pair.label.replace(' × ', '-with-')}-{seed}" for pair, seed in runs]
    stored = read_pack(PACK) if args.keep else {}
    known = {run.summary["recipe_hash"]: run for run in stored.values()}
    found = {}
    for name, recipe in zip(names, (assemble(one).recipe for one in recipes), strict=True):
        run = known.get(recipe.hash)
        if run is not None and still_valid(run.header, recipe):
            found[name] = run
    new = [place for place, name in enumerate(names) if name not in found]
    with tempfile.TemporaryDirectory() as folder:
        aside = Path(folder) / "runs"
        if new:
            run_named([recipes[i] for i in new], [names[i] for i in new], aside, args.workers)
        found |= {names[place]: packed(aside / names[place]) for place in new}
    write_pack(found, PACK)  # only now, when everything has run
    shutil.copy(PACK, COPY)
    subprocess.run([sys.executable, "-m", "studies.paper", "pages"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
