"""What results/ holds of one method, alone and in compositions: the table at the end of its page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedssd.experiment.recipe import KEYS, MACHINE, Recipe, load_recipe
from fedssd.experiment.repeats import newest_last
from fedssd.methods.registry import LOCALS, SERVERS
from fedssd.report.tables import BASELINE

OWN = {"method", "server", "head", "seed", "partition_seed", "evaluate_local"}  # what runs of one setting may differ in
SETTING = [key for key in KEYS if key not in OWN | set(MACHINE)]
ABOUT = "Mean ± standard deviation over seeds; beside FedAvg: of the differences seed by seed, in the same setting."
HEADS = ("method", "setting", "rounds", "final accuracy %", "beside FedAvg, points", "seeds")

Draw = tuple[int, int]  # the seeds of a run and of its split


@dataclass
class Line:
    """The finished runs of one pair of halves in one setting."""

    recipe: Recipe
    accuracies: dict[Draw, float] = field(default_factory=dict)  # percent
    diverged: set[Draw] = field(default_factory=set)

    @property
    def halves(self) -> list[str]:
        """Everything beside FedAvg, the server half last."""
        return [name for name in (*self.recipe.method.split("+"), self.recipe.server) if name != BASELINE]

    @property
    def setting(self) -> tuple[Any, ...]:
        """What FedAvg has to share to be compared with."""
        return tuple(getattr(self.recipe, key) for key in SETTING)

    def concerns(self, name: str) -> bool:
        """Whether a method has part in it; FedAvg has where nothing else does."""
        return name in (self.halves or [BASELINE])

    @property
    def label(self) -> str:
        """``fedssd × fednova``, with the options that are not at their default."""
        recipe = self.recipe
        local = "+".join(part + self._changed(LOCALS, part) for part in recipe.method.split("+"))
        if recipe.server == BASELINE:
            return local
        server = recipe.server + self._changed(SERVERS, recipe.server)
        return server if recipe.method == BASELINE else f"{local} × {server}"

    def _changed(self, kinds: Mapping[str, Any], name: str) -> str:
        given = self.recipe.options.get(name, {})
        defaults = {one.name: one.default for one in fields(kinds[name])} if name in kinds else {}
        changed = [f"{key} = {_short(value)}" for key, value in given.items() if value != defaults.get(key)]
        return f" ({', '.join(changed)})" if changed else ""

    @property
    def words(self) -> str:
        """The setting, as far as it differs in what is published here."""
        recipe = self.recipe
        words = [recipe.data, recipe.partition, f"{recipe.clients} clients"]
        words += [f"{recipe.participation:.0%} a round"] if recipe.participation < 1 else []
        words += [f"augment {recipe.augment}"] if recipe.augment != "none" else []
        words += [f"faults {recipe.faults}"] if recipe.faults else []
        words += ["kernels off"] if recipe.kernels == "off" else []
        return ", ".join(words)


def lines_of(results: Path, besides: Path | None = None) -> list[Line]:
    """All finished runs below a folder, of repeats the one begun last; ``besides`` a folder of it, as a study has."""
    found: dict[str, Line] = {}
    runs = (file.parent for file in results.rglob("summary.json"))
    for run in newest_last(run for run in runs if besides is None or besides not in run.parents):
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        if summary["rounds"] < summary["of_rounds"] or "final" not in summary:
            continue
        recipe = load_recipe(run / "recipe.toml", {})
        fresh = Line(recipe)
        line = found.setdefault(
            repr((recipe.method, recipe.server, recipe.options, recipe.kernels, fresh.setting)), fresh
        )
        draw = (recipe.seed, recipe.partition_seed)
        line.accuracies[draw] = 100 * summary["final"]["acc"]
        line.diverged |= {draw} if "diverged" in summary else set()
    return list(found.values())


def numbers_of(name: str, lines: Sequence[Line]) -> str:
    """The page's table: the method alone first, then its compositions."""
    mine = sorted((line for line in lines if line.concerns(name)), key=lambda line: len(line.halves) > 1)
    if not mine:
        return "Nothing measured yet.\n"
    shown = [f"| {' | '.join(HEADS)} |", "|---|---|---:|---:|---:|---:|"]
    for line in mine:
        spread = _spread(list(line.accuracies.values()))
        seeds = f"{len(line.accuracies)}" + (f", {len(line.diverged)} diverged" if line.diverged else "")
        cells = (line.label, line.words, str(line.recipe.rounds), spread, _beside(line, lines), seeds)
        shown.append(f"| {' | '.join(cells)} |")
    return "\n".join([*shown, "", ABOUT, ""])


def _beside(line: Line, lines: Sequence[Line]) -> str:
    """The gain over FedAvg's runs with the same seeds and splits; a dash for FedAvg itself and where it was not run."""
    base = next((one for one in lines if one.concerns(BASELINE) and one.setting == line.setting), None)
    if base is None or base is line:
        return "–"
    gains = [acc - base.accuracies[draw] for draw, acc in line.accuracies.items() if draw in base.accuracies]
    return _spread(gains, "+") if gains else "–"


def _spread(values: Sequence[float], sign: str = "") -> str:
    text = f"{fmean(values):{sign}.2f}".replace("-", "−")
    return f"{text} ± {stdev(values):.2f}" if len(values) > 1 else text


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
