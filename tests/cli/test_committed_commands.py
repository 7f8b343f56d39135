"""The commands that results/README.md names lead to the recipes of the runs beside them, whatever the study chooses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedssd.cli import main
from fedssd.recipe import Recipe
from fedssd.recipe.resolve import resolved
from fedssd.runs import loop
from fedssd.runs.archive import SUFFIX, runs_below
from fedssd.runs.read import read_run
from fedssd.sweeps import grid

pytestmark = pytest.mark.quick
RESULTS = Path(__file__).parents[2] / "results"
ROW = re.compile(r"^\| `([^`]+)` \| `((?:compare|sweep|run) [^`]+)` \|$", re.MULTILINE)
SETTING = ["--recipe", "cifar10"]  # of all of them


def named() -> Iterator[tuple[Path, str]]:
    """The places of runs with the commands that made them; where a command stands for several, one for each."""
    for name, command in ROW.findall((RESULTS / "README.md").read_text(encoding="utf-8")):
        own = RESULTS / f"{name}{SUFFIX}"
        place = own if own.is_file() else RESULTS / f"cifar10{SUFFIX}" / name
        if "LOCAL" not in command:
            yield place, command
            continue
        for one in sorted({run.parent for run in runs_of(place)}):
            recipe = read_run(runs_of(one)[0]).recipe
            yield one, command.replace("LOCAL", recipe.method).replace("SERVER", recipe.server)


def runs_of(place: Path) -> list[Path]:
    """A pack's runs, or those of a command in it."""
    (file,) = [one for one in (place, *place.parents) if one.name.endswith(SUFFIX)]
    return [run for run in runs_below(file) if place in run.parents]


class AskedError(Exception):
    """In place of training."""

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self.recipes = recipes


def refuse(recipes: Recipe | Sequence[Recipe], *_: Any, **__: Any) -> None:
    raise AskedError([recipes] if isinstance(recipes, Recipe) else recipes)


@pytest.mark.parametrize(
    ("place", "command"), list(named()), ids=lambda value: value.name if isinstance(value, Path) else ""
)
def test_a_command_leads_to_the_committed_recipes(
    place: Path, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(grid, "run_named", refuse)
    monkeypatch.setattr(loop, "run_recipe", refuse)
    with pytest.raises(AskedError) as asked:
        main([*shlex.split(command), *SETTING, "--quiet"])
    found = {resolved(recipe).hash for recipe in asked.value.recipes}
    assert found == {resolved(read_run(run).recipe).hash for run in runs_of(place)}


def test_every_run_has_its_command() -> None:
    files = [RESULTS / f"{name}{SUFFIX}" for name in ("cifar10", "cifar10-kernels-off", "speed/fedssd-one-run")]
    assert {run for place, _ in named() for run in runs_of(place)} == {run for one in files for run in runs_below(one)}
