"""Which runs belong side by side: runs of one task form a setting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedssd.reports.comparison import BASELINE
from fedssd.reports.grouping import TASK, Values, halves_of, head_of, heads_beside, name_lines, recipe_of, training_of
from fedssd.runs.read import begun
from fedssd.simulation.result import Result

OWN = -1  # each seed has a split of its own


@dataclass(frozen=True)
class Setting:
    """Runs of one task; their summaries' ``method`` is the name of the line they belong to."""

    name: str
    task: dict[str, Any]
    records: list[Result]
    split: int = OWN  # the seed of the split that all runs share
    baselines: Mapping[str, str] = field(default_factory=dict)  # of a line the FedAvg it is measured against, if any
    unsaid: Mapping[str, Values] = field(default_factory=dict)  # by halves, what their lines' names leave out


def settings(records: Sequence[Result]) -> list[Setting]:
    """The runs by task and split, in the order they came; each is named by what sets it apart from the others."""
    by_task: dict[str, list[Result]] = {}
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
            name, lines = ", ".join([_name(task, differing), *words]), name_lines(runs)
            found.append(Setting(name, task, lines.records, split, _baselines(lines.records), lines.unsaid))
    return found


def _baselines(records: Sequence[Result]) -> dict[str, str]:
    """By line the FedAvg that has its projection head and trains as it does, or else the only one with that head.

    A head of the method's own accord is no other setting.
    """
    plain: dict[str, dict[str, Values]] = {}
    for record in records:
        if halves_of(record) == (BASELINE, BASELINE):
            plain.setdefault(head_of(record), {})[record.summary.method] = training_of(record)
    found = {}
    for record in records:
        beside = heads_beside(halves_of(record)[0], head_of(record))
        same = next((plain[head] for head in beside if head in plain), {})
        alike = [name for name, training in same.items() if training == training_of(record)] or list(same)
        if len(alike) == 1:
            (found[record.summary.method],) = alike
    return found


def _task(record: Result) -> dict[str, Any]:
    return {key: recipe_of(record)[key] for key in TASK}


def _by_split(group: Sequence[Result]) -> dict[int, list[Result]]:
    """Runs whose seeds have splits of their own, and those on each split that several seeds share.

    Methods can be compared seed by seed only on the same splits. A run whose seed is that of a shared split belongs to
    both: it is what either way of splitting gives.
    """
    seeds = [(record, int(recipe_of(record)["seed"]), _split_seed(record)) for record in group]
    shared = dict.fromkeys(split for _, seed, split in seeds if split != seed)
    own = [record for record, seed, split in seeds if split == seed]
    alone = any(split == seed and split not in shared for _, seed, split in seeds)
    found = {OWN: own} if alone else {}
    return found | {split: [record for record, _, other in seeds if other == split] for split in shared}


def _split_seed(record: Result) -> int:
    recipe = recipe_of(record)
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


def once_per_seed(records: Iterable[Result]) -> tuple[list[Result], list[Result]]:
    """One run for every line and seed, and the repeats set aside: finished runs count first, then what was begun last.

    A run that does not say when it was begun is older than one that does; of two such, the last path counts.
    """
    found: dict[tuple[str, int], list[Result]] = {}
    for record in records:
        found.setdefault((record.summary.method, record.summary.seed), []).append(record)
    ranked = [
        sorted(runs, key=lambda run: (run.summary.finished, begun(run.provenance), str(run.folder)))
        for runs in found.values()
    ]
    return [runs[-1] for runs in ranked], [run for runs in ranked for run in runs[:-1]]


def _rank(run: Result) -> tuple[bool, str, str]:
    return run.summary.finished, begun(run.provenance), str(run.folder)
