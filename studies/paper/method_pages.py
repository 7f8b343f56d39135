"""What results/ holds of each method outside the study: the tables of docs/methods, and the leaderboard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from statistics import fmean, stdev
from typing import Any

import fedssd
from fedssd import Recipe, Result
from studies.paper.digits_tables import PAIRS
from studies.paper.formats import By, interval, paired, table
from studies.paper.paper import METHODS, THEIRS
from studies.paper.results import Runs

# What runs may differ in and still be on one task; lines part by split, head, length and how they were computed.
FREE = {"method", "server", "head", "seed", "partition_seed", "evaluate_local", "rounds", "options"}
FREE |= {"engine", "device", "width", "deterministic", "checkpoint_every"}
A_SPLIT_A_SEED = -1
ABOUT = "Paired by seed, 95 % by Student's t; *: significant, each for itself: [how to read it](README.md#our-numbers)."
ROUND, SEEDS = 50, (0, 1, 2)  # of the table of methods that ran for fifty rounds on one split
FIFTY: tuple[str, ...] = (
    "fedavg",
    "fedssd",
    "scaffold",
    "fedgkd",
    "fedavg × fednova",
    "fedavg × ida",
    "fedavg × feddf",
)
FIFTY += ("fedssd × fednova", "fedssd+fedprox")


@dataclass
class Line:
    """The finished runs of one pair of halves on one task: on one split, or with a split for each seed."""

    recipe: Recipe
    task: str
    split: int
    runs: dict[int, Result] = field(default_factory=dict)  # by seed

    @property
    def percent(self) -> By:
        """The accuracy of the last round, by seed."""
        return {seed: 100 * (run.summary.accuracy or 0.0) for seed, run in self.runs.items()}

    @property
    def halves(self) -> list[str]:
        """Everything beside FedAvg, the server half last."""
        return [name for name in (*self.recipe.method.split("+"), self.recipe.server) if name != THEIRS] or [THEIRS]

    @property
    def label(self) -> str:
        """``fedssd × fednova``, with the options that are not at their default and a head that was asked for."""
        recipe, head = self.recipe, "" if self.recipe.head == own_head(self.recipe) else f", head {self.recipe.head}"
        local = "+".join(part + _changed(recipe, part) for part in recipe.method.split("+"))
        server = recipe.server + _changed(recipe, recipe.server)
        if recipe.server == THEIRS:
            return local + head
        return (server if recipe.method == THEIRS else f"{local} × {server}") + head

    @property
    def words(self) -> str:
        """The setting, as far as it differs in what is published here."""
        recipe = self.recipe
        words = [recipe.data, recipe.partition, f"{recipe.clients} clients"]
        words += [f"{recipe.participation:.0%} a round"] if recipe.participation < 1 else []
        words += [f"{recipe.epochs} epoch{'' if recipe.epochs == 1 else 's'}"]
        words += [f"augment {recipe.augment}"] if recipe.augment != "none" else []
        words += [f"faults {recipe.faults}"] if recipe.faults else []
        return ", ".join([*words, *(["kernels off"] if recipe.kernels == "off" else [])])


def own_head(recipe: Recipe) -> str:
    """What its method has where nobody asks for a projection head: on or off."""
    return _defaults(recipe.method, recipe.server).head


@cache
def _defaults(method: str, server: str) -> Recipe:
    return Recipe(data="digits", method=method, server=server).resolved()


def _changed(recipe: Recipe, name: str) -> str:
    given, defaults = recipe.options.get(name, {}), _defaults(recipe.method, recipe.server).options.get(name, {})
    changed = [f"{key} = {_short(value)}" for key, value in given.items() if value != defaults.get(key)]
    return f" ({', '.join(changed)})" if changed else ""


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def lines_of(runs: Iterable[Result]) -> list[Line]:
    """Runs, the newest last, as lines.

    A run whose seed is that of a split which others share is on that split, and where its method also ran with a split
    for each seed, among those too: it is what either way of splitting gives.
    """
    tasks = [(run, run.recipe.split_seed, _task(run.recipe)) for run in runs]
    shared = {(task, split) for run, split, task in tasks if split != run.recipe.seed}
    found: dict[str, Line] = {}
    for run, own, task in tasks:
        recipe = run.recipe
        ways = [A_SPLIT_A_SEED] if own == recipe.seed else []
        for split in (*ways, *([own] if (task, own) in shared else [])):
            key = repr((recipe.method, recipe.server, recipe.options, recipe.head, task, recipe.rounds, split))
            found.setdefault(key, Line(recipe, task, split)).runs[recipe.seed] = run
    alone = [one.split != A_SPLIT_A_SEED or _apart(one, shared) for one in found.values()]
    return [line for line, kept in zip(found.values(), alone, strict=True) if kept]


def _apart(line: Line, shared: set[tuple[str, int]]) -> bool:
    return any((line.task, run.recipe.split_seed) not in shared for run in line.runs.values())


def _task(recipe: Recipe) -> str:
    """What FedAvg has to share to be compared with."""
    return repr([(key, value) for key, value in asdict(recipe).items() if key not in FREE])


def numbers(name: str, lines: Sequence[Line]) -> str:
    """A method's table: alone first, then its compositions, lines that differ by the split together."""
    mine = [line for line in lines if name in line.halves]
    first = list(dict.fromkeys((line.label, line.words, line.recipe.rounds) for line in mine))
    mine.sort(key=lambda line: (len(line.halves) > 1, first.index((line.label, line.words, line.recipe.rounds))))
    heads = ("method", "setting", "split", "rounds", "final accuracy %", "gain over FedAvg, points [95 %]", "seeds")
    return "\n".join([table(heads, [_row(line, lines) for line in mine], left=3), ABOUT, ""])


