"""A recipe: everything needed to run an experiment again, as flat keys with defaults written out."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssd.errors import UserError, closest, nearest
from fedssd.recipe.keys import KEYS, LATER, MACHINE, TABLE, Keys, canonical, spellings
from fedssd.recipe.values import checked, parsed, toml_value, typed

if TYPE_CHECKING:
    from fedssd.core.contract import Local, Server

Options = dict[str, dict[str, Any]]
FOLDER = Path(__file__).parents[1] / "recipes"
NAMED = ("digits", "cifar10", "cifar100", "tiny-imagenet")  # the recipes that come with fedssd, by their data's name
LARGEST = 1_000_000  # characters of a recipe
USUAL = "digits"  # where nobody names a recipe or data
PAPER_METHODS = ("fedavg", "fedprox", "fedcurv", "moon", "fedntd", "fedcad", "fedssd")


@dataclass(frozen=True, init=False)
class Recipe(Keys):
    """What a run is: a value for every key, and the options of methods.

    Keys are keywords, and a method's options stand in ``options`` or under ``method.option``. An unknown key, a value
    of another type, one that is no choice or out of bounds is a :class:`UserError` at once; the method and its options
    are looked at when they are used.

    Example:
        >>> recipe = Recipe(data="digits", partition="classes:2", **{"fedssd.m_max": 0.3})
        >>> recipe.replace(rounds=5).rounds
        5
    """

    options: Options = field(default_factory=dict)

    def __init__(self, **keys: Any) -> None:
        given, options = _understood({}, keys, "recipe")
        for name, one in KEYS.items():
            object.__setattr__(self, name, checked(name, given[name]) if name in given else one.default)
        object.__setattr__(self, "options", options)

    @classmethod
    def load(cls, source: str | Path, **changes: Any) -> Recipe:
        """Read a recipe and change some of its keys.

        Args:
            source: The name of one that comes with fedssd (``"digits"``), a TOML file, or the folder of a run.
            changes: Values of keys and options, which win over the file's.

        Returns:
            The recipe, checked as by its constructor.

        Example:
            >>> Recipe.load("cifar10", rounds=30, **{"fedssd.m_max": 0.5}).batch
            64
        """
        return merge(_begun(source, changes), changes, "changes")

    def replace(self, **changes: Any) -> Recipe:
        """Change some keys or options; the rest stays.

        Example:
            >>> Recipe().replace(rounds=5, **{"fedssd.m_max": 0.3}).options
            {'fedssd': {'m_max': 0.3}}
        """
        return merge(self, changes, "changes")

    def save(self, path: str | Path) -> None:
        """Write the recipe as a TOML file that :meth:`load` reads back; the file is there whole or not at all."""
        path = Path(path)
        part = path.with_name(f".{path.name}.part")
        try:
            part.write_text(self.to_toml(), encoding="utf-8")
            os.replace(part, path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise UserError(f"cannot write the recipe to {path}: {error.strerror}") from None

    def resolved(self) -> Recipe:
        """Write out what the recipe leaves open: a name in place of every ``auto`` but engine and device, all options.

        It is what a run of it writes down. Data that are not known by name are loaded for their shape where the model
        goes by it.
        """
        from fedssd.recipe.resolve import resolved

        return resolved(self)

    @property
    def split_seed(self) -> int:
        """The seed that says who holds what: the split's own, or the run's."""
        return self.seed if self.partition_seed < 0 else self.partition_seed

    @cached_property
    def hash(self) -> str:
        """Names the numbers the recipe leads to, in 16 digits; where and how fast it ran is not part of it."""
        content = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in MACHINE}
        for name in LATER:
            if content[name] == KEYS[name].default:
                del content[name]
        return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def to_toml(self) -> str:
        """The recipe as the text of a TOML file that :meth:`load` reads back."""
        inner = {name: name.removeprefix(f"{TABLE}_") for name in KEYS if name.startswith(f"{TABLE}_")}
        lines = [f"{name} = {toml_value(getattr(self, name))}" for name in KEYS if name not in inner]
        if any(getattr(self, name) != KEYS[name].default for name in inner):
            lines += [
                "",
                f"[{TABLE}]",
                *(f"{word} = {toml_value(getattr(self, name))}" for name, word in inner.items()),
            ]
        for method, options in sorted(self.options.items()):
            lines += ["", f"[options.{json.dumps(method)}]", *(f"{k} = {toml_value(v)}" for k, v in options.items())]
        return "\n".join(lines) + "\n"


def load_recipe(
    source: str | Path | Recipe | None,
    overrides: Mapping[str, Any],
    others: Sequence[str] = (),
    caller: str = "command line",
) -> Recipe:
    """A recipe, by name, of a TOML file or of a run's folder, with given values, which win; all of it is checked.

    ``others`` are further methods that the recipe will be used with, so that it may carry their options.
    """
    if isinstance(source, Recipe):
        recipe, source = source, None
    else:
        recipe = _begun(source, overrides) if source else Recipe()
    final = merge(recipe, overrides, caller)
    try:
        refuse_unused(final, overrides, others)
        return check(final, others)
    except UserError as error:
        if source and str(error) == _mistake(recipe, others) != _mistake(Recipe(), others):
            raise UserError(f"recipe {source}: {error}") from None
        raise


def _begun(source: str | Path, overrides: Iterable[str]) -> Recipe:
    """A file's recipe; what of it is overridden has to be of its key's type, in or out of bounds."""
    taken = {canonical(name) for name in overrides if canonical(name) in KEYS}
    content, where = _read(source), f"recipe {source}"
    values, options = _understood({}, content, where)
    try:
        return Recipe(**{name: value for name, value in values.items() if name not in taken}, options=options)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _mistake(recipe: Recipe, others: Sequence[str]) -> str:
    """What is wrong with a recipe, if anything is."""
    try:
        check(recipe, others)
    except UserError as error:
        return str(error)
    return ""


def usual(source: str | Path | None, given: Iterable[str]) -> str | Path | None:
    """The recipe to begin with: the one asked for, or ``digits`` where neither a recipe nor data are named."""
    return source or (None if "data" in given else USUAL)


def briefly(recipe: Recipe) -> str:
    """One line where a run has less than half the training of the recipe that comes with its data; else nothing."""
    name = recipe.data if recipe.data in NAMED else ""
    whole = merge(Recipe(), _read(name), name) if name else Recipe()
    if 2 * recipe.rounds * recipe.epochs >= whole.rounds * whole.epochs:
        return ""
    usually = f"the recipe {name} has" if name else "the defaults have"
    return (
        f"a short run: rounds × epochs = {recipe.rounds} × {recipe.epochs} where {usually} "
        f"{whole.rounds} × {whole.epochs}; its accuracy says little"
    )


def refuse_unused(recipe: Recipe, keys: Iterable[str], others: Sequence[str] = ()) -> None:
    """An option set by hand for a method that does not run would do nothing: say so.

    What runs is the recipe's method, or the ``others`` in its place.
    """
    from fedssd.methods.registry import LOCALS, SERVERS, local_kinds

    used = {kind.name for method in others or [recipe.method] for kind in local_kinds(method)} | {recipe.server}
    for key in keys:
        method = key.removeprefix("options.").rpartition(".")[0]
        if method in {**LOCALS, **SERVERS} and method not in used:
            raise UserError(
                f"{key} is set, and {method!r} is not among the methods that run: {', '.join(sorted(used))}"
            )


def merge(recipe: Recipe, values: Mapping[str, Any], where: str) -> Recipe:
    """The recipe with these keys set; ``fedssd.m_max`` and ``options.fedssd.m_max`` name a method's option."""
    changed, options = _understood(recipe.options, values, where)
    return replace(recipe, **changed, options=options)


