"""Which runs belong side by side: runs of one task form a setting, and what differs within it names its lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedssd.report.records import Record
from fedssd.report.tables import BASELINE

# What makes a task; everything else is how it is tackled.
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
LEFT_OUT = ("method", "seed", "partition_seed", "engine", "device", "width", "evaluate_local")
ORDER = (BASELINE, "fedprox", "fedcurv", "moon", "fedntd", "fedcad", "fedssd")


@dataclass(frozen=True)
class Setting:
    """Runs of one task; their summaries' ``method`` is the name of the line they belong to."""

    name: str
    task: dict[str, Any]
    records: list[Record]


def settings(records: Sequence[Record]) -> list[Setting]:
    """The runs by task, in the order they came; each is named by what sets it apart from the others."""
    by_task: dict[str, list[Record]] = {}
    for record in records:
        by_task.setdefault(repr(_task(record)), []).append(record)
    tasks = [_task(group[0]) for group in by_task.values()]
    differing = [key for key in TASK if len({repr(task.get(key)) for task in tasks}) > 1]
    return [
        Setting(_name(task, differing), task, _labelled(group))
        for task, group in zip(tasks, by_task.values(), strict=True)
    ]


def _task(record: Record) -> dict[str, Any]:
    return {key: record.recipe[key] for key in TASK if key in record.recipe}


def _name(task: dict[str, Any], differing: Sequence[str]) -> str:
    """Data and split always; of the rest what differs between settings."""
    rest = [_words(key, task.get(key)) for key in differing if key not in ("data", "partition")]
    return ", ".join([str(task.get("data", "?")), str(task.get("partition", "?")), *rest])


def _words(key: str, value: Any) -> str:
    counted = {"clients": "clients", "rounds": "rounds", "epochs": "epochs", "auxiliary": "auxiliary"}
    if key in counted:
        return f"{value} {counted[key]}"
    return f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"


def _labelled(group: Sequence[Record]) -> list[Record]:
    """The runs with their line's name as method: the method, and what differs between its runs beside the seed."""
    by_method: dict[str, list[Record]] = {}
    for record in group:
        by_method.setdefault(str(record.recipe.get("method", record.summary["method"])), []).append(record)
    ordered = sorted(by_method, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    return [record for method in ordered for record in _variants(method, by_method[method])]


def _variants(method: str, records: Sequence[Record]) -> list[Record]:
    settings = [_flat(record.recipe) for record in records]
    keys = list(dict.fromkeys(key for setting in settings for key in setting))
    differing = [key for key in keys if len({repr(setting.get(key)) for setting in settings}) > 1]
    labels = [_label(method, {key: setting.get(key) for key in differing}) for setting in settings]
    found = zip(labels, records, strict=True)
    return [replace(record, summary={**record.summary, "method": label}) for label, record in found]


def _label(method: str, differing: dict[str, Any]) -> str:
    values = [
        f"{key.removeprefix(method + '.')}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in differing.items()
    ]
    return " ".join([method, *values])


def _flat(recipe: dict[str, Any]) -> dict[str, Any]:
    """What may differ within a setting, options as ``method.option``."""
    flat = {k: v for k, v in recipe.items() if k not in TASK and k not in LEFT_OUT and k != "options"}
    for method, options in recipe.get("options", {}).items():
        flat |= {f"{method}.{name}": value for name, value in options.items()}
    return flat


def once_per_seed(records: Iterable[Record]) -> tuple[list[Record], int]:
    """One run for every line and seed, finished ones first, and how many were left out."""
    kept: dict[tuple[str, int], Record] = {}
    count = 0
    for record in records:
        key = (record.summary["method"], record.summary["seed"])
        count += 1
        if key not in kept or (record.finished and not kept[key].finished):
            kept[key] = record
    return list(kept.values()), count - len(kept)
