"""A recipe: everything needed to run an experiment again, as flat keys with defaults written out."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedssd.errors import UserError, closest, nearest

Options = dict[str, dict[str, Any]]
MACHINE = (
    "engine",
    "device",
    "width",
    "kernels",
    "deterministic",
    "checkpoint_every",
)  # where and how a run goes, not what it is
LATER = ("label",)  # keys younger than the hash: in it only where they are not their default, so that no hash moves
FOLDER = Path(__file__).parents[1] / "recipes"
NAMED = ("digits", "cifar10", "cifar100", "tiny-imagenet")  # the recipes that come with fedssd, by their data's name
USUAL = "digits"  # where nobody names a recipe or data
PAPER_METHODS = ("fedavg", "fedprox", "fedcurv", "moon", "fedntd", "fedcad", "fedssd")


@dataclass(frozen=True)
class Recipe:
    """Every key is a TOML key and, with dashes, a command-line flag."""

    data: str = "digits"
    label: str = ""
    partition: str = "dirichlet:0.5"
    clients: int = 10
    participation: float = 1.0
    partition_seed: int = -1
    auxiliary: int = 64
    auxiliary_mode: str = "heldout"
    augment: str = "auto"
    model: str = "auto"
    head: str = "auto"
    method: str = "fedssd"
    server: str = "fedavg"
    rounds: int = 20
    epochs: int = 10
    batch: int = 64
    partial_batch: str = "auto"
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    lr_decay: float = 1.0
    seed: int = 0
    engine: str = "auto"
    device: str = "auto"
    precision: str = "fp32"
    width: int = 0
    kernels: str = "on"
    deterministic: bool = False
    evaluate_every: int = 1
    evaluate_local: bool = True
    checkpoint_every: str = "auto"
    on_bad_update: str = "drop"
    norm_limit: float = 0.0
    faults: str = ""
    options: Options = field(default_factory=dict)

    @property
    def split_seed(self) -> int:
        """The seed that says who holds what: the split's own, or the run's."""
        return self.seed if self.partition_seed < 0 else self.partition_seed

    @cached_property
    def hash(self) -> str:
        """Names the numbers the recipe leads to; where and how fast it ran is not part of it."""
        content = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in MACHINE}
        for key in LATER:
            if content[key] == getattr(Recipe, key):
                del content[key]
        return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def to_toml(self) -> str:
        """The recipe as a TOML file that :func:`load_recipe` reads back."""
        lines = [f"{key} = {toml_value(getattr(self, key))}" for key in KEYS]
        for method, options in sorted(self.options.items()):
            lines += ["", f"[options.{json.dumps(method)}]", *(f"{k} = {toml_value(v)}" for k, v in options.items())]
        return "\n".join(lines) + "\n"


KEYS: dict[str, type] = {f.name: type(f.default) for f in fields(Recipe) if f.name != "options"}
HELP: dict[str, str] = {
    "data": "digits, cifar10, cifar100, tiny-imagenet, or a folder, .npz or .csv",
    "label": "the column of a .csv with the label; empty for the one called label, class or target",
    "partition": "iid, dirichlet:δ, dirichlet-plain:δ or classes:k",
    "clients": "how many clients there are",
    "participation": "the share of clients that takes part in a round",
    "partition_seed": "seed of the split; -1 takes the run's seed",
    "auxiliary": "auxiliary samples per class at the server",
    "auxiliary_mode": "heldout: taken out of the clients; shared: left with them too",
    "augment": "moon, niid, fedntd, moon-zero or none; auto is moon for the paper's images, none elsewhere",
    "model": "cnn, cnn-small, resnet50 or mlp; auto goes by the data; several (cnn-small,mlp) go to clients in turn",
    "head": "projection head: on, off; auto gives it to methods that need it (MOON)",
    "method": "local half: a name, a sum such as fedssd+fedprox, or my_method.py:MyLoss",
    "server": "server half",
    "rounds": "communication rounds",
    "epochs": "local epochs per round",
    "batch": "batch size",
    "partial_batch": "keep or drop an epoch's last partial batch; auto drops it with batch norm",
    "lr": "learning rate",
    "momentum": "momentum of the local solver",
    "weight_decay": "weight decay of the local solver",
    "lr_decay": "factor on the learning rate after every round",
    "seed": "seed of everything that is random",
    "engine": "reference, vectorised; auto picks by device and model",
    "device": "cpu, cuda; auto takes a GPU where there is one",
    "precision": "fp32, tf32, bf16 or fp64",
    "width": "models trained at once by the vectorised engine; 0 chooses",
    "kernels": "our own kernels for small layers on a GPU: on or off",
    "deterministic": "only operations that repeat to the bit; on a GPU this costs speed",
    "evaluate_every": "rounds between evaluations (the last round always is)",
    "evaluate_local": "evaluate every client's model too, not only the global one",
    "checkpoint_every": "rounds (5) or time (30s, 10m, 1h) between checkpoints, never, or auto: within 1 % of the time",
    "on_bad_update": "a broken update (NaN, wrong shape): drop it, stop the run, or keep it (no guard)",
    "norm_limit": "drop updates of more than so many times the cohort's median norm; 0 for never",
    "faults": "faults to inject, such as drop=0.1,nan=2,flip=2x10; empty for none",
}
SPELLINGS = {"local": "method"}  # other names of keys: the local half beside the server half
CHOICES: dict[str, tuple[str, ...]] = {
    "auxiliary_mode": ("heldout", "shared"),
    "augment": ("auto", "moon", "niid", "fedntd", "moon-zero", "none"),
    "head": ("auto", "on", "off"),
    "partial_batch": ("auto", "keep", "drop"),
    "engine": ("auto", "reference", "vectorised"),
    "precision": ("fp32", "tf32", "bf16", "fp64"),
    "kernels": ("on", "off"),
    "on_bad_update": ("drop", "stop", "keep"),
}
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
MOST = 1_000_000_000  # of anything counted
AT_LEAST_ONE = ("clients", "rounds", "epochs", "batch", "evaluate_every")


def load_recipe(
    source: str | Path | None, overrides: Mapping[str, Any], others: Sequence[str] = (), caller: str = "command line"
) -> Recipe:
    """A recipe by its name, from a TOML file or a run's folder, with given values, which win; all of it is checked.

    ``others`` are further methods that the recipe will be used with, so that it may carry their options.
    """
    where = f"recipe {source}" if source else "recipe"
    recipe = merge(Recipe(), _read(source) if source else {}, where)
    final = merge(recipe, overrides, caller)
    try:
        refuse_unused(final, overrides, others)
        return check(final, others)
    except UserError as error:
        if source and str(error) == _mistake(recipe, others) != _mistake(Recipe(), others):
            raise UserError(f"{where}: {error}") from None
        raise


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
    changed: dict[str, Any] = {}
    options: Options = {method: dict(given) for method, given in recipe.options.items()}
    for key, value in values.items():
        name = key.replace("-", "_")
        name = SPELLINGS.get(name, name)
        if name in changed:
            raise UserError(f"{where}: {' and '.join(_names(name))} are one key, and both are given")
        if name == "options":
            _merge_options(options, value, where)
        elif "." in key:
            _set_option(options, key.removeprefix("options."), value, where)
        elif name in KEYS:
            changed[name] = _typed(name, value, where)
        else:
            raise UserError(f"{where}: unknown key {key!r}: {_meant(name, value)}")
    return replace(recipe, **changed, options=options)


def _meant(key: str, value: Any) -> str:
    """What somebody who wrote an unknown key had probably in mind."""
    if isinstance(value, Mapping) and closest(key, ["options"]):
        return "did you mean 'options'?"
    if isinstance(value, Mapping):
        return f"a method's options stand in a table [options.{key}]"
    close = closest(key, list(KEYS))
    option = "a method's option is written method.option, such as fedssd.m_max"
    return f"did you mean {close!r}?" if close else f"{option}; all keys are in docs/recipes.md"


def _names(key: str) -> list[str]:
    return [key, *(other for other, meant in SPELLINGS.items() if meant == key)]


def check(recipe: Recipe, others: Sequence[str] = ()) -> Recipe:
    """The recipe itself, or one line that says which key is wrong."""
    from fedssd.core.faults import parse_faults
    from fedssd.methods.registry import (
        build_local,
        build_server,
        check_pair,
        local_kinds,
    )  # torch, which `--help` must not wait for

    for key, known in CHOICES.items():
        if getattr(recipe, key) not in known:
            raise UserError(f"{key} expects one of {', '.join(known)}, got {getattr(recipe, key)!r}")
    for key in AT_LEAST_ONE:
        if not 1 <= getattr(recipe, key) <= MOST:
            bound = "at least 1" if getattr(recipe, key) < 1 else f"at most {MOST:,}"
            raise UserError(f"{key} expects a whole number of {bound}, got {getattr(recipe, key)}")
    _check_numbers(recipe)
    interval(recipe.checkpoint_every)
    parse_faults(recipe.faults, recipe.clients)
    used = {kind.name for method in (recipe.method, *others) for kind in local_kinds(method)} | {recipe.server}
    local = build_local(recipe.method, recipe.options)
    check_pair(local, build_server(recipe.server, recipe.options))
    for method in recipe.options:
        _check_option_owner(method, used, recipe.options)
    return recipe


def _check_option_owner(method: str, used: set[str], options: Options) -> None:
    """Options of a known method that this recipe does not use are fine (compare shares one recipe); typos are not."""
    from fedssd.methods.registry import LOCALS, SERVERS, build_local, build_server

    if method not in used and method not in LOCALS and method not in SERVERS:
        raise UserError(f"options are given for an unknown method {method!r}: {nearest(method, [*LOCALS, *SERVERS])}")
    if method in LOCALS and method != "fedavg":
        build_local(method, options)
    elif method in SERVERS:
        build_server(method, options)


def _check_numbers(recipe: Recipe) -> None:
    bounds = {
        "lr": (0.0, math.inf, False),
        "lr_decay": (0.0, 1.0, False),
        "participation": (0.0, 1.0, False),
        "momentum": (0.0, 1.0, True),
        "weight_decay": (0.0, math.inf, True),
        "norm_limit": (0.0, math.inf, True),
    }
    for key, (low, high, low_allowed) in bounds.items():
        value = getattr(recipe, key)
        fits = math.isfinite(value) and (low <= value if low_allowed else low < value) and value <= high
        if not fits or (key == "momentum" and value == 1.0):
            upper = "" if high == math.inf else f" and {'below' if key == 'momentum' else 'at most'} {high:g}"
            number = "a number" if math.isfinite(value) else "a finite number"
            raise UserError(
                f"{key} expects {number} {'of at least' if low_allowed else 'above'} {low:g}{upper}, got {value}"
            )
    for key, low in (("seed", 0), ("auxiliary", 0), ("partition_seed", -1), ("width", 0)):
        if not low <= getattr(recipe, key) < 2**32:
            raise UserError(f"{key} expects a whole number from {low} to 2³²−1, got {getattr(recipe, key)}")


def interval(text: str) -> tuple[str, float]:
    """``checkpoint_every`` understood: ("rounds", n), ("seconds", s), ("auto", 0) or ("never", 0)."""
    if text in ("auto", "never"):
        return text, 0.0
    number, unit = (text[:-1], text[-1]) if text[-1:] in SECONDS else (text, "")
    whole = number.isascii() and number.isdecimal() and len(number) <= len(str(MOST))
    if not whole or not 1 <= int(number) <= MOST:
        raise UserError(f"checkpoint_every expects 5 (rounds), 30s, 10m, 1h, auto or never, got {text!r}")
    return ("seconds", int(number) * SECONDS[unit]) if unit else ("rounds", float(number))


def _read(source: str | Path) -> dict[str, Any]:
    """The content of a file, of a run folder's ``recipe.toml``, or of the recipe of that name."""
    path = FOLDER / f"{source}.toml" if source in NAMED else Path(source)
    if path.is_dir():
        path /= "recipe.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        name = closest(path.stem, NAMED)
        hint = f"; did you mean the recipe {name!r}?" if name else f"; known by name: {', '.join(NAMED)}"
        raise UserError(f"recipe {path} cannot be read: {error.strerror}{hint}") from None
    except ValueError as error:  # of TOML, of UTF-8, of whole numbers with thousands of digits
        raise UserError(f"recipe {path} is not valid TOML: {error}") from None


def _merge_options(options: Options, value: Any, where: str) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(given, Mapping) for given in value.values()):
        raise UserError(f"{where}: options expects tables such as [options.fedssd], got {value!r}")
    for method, given in value.items():
        options.setdefault(method, {}).update(given)


def _set_option(options: Options, key: str, value: Any, where: str) -> None:
    method, _, option = key.rpartition(".")
    if not method or not option:
        raise UserError(f"{where}: an option is written method.option, such as fedssd.m_max, got {key!r}")
    options.setdefault(method, {})[option] = _value(value) if isinstance(value, str) else value


def _typed(key: str, value: Any, where: str) -> Any:
    kind = KEYS[key]
    if isinstance(value, str) and kind is not str:
        value = _value(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise UserError(f"{where}: {key} expects {names[kind]}, got {value!r}")
    return value


def _value(text: str) -> Any:
    """A value as TOML would read it, or the word itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
