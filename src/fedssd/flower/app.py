"""A ready Flower app: a folder that `flwr run` takes, with the recipe and a place to bring one's own data."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path

from fedssd.data.sources import SOURCES
from fedssd.errors import UserError
from fedssd.flower.settings import NOTES, Settings, refuse_for_simulations, settings_of, toml
from fedssd.methods.registry import with_paths
from fedssd.recipe import Recipe

APP = "federation_app.py"
TRIAL = ".federation"  # what `fedssd federation up` keeps in an app's folder

MODULE = '''"""A federation on Flower: the recipe beside this file, the same that `fedssd run` would simulate."""

from pathlib import Path

from fedssd.flower import client_app, server_app

RECIPE = Path(__file__).with_name("recipe.toml")


def load_samples(path: Path):
    """This node's samples, if they are in no form fedssd reads: x [n, …] (uint8, int64 or float32) and y [n] (int64).

    ``path`` is the node's data-path. To use this function, hand it to client_app below.
    """
    raise NotImplementedError


server = server_app(RECIPE)
client = client_app(RECIPE)  # or client_app(RECIPE, load_samples)
'''

PYPROJECT = """[project]
name = "{name}"
version = "1.0.0"
description = "Federated training of {method} with fedssd"
license = "Apache-2.0"
dependencies = ["fedssd[flower]"]

[tool.flwr.app]
publisher = "{publisher}"

[tool.flwr.app.components]
serverapp = "federation_app:server"
clientapp = "federation_app:client"

# What a run goes by beside recipe.toml; `flwr run --run-config 'min-nodes=2'` overrides.
[tool.flwr.app.config]
{config}
"""


def write_app(folder: Path, recipe: Recipe, settings: Settings) -> None:
    """Write the app; refuses a folder that holds something, and a recipe with which no federation runs."""
    refuse_for_simulations(recipe)
    recipe = _from_anywhere(recipe)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"expected a new or empty folder, got {folder}: choose another")
    files = {
        "pyproject.toml": _pyproject(folder, recipe, settings),
        "recipe.toml": recipe.to_toml(),
        APP: MODULE,
        ".gitignore": f"{TRIAL}/\nruns/\n",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write the app to {folder}: {error.strerror}") from None


def _from_anywhere(recipe: Recipe) -> Recipe:
    """The recipe with whole paths to the user's files: no program of a federation runs in the folder we are in."""
    data = recipe.data if recipe.data in SOURCES else str(Path(recipe.data).expanduser().resolve())
    return replace(recipe, data=data, method=with_paths(recipe.method, Path.resolve))


def _pyproject(folder: Path, recipe: Recipe, settings: Settings) -> str:
    name = re.sub(r"[^a-z0-9-]+", "-", folder.resolve().name.lower()).strip("-") or "federation"
    lines = [
        f"{entry.name.replace('_', '-')} = {toml(getattr(settings, entry.name))}  # {NOTES[entry.name]}"
        for entry in fields(Settings)
    ]
    return PYPROJECT.format(
        name=name, method=recipe.method.replace('"', ""), publisher="local", config="\n".join(lines)
    )


def recipe_in(folder: Path) -> Path:
    """The recipe of an app's folder."""
    found = folder / "recipe.toml"
    if not found.is_file() or not (folder / APP).is_file():
        raise UserError(f"expected an app's folder, made by `fedssd federation init`, got {folder}")
    return found


def settings_in(folder: Path) -> Settings:
    """What a run of an app's folder goes by, as it stands in its pyproject.toml."""
    file = folder / "pyproject.toml"
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8"))
        return settings_of(project["tool"]["flwr"]["app"]["config"])
    except UserError:
        raise
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"expected [tool.flwr.app.config] in {file}, which cannot be read: {error}") from None
