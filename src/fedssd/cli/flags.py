"""Every key of a recipe as a flag, in groups, and back from flags to what a recipe should override."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedssd.cli.parser import UsageError, a_path
from fedssd.recipe import KEYS, NAMED, usual
from fedssd.recipe.keys import canonical, groups, spellings

METAVARS = {int: "N", float: "X", str: "NAME"}
RECIPE_NOTE = """What no flag says comes from --recipe, and what that does not say is the default shown here.
Where neither --recipe nor --data is given, the recipe is digits."""
USUAL_NOTE = "Without --recipe and --data it is --recipe digits."


def add_recipe_flags(parser: argparse.ArgumentParser, leave_out: Collection[str] = ()) -> None:
    """A flag for every key of a recipe but those left out, then --recipe and --set."""
    for title, keys in groups().items():
        group = parser.add_argument_group(title)
        for key in keys:
            if key not in leave_out:
                _add_flag(group, key)
    group = parser.add_argument_group("recipe")
    group.add_argument(
        "--recipe",
        type=a_recipe,
        metavar="NAME",
        help=f"one that comes with fedssd ({', '.join(NAMED)}), a TOML file with any of these keys, or a run's folder",
    )
    group.add_argument("--profile", action=Gone, help=argparse.SUPPRESS)
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a key of the recipe, or an option of a half such as fedssd.m_max=0.1, which --fedssd.m-max 0.1 does "
        "too; may be repeated",
    )


def _add_flag(group: argparse._ArgumentGroup, key: str) -> None:
    """Values stay text: the recipe checks them, whether they come from a file or from here."""
    one = KEYS[key]
    if one.kind is bool:
        state = "yes" if one.default else "no"
        action = argparse.BooleanOptionalAction
        group.add_argument(_flag(key), action=action, default=argparse.SUPPRESS, help=f"{one.help} (default: {state})")
        return
    help_text = f"{one.help} (default: {one.default})".replace("%", "%%")
    names = [_flag(name) for name in reversed(spellings(key))]
    group.add_argument(*names, dest=key, default=argparse.SUPPRESS, metavar=METAVARS[one.kind], help=help_text)


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def overrides(args: argparse.Namespace, command: str) -> dict[str, str | bool]:
    """What the command line sets, by recipe key; method options as ``options.<method>.<option>``."""
    values: dict[str, str | bool] = {key: getattr(args, key) for key in KEYS if hasattr(args, key)}
    for word in args.set:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"fedssd {command}: --set expects KEY=VALUE, got {word!r}")
        key = canonical(name.strip())
        key = f"options.{key}" if "." in key else key
        if key in values:
            raise UsageError(f"fedssd {command}: {name.strip()} is given twice: {values[key]} and {value}")
        values[key] = value
    return values


class Gone(argparse.Action):
    """``--profile``, which went: one line says what to write in its place."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        raise UsageError(
            f"{parser.prog}: --profile is no more: --recipe cifar10, cifar100 or tiny-imagenet has the paper's setting "
            "with its printed strengths (the pipeline closest to its FedAvg is in docs/study.md)"
        )


def a_recipe(text: str) -> str:
    """A name or a path, as it was typed: ``digits`` is a recipe of ours, ``./digits`` a file."""
    a_path(text)
    return text


def recipe_source(args: argparse.Namespace, given: Collection[str]) -> tuple[str | Path | None, str]:
    """What a recipe begins with, and a remark where nobody named it."""
    source = usual(args.recipe, given)
    return source, "" if source == args.recipe else f"neither --recipe nor --data: the recipe {source!r}"


def add_output_flags(parser: argparse.ArgumentParser, default_out: str) -> None:
    """Where results go and how much is said on the way."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--out",
        type=a_path,
        metavar="DIR",
        help=f"a new or empty folder for the results (default: {default_out}, numbered when taken)",
    )
    group.add_argument(
        "--resume", action="store_true", help="go on there where an earlier call stopped; begin if there is nothing"
    )
    add_speech_flags(group)


def add_speech_flags(group: argparse._ActionsContainer) -> None:
    """How much is said, and to whom."""
    group.add_argument(
        "--track",
        metavar="NAME",
        help="tell every round to tensorboard, mlflow or wandb, too (needs fedssd[NAME])",
    )
    group.add_argument("--quiet", action="store_true", help="no progress and no remarks, only the result")
    group.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    group.add_argument("-h", "--help", action="help", help="show this and exit")
