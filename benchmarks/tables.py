"""The tables of the library's own pages, by the names that the pages call them: each from results/, or the program.

`make docs` puts them in; studies/paper/pages.py loads this file.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedssd.recipe.keys import KEYS
from fedssd.recipe.values import toml_value
from fedssd.reports.methods import as_markdown, catalogue, traffic_as_markdown
from fedssd.reports.statistics import paired
from fedssd.reports.table import ruled
from fedssd.runs.archive import SUFFIX
from fedssd.runs.read import read_run

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
PAGES = {"data.md": "Data", "reliability.md": "Reliability", "methods/README.md": "Methods", "privacy.md": "Privacy"}


def measured(program: str, function: str, file: str, key: str = "") -> str:
    """A table as the program of benchmarks/ that measured it writes it."""
    content: Any = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    shown = runpy.run_path(str(ROOT / "benchmarks" / f"{program}.py"))[function](content[key] if key else content)
    return str(shown)


def keys() -> str:
    """Every key of a recipe, with its default, what it means and where more is said."""
    rows = []
    for name, one in KEYS.items():
        title = PAGES.get(one.see.partition("#")[0], one.see.partition("#")[2].replace("-", " ").capitalize())
        more = f": [{title}]({one.see})" if one.see else ""
        rows.append([f"`{name}`", f"`{toml_value(one.default)}`", f"{one.help}{more}"])
    return ruled(("key", "default", "meaning"), rows, [True] * 3)


def kernels() -> str:
    """FedSSD with our kernels beside PyTorch's layers, seed by seed, after 100 rounds."""
    packs = RESULTS / f"cifar10{SUFFIX}" / "fedssd-ten-seeds", RESULTS / f"cifar10-kernels-off{SUFFIX}"
    on, off = ([read_run(pack / f"fedssd-{seed}") for seed in range(5)] for pack in packs)
    found = paired(on, off, lambda run: 100 * (run.rounds[-1].accuracy or 0.0))
    both = zip(on, off, found.values, strict=True)
    rows = [
        [str(seed), *(f"{100 * (run.rounds[-1].accuracy or 0.0):.2f}" for run in (a, b)), f"{less:+.2f}"]
        for seed, (a, b, less) in enumerate(both)
    ]
    about = f"mean difference {found.mean:+.2f} points, 95 % interval {found.low:+.2f} … {found.high:+.2f}"
    heads = ("seed", "kernels on %", "kernels off %", "difference")
    return f"{ruled(heads, rows, [False] * 4)}\n{about}; FedSSD after 100 rounds.\n"


TABLES: dict[str, Callable[[], str]] = {
    "keys: recipe": keys,
    "table: cost/methods": lambda: as_markdown(catalogue()),
    "table: cost/bytes": traffic_as_markdown,
    "table: cifar10/kernels": kernels,
    "table: privacy/clients": partial(measured, "privacy", "table", "privacy/clients.json"),
    "table: privacy": partial(measured, "federation_privacy", "table", "privacy/digits.json"),
    "table: reliability": partial(measured, "reliability", "table", "reliability/digits.json"),
    "table: large-models": partial(measured, "large_models", "as_markdown", "speed/large-models.json", "cases"),
}
