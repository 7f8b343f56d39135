"""Words to arguments: mistakes in one line with the nearest name, and a flag for every key of a recipe."""

from __future__ import annotations

import argparse
import errno
import os
import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fedssd.errors import nearest
from fedssd.recipe import KEYS, NAMED, usual
from fedssd.recipe.keys import canonical, groups, spellings

NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")  # a value and no flag; argparse has it without exponents
OPTION = re.compile(r"--(?P<half>[A-Za-z][\w-]*)\.(?P<name>[A-Za-z][\w-]*)(?:=(?P<value>.*))?", re.DOTALL)


class UsageError(Exception):
    """The command line itself is wrong; the message starts with the command it was meant for."""


class Help(argparse.RawDescriptionHelpFormatter):
    """Keeps examples as written and gives flags a wide column."""

    def __init__(self, prog: str) -> None:
        width = max(60, min(shutil.get_terminal_size().columns, 110))
        super().__init__(prog, max_help_position=30, width=width)


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations and without the usage dump; an unknown flag suggests the nearest."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": Help, "allow_abbrev": False, **settings})
        self._positionals.title, self._optionals.title = "arguments", "flags"
        self._negative_number_matcher = NEGATIVE

    def error(self, message: str) -> NoReturn:
        """Say it in one line; the command line prints it."""
        raise UsageError(f"{self.prog}: {_plain(message)} (see {self.prog} --help)")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Like argparse's, but nothing unknown is handed on: the parser that met it knows its flags best."""
        if args is not None and "--set" in self._option_string_actions:
            args = self._options_as_settings(list(args))
        known, rest = super().parse_known_args(args, namespace)
        for word in rest:
            if word.startswith("-"):
                name = word.partition("=")[0]
                self.error(f"unknown flag {name!r}: {self._suggest(name)}")
            self.error(f"unexpected argument {word!r}{self._hint(word, list(args or ()))}")
        return known, []

    def _hint(self, word: str, words: list[str]) -> str:
        """What somebody who wrote a word too many had probably in mind."""
        flags = self._option_string_actions
        before = words[words.index(word) - 1] if words.index(word) else ""
        flag = words[words.index(word) - 2] if words.index(word) > 1 else ""
        if "=" in word and "--grid" in flags:
            return f": did you mean --grid {word}?"
        if flag in ("--methods", "--seeds", "--against") and before:
            return f": several are joined by commas, {flag} {before},{word}"
        if flag == "--set":
            return f": did you mean --set {before}={word}?"
        name = next((name for name in ("--method", "--methods") if name in flags), None)
        return f": a method is named by {name}" if name else ""

    def _options_as_settings(self, words: list[str]) -> list[str]:
        """``--fedssd.m-max 0.3`` and ``--fedssd.m-max=0.3`` as ``--set fedssd.m_max=0.3``."""
        found: list[str] = []
        while words:
            word = words.pop(0)
            option = OPTION.fullmatch(word)
            if option is None:
                found.append(word)
                continue
            value = option["value"]
            if value is None:
                if not words or words[0].startswith("--"):
                    self.error(f"argument {word}: expected one argument")
                value = words.pop(0)
            found += ["--set", f"{option['half']}.{option['name'].replace('-', '_')}={value}"]
        return found

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """A word that is not among the choices is answered with the nearest one."""
        if action.choices is not None and value not in action.choices:
            self.error(f"unknown {action.dest} {value!r}: {nearest(str(value), [str(c) for c in action.choices])}")

    def _suggest(self, name: str) -> str:
        """The nearest flag; the whole list would not help anybody."""
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        hint = nearest(name, flags)
        return hint if hint.startswith("did you mean") else "no flag has a similar name"


def a_path(text: str) -> Path:
    """A path from the command line; an empty word, as a script leaves with an unset variable, is none."""
    if not text.strip():
        raise argparse.ArgumentTypeError("expects a path, got an empty word")
    try:
        os.lstat(text)
    except ValueError as error:  # a zero in it, from Python
        raise argparse.ArgumentTypeError(f"expects a path, got {text[:40]!r}: {error}") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise argparse.ArgumentTypeError(f"expects a path, got one that is too long: {text[:40]!r}…") from None
    return Path(text)


WORDINGS = {  # argparse's, and ours
    r"argument (\S+): (expects a path, .*)": r"\1 \2",
    r"argument (\S+): expected one argument": r"\1 expects a value",
    r"argument (\S+): expected at least one argument": r"\1 expects a value",
    r"argument (\S+): invalid int value: (.*)": r"\1 expects a whole number, got \2",
    r"argument (\S+): invalid float value: (.*)": r"\1 expects a number, got \2",
    r"the following arguments are required: (.*)": r"\1 is missing",
}


def _plain(message: str) -> str:
    """A mistake in the words that all others are told in."""
    for theirs, ours in WORDINGS.items():
        message = re.sub(f"^{theirs}$", ours, message)
    return message


def examples(*lines: str) -> str:
    """The end of a help text."""
    return "\n".join(["examples:", *(f"  {line}" for line in lines)])


def settings_given(words: Sequence[str], command: str) -> dict[str, str]:
    """What ``--set`` changes, by recipe key; not what makes a cell."""
    changes: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        name = key.strip()
        if not equals or not name:
            raise UsageError(f"{command}: --set expects KEY=VALUE, got {word!r}")
        if name in ("method", "seed", "data"):
            raise UsageError(f"{command}: {name} has a flag of its own, --set cannot change it")
        changes[f"options.{name.removeprefix('options.')}" if "." in name else name.replace("-", "_")] = value
    return changes


METAVARS = {int: "N", float: "X", str: "NAME"}
RECIPE_NOTE = """What no flag says comes from --recipe, and what that does not say is the default shown here.
Where neither --recipe nor --data is given, the recipe is digits."""


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