def _understood(below: Options, values: Mapping[str, Any], where: str) -> tuple[dict[str, Any], Options]:
    """Values by the recipe's keys, each of its key's type, and the options above those ``below``."""
    changed: dict[str, Any] = {}
    options: Options = {method: dict(given) for method, given in below.items()}
    for word, value in _without_table(values, where).items():
        name = canonical(word)
        if name in changed:
            both = " and ".join(spellings(name))
            raise UserError(
                f"{where}: {both} are one key, and both are given"
                if both != name
                else f"{where}: {name} is given twice"
            )
        if name == "options":
            _merge_options(options, value, where)
        elif "." in name:
            _set_option(options, name, value, where)
        elif name in KEYS:
            changed[name] = typed(name, value, where)
        else:
            raise UserError(f"{where}: unknown key {word!r}: {_meant(name, value)}")
    return changed, options


def _without_table(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values with those of the table ``[privacy]`` beside the others, as ``privacy.clip``."""
    inner = values.get(TABLE, {})
    if not isinstance(inner, Mapping):
        raise UserError(f"{where}: {TABLE} expects a table such as [{TABLE}] with mode and noise, got {inner!r}")
    return {word: value for word, value in values.items() if word != TABLE} | {
        f"{TABLE}.{word}": value for word, value in inner.items()
    }


def _meant(key: str, value: Any) -> str:
    """What somebody who wrote an unknown key had probably in mind."""
    if isinstance(value, Mapping) and closest(key, ["options"]):
        return "did you mean 'options'?"
    if isinstance(value, Mapping):
        return f"a method's options stand in a table [options.{key}]"
    close = closest(key, list(KEYS))
    option = "a method's option is written method.option, such as fedssd.m_max"
    return f"did you mean {close!r}?" if close else f"{option}; all keys are in docs/recipes.md"


def check(recipe: Recipe, others: Sequence[str] = ()) -> Recipe:
    """The recipe itself, or one line that says what is wrong with its method, options or faults.

    Options of a known method that this recipe does not use are fine, as compare shares one recipe; typos are not.
    """
    from fedssd.methods.registry import (
        LOCALS,
        SERVERS,
        build_local,
        build_server,
        check_pair,
        local_kinds,
        typed_options,
    )  # torch, which `--help` must not wait for

    if recipe.faults:
        from fedssd.core.faults import parse_faults

        parse_faults(recipe.faults, recipe.clients)
    used = {kind.name for method in (recipe.method, *others) for kind in local_kinds(method)} | {recipe.server}
    local = build_local(recipe.method, recipe.options)
    check_pair(local, build_server(recipe.server, recipe.options))
    known: dict[str, type[Local] | type[Server]] = {**SERVERS, **LOCALS}
    for method, given in recipe.options.items():
        if method not in used and method not in known:
            names = nearest(method, [*LOCALS, *SERVERS])
            raise UserError(f"options are given for an unknown method {method!r}: {names}")
        if method in known:
            typed_options(known[method], given)
    return recipe


def _read(source: str | Path) -> dict[str, Any]:
    """The content of a file, of a run folder's ``recipe.toml``, or of the recipe of that name."""
    path = FOLDER / f"{source}.toml" if source in NAMED else Path(source)
    try:
        if path.is_dir():
            path /= "recipe.toml"
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise UserError(f"recipe {path} is longer than {LARGEST:,} characters")
        return tomllib.loads(text)
    except UserError:
        raise
    except OSError as error:
        name = closest(path.stem, NAMED)
        hint = f"; did you mean the recipe {name!r}?" if name else f"; known by name: {', '.join(NAMED)}"
        raise UserError(f"recipe {path} cannot be read: {error.strerror}{hint}") from None
    except ValueError as error:  # of TOML, of UTF-8, of whole numbers with thousands of digits
        raise UserError(f"recipe {path} is not valid TOML: {error}") from None
    except RecursionError:
        raise UserError(f"recipe {path} is not valid TOML: its lists or tables are nested too deep") from None


def _merge_options(options: Options, value: Any, where: str) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(given, Mapping) for given in value.values()):
        raise UserError(f"{where}: options expects tables such as [options.fedssd], got {value!r}")
    for method, given in value.items():
        options.setdefault(method, {}).update(given)


def _set_option(options: Options, key: str, value: Any, where: str) -> None:
    method, _, option = key.rpartition(".")
    if not method or not option:
        raise UserError(f"{where}: an option is written method.option, such as fedssd.m_max, got {key!r}")
    options.setdefault(method, {})[option] = parsed(value) if isinstance(value, str) else value
