"""Which runs are one task and one line, and what each is called beside the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedssd.recipe import Recipe, of
from fedssd.reports.comparison import BASELINE
from fedssd.runs.provenance import begun
from fedssd.simulation.result import Result

# What makes a task, beside the split; everything else is how it is tackled.
TASK = of("task", "split")
NAMED = ("method", "server", "options")  # what names a line by itself
LEFT_OUT = {"options", *TASK, *of("seed", "method", "record", "machine")}
HEADED = ("moon",)  # local halves with a projection head of their own accord; the rest have one where it is asked for
ORDER = (BASELINE, "fedprox", "fedcurv", "moon", "fedntd", "fedcad", "fedssd")
KEYS = frozenset(asdict(Recipe()))
OWN = -1  # each seed has a split of its own
UNSET = "unset"  # an option that only other runs of the method have
Halves = tuple[str, str]
Values = dict[str, str]


@dataclass(frozen=True)
class Named:
    """Runs with the name of their line as ``method``, and what those names leave unsaid."""

    records: list[Result]
    unsaid: Mapping[str, Values]  # by halves, values of their options; of all lines under an empty name


def recipe_of(record: Result) -> dict[str, Any]:
    """All keys of its recipe."""
    return asdict(record.recipe)


def halves_of(record: Result) -> Halves:
    """Its local and its server half."""
    recipe = recipe_of(record)
    return str(recipe["method"]), str(recipe["server"])


def pair_name(halves: Halves) -> str:
    """``fedssd × fednova``; of FedAvg's half nothing is said beside another."""
    return " × ".join([half for half in halves if half != BASELINE] or [BASELINE])


def head_of(record: Result) -> str:
    """Whether its model has a projection head: on or off."""
    recipe = recipe_of(record)
    return head_with(str(recipe["method"]), str(recipe["head"]))


def head_with(method: str, head: str) -> str:
    """What a recipe's key comes to: on or off."""
    return own_head(method) if head == "auto" else head


def own_head(method: str) -> str:
    """What a local half has where nobody asks; of a user's file that is not known without running it, and seldom on."""
    return "on" if any(part.strip() in HEADED for part in method.split("+")) else "off"


def heads_beside(method: str, head: str) -> tuple[str, ...]:
    """The head of a line's FedAvg, the likelier first: a run does not write down whether its head was asked for."""
    if head == "on" and own_head(method) == "on":
        return "off", "on"
    return ("on", "off") if head == "on" and ".py:" in method else (head,)


def training_of(record: Result) -> Values:
    """How its clients train, beside the method: what all methods may be given alike."""
    return {key: _text(value) for key, value in recipe_of(record).items() if key not in LEFT_OUT}


def name_lines(group: Sequence[Result]) -> Named:
    """A task's runs, line by line, each called by its halves and by what is not as it commonly is.

    Of how clients train, the commonest value is that of most lines of the task, so that it is the same behind every
    plain name; of a method's options that of most lines of its halves. Where no value is the commonest, all are said.
    """
    by_halves: dict[Halves, list[Result]] = {}
    for record in group:
        by_halves.setdefault(halves_of(record), []).append(record)
    varied = {key for runs in by_halves.values() for key in _differing(list(map(training_of, runs)))}
    training = [key for key in training_of(group[0]) if key in varied]
    usual = _commonest((_identity(record) for record in group), training)
    several = len({head_of(record) for record in group}) > 1
    found: list[Result] = []
    unsaid = {"": usual}
    for halves in sorted(by_halves, key=_rank):
        options = [_options(record) for record in by_halves[halves]]
        varied_here = _differing(options)
        own = _commonest((_identity(record) for record in by_halves[halves]), varied_here)
        unsaid[pair_name(halves)] = {_short_key(halves, key): value for key, value in own.items()}
        found += _variants(halves, by_halves[halves], [*training, *varied_here], usual | own, several)
    return Named(found, {name: values for name, values in unsaid.items() if values})


def _variants(
    halves: Halves, records: Sequence[Result], keys: Sequence[str], usual: Values, several_heads: bool
) -> list[Result]:
    """The halves' runs with their names: the plain line first, then by how much and in what a line departs from it."""
    found = []
    for record in records:
        values = training_of(record) | _options(record)
        said = {key: values.get(key, UNSET) for key in keys if values.get(key, UNSET) != usual.get(key)}
        if several_heads and head_of(record) != own_head(halves[0]):
            said = {"head": head_of(record)} | said
        place = [(keys.index(key) if key in keys else -1, _by_size(value)) for key, value in said.items()]
        words = [f"{_short_key(halves, key)}={value}" for key, value in said.items()]
        label = " ".join([pair_name(halves), *words])
        found.append((len(said), place, replace(record, summary=replace(record.summary, method=label))))
    return [record for _, _, record in sorted(found, key=lambda one: one[:2])]


def _rank(halves: Halves) -> tuple[bool, int]:
    """The paper's methods first, in its order, then a user's own; FedAvg's server half before others."""
    method, server = halves
    place = ORDER.index(method) if method in ORDER else len(ORDER) + (".py:" not in method)
    return server != BASELINE, place


def _options(record: Result) -> Values:
    """Its halves' options as ``method.option``; of methods that do not run, none."""
    method, server = halves_of(record)
    used = {part.strip() for part in method.split("+")} | {server}
    custom = ".py:" in method  # whose options stand under a name that only its file knows
    options = recipe_of(record)["options"].items()
    owned = [(owner, given) for owner, given in options if custom or owner in used]
    return {f"{owner}.{name}": _text(value) for owner, given in owned for name, value in given.items()}


def _identity(record: Result) -> Values:
    """All that makes it of one line and not of another; the seed does not."""
    method, server = halves_of(record)
    return {"method": method, "server": server, "head": head_of(record)} | training_of(record) | _options(record)


def _differing(lines: Sequence[Values]) -> list[str]:
    keys = dict.fromkeys(key for line in lines for key in line)
    return [key for key in keys if len({line.get(key, UNSET) for line in lines}) > 1]


def _commonest(runs: Iterable[Values], keys: Sequence[str]) -> Values:
    """Of each key the value that more lines have than any other, where there is one; a line's seeds count once."""
    lines = [dict(line) for line in {tuple(sorted(values.items())) for values in runs}]
    found = {}
    for key in keys:
        (value, most), *others = Counter(line.get(key, UNSET) for line in lines).most_common(2)
        if all(count < most for _, count in others):
            found[key] = value
    return found


def _short_key(halves: Halves, key: str) -> str:
    """Without its owner where that is the only half, and the rest is no key of all methods."""
    pair = [half for half in halves if half != BASELINE]
    short = key.removeprefix(f"{pair[0]}.") if len(pair) == 1 else key
    return key if short in KEYS else short


def _text(value: Any) -> str:
    """A value in a name: the same for 1 and 1.0, and never the same for two numbers."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return repr(value) if isinstance(value, str) and (not value or " " in value) else str(value)


def _by_size(text: str) -> tuple[bool, float, str]:
    """Numbers by size, then words."""
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


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