def _row(line: Line, lines: Sequence[Line]) -> list[str]:
    split = "one for each seed" if line.split == A_SPLIT_A_SEED else f"number {line.split} for all"
    diverged = sum(run.summary.diverged is not None for run in line.runs.values())
    seeds = f"{len(line.runs)}" + (f", {diverged} diverged" if diverged else "")
    gain = _gain(line, lines)
    return [line.label, line.words, split, str(line.recipe.rounds), _spread(list(line.percent.values())), gain, seeds]


def _gain(line: Line, lines: Sequence[Line]) -> str:
    """Over FedAvg's runs with the same seeds and splits; a dash for FedAvg itself and where it was not run.

    FedAvg's model has the line's projection head, if that is not the method's own. A longer run of FedAvg stands for
    one of as many rounds, where there is none.
    """
    if line.halves == [THEIRS]:
        return "–"
    like = [one for one in lines if one.halves == [THEIRS] and (one.task, one.split) == (line.task, line.split)]
    heads = ("off", "on") if line.recipe.head == own_head(line.recipe) == "on" else (line.recipe.head,)
    head = next((head for head in heads if any(one.recipe.head == head for one in like)), "")
    rounds, base = line.recipe.rounds, dict[int, float]()
    like = [one for one in like if one.recipe.head == head and one.recipe.rounds >= rounds]
    for one in sorted(like, key=lambda one: (one.recipe.rounds == rounds, one.recipe.rounds)):
        base |= {seed: 100 * acc for seed, run in one.runs.items() if (acc := _after(run, rounds)) is not None}
    return interval(paired(base, line.percent))


def _after(run: Result, rounds: int) -> float | None:
    return run.summary.accuracy if run.recipe.rounds == rounds else run.rounds[rounds - 1].accuracy


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def on_digits(runs: Runs) -> list[Result]:
    """Every run of the table on digits, called after its halves, in the order of the program that made them."""
    wanted = [(pair, runs.find(pair.recipe(seed))) for pair in PAIRS for seed in SEEDS]
    return [_called(run, pair.label) for pair, run in wanted if run is not None]


def _called(run: Result, label: str) -> Result:
    return replace(run, summary=replace(run.summary, method=label))


def digits(runs: Runs) -> str:
    """All methods and the compositions on digits."""
    return fedssd.table(on_digits(runs)).markdown()


def fifty_rounds(runs: Runs) -> str:
    """Methods that ran for fifty rounds beside FedAvg and FedSSD after fifty of their hundred, on the same split."""
    rows, base = [], dict[int, float]()
    for label in FIFTY:
        local, _, server = label.partition(" × ")
        recipe = Recipe.load("cifar10", method=local, server=server or THEIRS, rounds=ROUND, partition_seed=1)
        found = runs.by_seed(recipe, SEEDS)
        ours = runs.percent(recipe, SEEDS)
        base = base or ours
        own = fmean(100 * (run.rounds[-1].local_accuracy or 0.0) for run in found.values())
        size = fmean(sum(one.bytes_up + one.bytes_down for one in run.rounds) / 1e6 for run in found.values())
        less = paired(base, ours)
        gain = ["", ""] if ours is base else [f"{less.mean:+.2f}", f"{less.low:+.2f} … {less.high:+.2f}"]
        rows.append([label.replace("+", " + "), _spread(list(ours.values())), f"{own:.2f}", *gain, f"{size:.0f}"])
    heads = ("method", "accuracy %", "clients' own models %", "gain over FedAvg, points", "95 % interval")
    about = f"mean ± standard deviation over {len(SEEDS)} seeds on one split, after {ROUND} rounds."
    return f"{table((*heads, 'MB up and down'), rows)}\n{about}\n"


def curves(runs: Runs) -> dict[str, list[Result]]:
    """The runs behind the learning curves of README and of the methods' page."""
    shown = ("fedavg", "fedssd", "fedssd+fedprox", "fedssd × fednova", "fedssd × pfnm", "fedssd × fedma")
    every = on_digits(runs)
    return {
        "curves": [run for run in every if run.summary.method in METHODS],
        "compositions": [run for run in every if run.summary.method in shown],
    }
