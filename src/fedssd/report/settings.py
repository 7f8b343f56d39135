"""Which runs belong side by side: runs of one task form a setting, and what differs within it names its lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedssd.experiment.recipe import MACHINE, Recipe
from fedssd.report.records import Record
from fedssd.report.tables import BASELINE

# What makes a task, beside the split; everything else is how it is tackled.
TASK = (
    "data",
    "partition",
    "clients",
    "participation",
    "auxiliary",
    "auxiliary_mode",
    "augment",
    "model",
    "rounds",
    "epochs",
    "evaluate_every",
)
NAMED = ("method", "server", "options")  # what names a line by itself
LEFT_OUT = {*TASK, *NAMED, *MACHINE, "head", "seed", "partition_seed", "evaluate_local"}
HEADED = ("moon",)  # local halves with a projection head of their own accord; the rest have one where it is asked for
ORDER = (BASELINE, "fedprox", "fedcurv", "moon", "fedntd", "fedcad", "fedssd")
DEFAULTS = asdict(Recipe())  # of keys that are younger than a run
OWN = -1  # each seed has a split of its own


@dataclass(frozen=True)
class Setting:
    """Runs of one task; their summaries' ``method`` is the name of the line they belong to."""

    name: str
    task: dict[str, Any]
    records: list[Record]
    split: int = OWN  # the seed of the split that all runs share
    baselines: Mapping[str, str] = field(default_factory=dict)  # of a line the FedAvg it is measured against, if any


def settings(records: Sequence[Record]) -> list[Setting]:
    """The runs by task and split, in the order they came; each is named by what sets it apart from the others."""
    by_task: dict[str, list[Record]] = {}
    for record in records:
        by_task.setdefault(repr(_task(record)), []).append(record)
    tasks = [_task(group[0]) for group in by_task.values()]
    found = []
    for task, group in zip(tasks, by_task.values(), strict=True):
        alike = [other for other in tasks if other["data"] == task["data"]]  # what goes with the data needs no saying
        differing = [key for key in TASK if len({repr(other[key]) for other in alike}) > 1]
        splits = _by_split(group)
        for split, runs in splits.items():
            words = [_split_words(split)] if len(splits) > 1 else []
            lines = _labelled(runs)
            found.append(Setting(", ".join([_name(task, differing), *words]), task, lines, split, _baselines(lines)))
    return found


def head_of(record: Record) -> str:
    """Whether its model has a projection head: on or off."""
    head = str(_recipe(record)["head"])
    return _own_head(record) if head == "auto" else head


def _own_head(record: Record) -> str:
    """What the method has where nobody asks; of a user's file that is not known without running it, and seldom on."""
    return "on" if any(part.strip() in HEADED for part in str(_recipe(record)["method"]).split("+")) else "off"


def _baselines(records: Sequence[Record]) -> dict[str, str]:
    """By line the one FedAvg that has its projection head; a head of the method's own accord is no other setting."""
    plain: dict[str, set[str]] = {}
    for record in records:
        if _halves(record) == (BASELINE, BASELINE):
            plain.setdefault(head_of(record), set()).add(record.summary["method"])
    found = {}
    for record in records:
        same = next((plain[head] for head in _heads_beside(record) if head in plain), set())
        if len(same) == 1:
            (found[record.summary["method"]],) = same
    return found


def _heads_beside(record: Record) -> tuple[str, ...]:
    """The head its FedAvg has, the likelier first: a run does not write down whether its head was asked for."""
    head = head_of(record)
    if head == "on" and _own_head(record) == "on":
        return "off", "on"
    return ("on", "off") if head == "on" and ".py:" in _halves(record)[0] else (head,)


def _halves(record: Record) -> tuple[str, str]:
    recipe = _recipe(record)
    return str(recipe["method"]), str(recipe["server"])


def _recipe(record: Record) -> dict[str, Any]:
    return DEFAULTS | record.recipe


def _task(record: Record) -> dict[str, Any]:
    return {key: _recipe(record)[key] for key in TASK}


