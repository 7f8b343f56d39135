"""Every registered method and ten compositions on digits, strongly non-IID, three seeds: one command, one table.

    python benchmarks/digits_tables.py [--workers 2] [--seeds 0,1,2] [--keep]

Takes the strengths of the recipe digits. Writes results/digits/ anew (table.md, table.csv, two figures, and of every
run its recipe, rounds and summary), the figure of the README, and then the tables of the pages, as `make docs` does.
A local half runs with the server half of its name where there is one, else with FedAvg's; a server half that is no
local half runs with plain cross-entropy. One row more, every client alone, is what the methods without shared weights
start from. What is refused is named, with the reason, and left out. With `--keep` only what is new or has another
recipe hash runs, and the rest is taken from results/digits: right as long as no change to the code alters numbers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fedssd.cli.run import setting
from fedssd.errors import UserError
from fedssd.experiment.recipe import PAPER_METHODS, Recipe, check, load_recipe
from fedssd.methods.registry import LOCALS, SERVERS
from fedssd.reports.charts import learning_curves
from fedssd.reports.comparison import tabulate
from fedssd.simulation.result import Result
from fedssd.simulation.setup import assemble
from fedssd.sweeps.grid import run_many

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "results/digits"
KEPT = ("recipe.toml", "rounds.jsonl", "summary.json")


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
SHOWN = ("fedavg", "fedssd", "fedssd+fedprox", "fedssd × fednova", "fedssd × pfnm", "fedssd × fedma")


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


def labelled(result: Result, pair: Pair) -> Result:
    return replace(result, summary={**result.summary, "method": pair.label})


def stored() -> dict[str, Path]:
    """The runs that results/digits holds, by their recipe's hash."""
    return {json.loads(file.read_text())["recipe_hash"]: file.parent for file in sorted(OUT.rglob("summary.json"))}


def recorded(folder: Path) -> Result:
    """A run as its folder tells it."""
    _, *lines = (json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines())
    recipe = load_recipe(folder / "recipe.toml", {})
    return Result(recipe, lines, json.loads((folder / "summary.json").read_text()), {}, folder)


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
    with tempfile.TemporaryDirectory() as folder:
        aside = Path(folder) / "runs"
        known = stored() if args.keep else {}
        hashes = [assemble(recipe).recipe.hash for recipe in recipes]
        new = [place for place, found in enumerate(hashes) if found not in known]
        made = run_many([recipes[i] for i in new], [names[i] for i in new], aside, args.workers) if new else []
        results = dict(zip(new, made, strict=True))
        for place, name in enumerate(names):
            if place not in results:
                shutil.copytree(known[hashes[place]], aside / name)
                results[place] = recorded(aside / name)
        write([labelled(results[i], pair) for i, (pair, _) in enumerate(runs)], names, aside, setting(base))
    subprocess.run([sys.executable, ROOT / "docs/tables.py"], check=True)


def write(results: list[Result], names: list[str], made: Path, about: str) -> None:
    """Replace what results/digits holds; only now, when everything has run."""
    shutil.rmtree(OUT, ignore_errors=True)
    for name in names:
        (OUT / name).mkdir(parents=True)
        for file in KEPT:
            shutil.copy(made / name / file, OUT / name / file)
    table = tabulate(results)
    (OUT / "table.md").write_text(table.markdown(), encoding="utf-8")
    (OUT / "table.csv").write_text(table.csv(), encoding="utf-8")
    paper = learning_curves([one for one in results if one.summary["method"] in PAPER_METHODS], about)
    (OUT / "curves.svg").write_text(paper, encoding="utf-8")
    (ROOT / "docs/images/curves.svg").write_text(paper, encoding="utf-8")
    composed = learning_curves([one for one in results if one.summary["method"] in SHOWN], about)
    (OUT / "compositions.svg").write_text(composed, encoding="utf-8")
    print(table.markdown())


if __name__ == "__main__":
    main()
