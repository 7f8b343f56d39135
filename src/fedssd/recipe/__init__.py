"""What a run is: the keys of a recipe, and recipes."""

from fedssd.recipe.keys import FREE, KEYS, MACHINE, SPELLINGS, interval, of
from fedssd.recipe.recipe import (
    FOLDER,
    NAMED,
    PAPER_METHODS,
    Options,
    Recipe,
    briefly,
    check,
    load_recipe,
    merge,
    refuse_unused,
    usual,
)
from fedssd.recipe.values import toml_value

__all__ = [
    "FOLDER",
    "FREE",
    "KEYS",
    "MACHINE",
    "NAMED",
    "PAPER_METHODS",
    "SPELLINGS",
    "Options",
    "Recipe",
    "briefly",
    "check",
    "interval",
    "load_recipe",
    "merge",
    "of",
    "refuse_unused",
    "toml_value",
    "usual",
]