def _by_split(group: Sequence[Record]) -> dict[int, list[Record]]:
    """Runs whose seeds have splits of their own, and those on each split that several seeds share.

    Methods can be compared seed by seed only on the same splits. A run whose seed is that of a shared split belongs to
    both: it is what either way of splitting gives.
    """
    seeds = [(record, int(_recipe(record)["seed"]), _split_seed(record)) for record in group]
    shared = dict.fromkeys(split for _, seed, split in seeds if split != seed)
    own = [record for record, seed, split in seeds if split == seed]
    alone = any(split == seed and split not in shared for _, seed, split in seeds)
    found = {OWN: own} if alone else {}
    return found | {split: [record for record, _, other in seeds if other == split] for split in shared}


def _split_seed(record: Record) -> int:
    recipe = _recipe(record)
    return int(recipe["seed"] if recipe["partition_seed"] == OWN else recipe["partition_seed"])


def _split_words(split: int) -> str:
    return "a split for each seed" if split == OWN else f"split {split}"


def _name(task: dict[str, Any], differing: Sequence[str]) -> str:
    """Data and split always; of the rest what differs between settings."""
    rest = [_words(key, task[key]) for key in differing if key not in ("data", "partition")]
    return ", ".join([str(task["data"]), str(task["partition"]), *rest])


def _words(key: str, value: Any) -> str:
    if key in ("clients", "rounds", "epochs"):
        return f"{value} {key.removesuffix('s') if value == 1 else key}"
    if key == "participation":
        return "all take part" if value == 1 else f"{value:.0%} take part"
    return f"{key.replace('_', ' ')} {value:g}" if isinstance(value, float) else f"{key.replace('_', ' ')} {value}"


def _labelled(group: Sequence[Record]) -> list[Record]:
    """The runs with their line's name as method: the halves, and what differs between its runs beside the seed."""
    by_halves: dict[tuple[str, str], list[Record]] = {}
    for record in group:
        by_halves.setdefault(_halves(record), []).append(record)
    ordered = sorted(by_halves, key=_rank)
    several = len({head_of(record) for record in group}) > 1
    return [record for halves in ordered for record in _variants(halves, by_halves[halves], several)]


def _rank(halves: tuple[str, str]) -> tuple[bool, int]:
    """The paper's methods first, in its order, then a user's own; FedAvg's server half before others."""
    method, server = halves
    place = ORDER.index(method) if method in ORDER else len(ORDER) + (".py:" not in method)
    return server != BASELINE, place


def _variants(halves: tuple[str, str], records: Sequence[Record], several_heads: bool) -> list[Record]:
    settings = [_flat(halves, _recipe(record)) for record in records]
    keys = list(dict.fromkeys(key for setting in settings for key in setting))
    differing = [key for key in keys if len({repr(setting.get(key)) for setting in settings}) > 1]
    found = []
    for record, setting in zip(records, settings, strict=True):
        asked = {"head": head_of(record)} if several_heads and head_of(record) != _own_head(record) else {}
        label = _label(halves, asked | {key: setting.get(key) for key in differing})
        found.append(replace(record, summary={**record.summary, "method": label}))
    return found


def _label(halves: tuple[str, str], differing: dict[str, Any]) -> str:
    """``fedssd × fednova``, then ``key=value`` for all that differs."""
    method, server = halves
    pair = [half for half in halves if half != BASELINE] or [BASELINE]
    owner = f"{method if server == BASELINE else server}." if len(pair) == 1 else ""
    values = [f"{key.removeprefix(owner)}={_short(value)}" for key, value in differing.items()]
    return " ".join([" × ".join(pair), *values])


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _flat(halves: tuple[str, str], recipe: dict[str, Any]) -> dict[str, Any]:
    """What may differ within a line's halves, options as ``method.option``; of methods that do not run, none."""
    method, server = halves
    used = {part.strip() for part in method.split("+")} | {server}
    custom = ".py:" in method  # whose options stand under a name that only its file knows
    flat = {key: value for key, value in recipe.items() if key not in LEFT_OUT}
    for owner, options in recipe["options"].items():
        if custom or owner in used:
            flat |= {f"{owner}.{name}": value for name, value in options.items()}
    return flat


def once_per_seed(records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """One run for every line and seed, and the repeats set aside: finished runs count first, then what was begun last.

    A run that does not say when it was begun is older than one that does; of two such, the last path counts.
    """
    found: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        found.setdefault((record.summary["method"], record.summary["seed"]), []).append(record)
    ranked = [sorted(runs, key=lambda run: (run.finished, run.begun, run.folder)) for runs in found.values()]
    return [runs[-1] for runs in ranked], [run for runs in ranked for run in runs[:-1]]
