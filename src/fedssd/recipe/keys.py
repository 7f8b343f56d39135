"""The keys of a recipe. Each is declared here and nowhere else; flags, checks, the docs' table and all sets follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from fedssd.errors import UserError

# What a key is of. Runs whose task and split keys are alike are one task. Recipes that differ in seeds, splits and
# numbers only share a program. A machine key says where a run goes and is not part of its hash.
Role = Literal["task", "split", "seed", "method", "number", "train", "record", "machine"]
MOST = 1_000_000_000  # of anything counted
LAST_SEED = 2**32 - 1
TABLE = "privacy"  # the keys that stand in a table of this name, where a recipe is a file: [privacy] has mode, clip, …
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Key:
    """What is known of a key beside its name."""

    default: Any
    help: str
    group: str  # of flags
    role: Role
    choices: tuple[str, ...] = ()
    low: float | None = None  # the least value
    high: float | None = None  # the greatest
    above: float | None = None  # what a value is greater than
    below: float | None = None  # what it is less than
    understand: Callable[[str], object] | None = None  # raises UserError for a text that means nothing
    free: bool = False  # may be another when a run goes on
    later: bool = False  # came when runs had hashes: it is in them only where it is not its default, so that none moves
    also: str = ""  # another name
    see: str = ""  # a page of the docs

    @property
    def kind(self) -> type:
        """The type of its values."""
        return type(self.default)


def key(default: Any, help: str, *, group: str, role: Role, **more: Any) -> Any:
    """Declare a key of a recipe: its default, what it means, the group of flags it stands in and what it is of."""
    if type(default) is int:
        more = {"high": MOST, **more}
    return field(default=default, metadata={"key": Key(default, help, group, role, **more)})


def interval(text: str) -> tuple[str, float]:
    """``checkpoint_every`` understood: ("rounds", n), ("seconds", s), ("auto", 0) or ("never", 0)."""
    if text in ("auto", "never"):
        return text, 0.0
    number, unit = (text[:-1], text[-1]) if text[-1:] in SECONDS else (text, "")
    whole = number.isascii() and number.isdecimal() and len(number) <= len(str(MOST))
    if not whole or not 1 <= int(number) <= MOST:
        raise UserError(f"checkpoint_every expects 5 (rounds), 30s, 10m, 1h, auto or never, got {text!r}")
    return ("seconds", int(number) * SECONDS[unit]) if unit else ("rounds", float(number))


@dataclass(frozen=True)
class Keys:
    """Every key is a TOML key, a keyword in Python and, with dashes, a command-line flag."""

    data: str = key(
        "digits",
        "digits, cifar10, cifar100, tiny-imagenet, or a folder, .npz or .csv",
        group="data and clients",
        role="task",
        see="data.md#sources",
    )
    label: str = key(
        "",
        "the column of a .csv with the label; empty for the one called label, class or target",
        group="data and clients",
        role="task",
        later=True,
    )
    partition: str = key(
        "dirichlet:0.5",
        "iid, dirichlet:δ, dirichlet-plain:δ or classes:k",
        group="data and clients",
        role="split",
        see="data.md#partitions",
    )
    clients: int = key(10, "how many clients there are", group="data and clients", role="task", low=1)
    participation: float = key(
        1.0,
        "the share of clients that takes part in a round, at least one client",
        group="data and clients",
        role="task",
        above=0,
        high=1,
    )
    partition_seed: int = key(
        -1,
        "seed of the split and of the auxiliary set; -1 takes the run's seed",
        group="data and clients",
        role="seed",
        low=-1,
        high=LAST_SEED,
    )
    auxiliary: int = key(
        64,
        "auxiliary samples per class at the server; 0 for none",
        group="data and clients",
        role="split",
        low=0,
        see="data.md#the-auxiliary-set",
    )
    auxiliary_mode: str = key(
        "heldout",
        "heldout: taken out of the clients; shared: left with them too",
        group="data and clients",
        role="split",
        choices=("heldout", "shared"),
    )
    augment: str = key(
        "auto",
        "moon, niid, fedntd, moon-zero or none; auto is moon for the paper's images, none elsewhere",
        group="data and clients",
        role="task",
        choices=("auto", "moon", "niid", "fedntd", "moon-zero", "none"),
        see="data.md#augmentation",
    )
    model: str = key(
        "auto",
        "cnn, cnn-small, resnet50 or mlp; auto goes by the data; several (cnn-small,mlp) go to clients in turn",
        group="method and model",
        role="task",
        see="#different-models",
    )
    head: str = key(
        "auto",
        "projection head: on, off; auto gives it to methods that need it (MOON)",
        group="method and model",
        role="method",
        choices=("auto", "on", "off"),
    )
    method: str = key(
        "fedssd",
        "local half: a name, a sum such as fedssd+fedprox, or my_method.py:MyLoss",
        group="method and model",
        role="method",
        also="local",
        see="methods/README.md",
    )
    server: str = key(
        "fedavg",
        "server half: fedavg, fednova, ida, feddf, pfnm, fedma, fedavgm, fedadam, fedyogi, fedadagrad, median, "
        "trimmed-mean, krum or clipping",
        group="method and model",
        role="method",
        see="methods/README.md",
    )
    rounds: int = key(20, "communication rounds", group="training", role="task", low=1, free=True)
    epochs: int = key(10, "local epochs per round", group="training", role="task", low=1)
    batch: int = key(
        64, "batch size; a client with fewer samples has one smaller batch", group="training", role="train", low=1
    )
    partial_batch: str = key(
        "auto",
        "keep or drop an epoch's last partial batch; auto drops it with batch norm",
        group="training",
        role="train",
        choices=("auto", "keep", "drop"),
    )
    lr: float = key(0.01, "learning rate of the local solver", group="training", role="number", above=0)
    momentum: float = key(
        0.9,
        "momentum of the local solver; its velocity starts at zero every round",
        group="training",
        role="number",
        low=0,
        below=1,
    )
    weight_decay: float = key(0.0, "weight decay of the local solver", group="training", role="number", low=0)
    lr_decay: float = key(
        1.0, "factor on the learning rate after every round", group="training", role="number", above=0, high=1
    )
    seed: int = key(0, "seed of everything that is random", group="training", role="seed", low=0, high=LAST_SEED)
    engine: str = key(
        "auto",
        "reference, vectorised; auto picks by device and model",
        group="machine",
        role="machine",
        choices=("auto", "reference", "vectorised"),
    )
    device: str = key("auto", "cpu, cuda; auto takes a GPU where there is one", group="machine", role="machine")
    precision: str = key(
        "fp32", "fp32, tf32, bf16 or fp64", group="machine", role="train", choices=("fp32", "tf32", "bf16", "fp64")
    )
    width: int = key(
        0, "models trained at once by the vectorised engine; 0 chooses", group="machine", role="machine", low=0
    )
    kernels: str = key(
        "on",
        "our own kernels for small layers on a GPU: on or off",
        group="machine",
        role="machine",
        choices=("on", "off"),
    )
    deterministic: bool = key(
        False,
        "only operations that repeat to the bit, which a GPU needs to be resumed to the bit; it costs speed",
        group="machine",
        role="machine",
        see="reliability.md#resume",
    )
    evaluate_every: int = key(
        1, "rounds between evaluations (the last round always is)", group="evaluation", role="task", low=1
    )
    evaluate_local: bool = key(
        True,
        "evaluate every client's model too, which forgetting needs, not only the global one",
        group="evaluation",
        role="record",
    )
    checkpoint_every: str = key(
        "auto",
        "rounds (5) or time (30s, 10m, 1h) between checkpoints, never, or auto: within 1 % of the time",
        group="machine",
        role="machine",
        understand=interval,
        see="reliability.md#resume",
    )
    on_bad_update: str = key(
        "drop",
        "a broken update (NaN, wrong shape): drop it, stop the run, or keep it (no guard)",
        group="reliability",
        role="train",
        choices=("drop", "stop", "keep"),
        free=True,
        see="reliability.md#guard",
    )
    reach: float = key(
        5.0,
        "drop updates that moved more than so many times what the others did, now or before; 0 for never",
        group="reliability",
        role="train",
        low=0,
        later=True,
        see="reliability.md#guard",
    )
    norm_limit: float = key(
        0.0,
        "drop updates of more than so many times the cohort's median norm; 0 for never",
        group="reliability",
        role="train",
        low=0,
    )
    faults: str = key(
        "",
        "faults to inject, such as drop=0.1,nan=2,flip=2x10; empty for none",
        group="reliability",
        role="train",
        see="reliability.md#faults",
    )
    privacy_mode: str = key(
        "",
        "differential privacy: central (noise at the server), local (at the clients) or empty for none",
        group="privacy",
        role="train",
        choices=("", "central", "local"),
        later=True,
        see="privacy.md",
    )
    privacy_clip: float = key(
        1.0, "the norm that no client's update exceeds", group="privacy", role="train", above=0, high=1e9, later=True
    )
    privacy_noise: float = key(
        0.0,
        "deviation of the noise, in clips; 0 to let epsilon say",
        group="privacy",
        role="train",
        low=0,
        high=1e6,
        later=True,
    )
    privacy_epsilon: float = key(
        0.0,
        "the ε that all rounds are to come to, which says how much noise; 0 to name the noise",
        group="privacy",
        role="train",
        low=0,
        high=1e6,
        later=True,
    )
    privacy_delta: float = key(
        1e-5, "the chance at which ε may fail", group="privacy", role="train", above=0, below=1, later=True
    )
    privacy_budget: float = key(
        0.0,
        "the run stops before ε passes this; 0 for never",
        group="privacy",
        role="train",
        low=0,
        free=True,
        later=True,
    )
    privacy_test_seed: int = key(
        -1,
        "for tests: draw the noise from this seed, which hides nothing; -1 draws it from the system",
        group="privacy",
        role="train",
        low=-1,
        high=LAST_SEED,
        later=True,
    )


KEYS: dict[str, Key] = {one.name: one.metadata["key"] for one in fields(Keys)}
SPELLINGS = {one.also: name for name, one in KEYS.items() if one.also}  # other names of keys


def of(*roles: Role) -> tuple[str, ...]:
    """The keys that are of these."""
    return tuple(name for name, one in KEYS.items() if one.role in roles)


MACHINE = of("machine")  # where and how a run goes, not what it is
FREE = tuple(name for name, one in KEYS.items() if one.free or one.role == "machine")  # may change when a run goes on
LATER = tuple(name for name, one in KEYS.items() if one.later)


def groups() -> dict[str, list[str]]:
    """The keys by the group they are shown in."""
    found: dict[str, list[str]] = {}
    for name, one in KEYS.items():
        found.setdefault(one.group, []).append(name)
    return found


def spellings(name: str) -> list[str]:
    """A key's names."""
    return [name, *(other for other, meant in SPELLINGS.items() if meant == name)]


def canonical(word: str) -> str:
    """A key as a flag or another of its names has it, as a recipe has it; an option's dots stay."""
    name = word.removeprefix("options.") if "." in word else word.replace("-", "_")
    if name.startswith(f"{TABLE}."):
        name = name.replace(".", "_", 1).replace("-", "_")
    return SPELLINGS.get(name, name)
