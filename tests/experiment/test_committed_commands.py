"""The commands that results/README.md names lead to the recipes of the runs beside them, whatever the study chooses."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedssd.cli import main
from fedssd.experiment.cells import resolved
from fedssd.experiment.recipe import Recipe, load_recipe
from fedssd.runs import loop
from fedssd.sweeps import grid
from fedssd.sweeps.cache import finished_runs

pytestmark = pytest.mark.quick
RESULTS = Path(__file__).parents[2] / "results"
ROW = re.compile(r"^\| `(cifar10/[^`]+|speed/fedssd-one-run.jsonl)` \|.*\| `(fedssd [^`]+)`", re.MULTILINE)


def named() -> Iterator[tuple[Path, str]]:
    """Folders with the commands that made them; where a command stands for several, one for each."""
    for folder, command in ROW.findall((RESULTS / "README.md").read_text(encoding="utf-8")):
        place = RESULTS / folder
        if "LOCAL" not in command:
            yield place, command
            continue
        for one in sorted(path for path in place.iterdir() if path.is_dir()):
            recipe = load_recipe(next(one.glob("*/recipe.toml")), {})
            yield one, command.replace("LOCAL", recipe.method).replace("SERVER", recipe.server)


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
    monkeypatch.setattr(grid, "run_many", refuse)
    monkeypatch.setattr(loop, "run_recipe", refuse)
    with pytest.raises(AskedError) as asked:
        main([*shlex.split(command)[1:], "--quiet"])
    found = {resolved(recipe).hash for recipe in asked.value.recipes}
    records = sorted(place.glob("*.jsonl")) if place.is_dir() else [place]  # rounds alone, of runs kept for comparison
    kept = {json.loads(record.read_text().splitlines()[0])["recipe_hash"] for record in records}
    assert found == (kept or set(finished_runs([place])))


def test_every_folder_has_its_command() -> None:
    runs = {summary.parent.parent for summary in (RESULTS / "cifar10").rglob("summary.json")}
    rounds = {record.parent for record in (RESULTS / "cifar10").rglob("*.jsonl") if record.name != "rounds.jsonl"}
    assert {place for place, _ in named() if place.is_dir()} == runs | rounds
