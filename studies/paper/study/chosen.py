"""What the study chose, as a file: studies/paper/chosen.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedssd.recipe import toml_value
from studies.paper.study.design import ON_COLUMNS, Changes, Design, label

FILE = Path(__file__).parents[1] / "chosen.toml"
ORIGIN = "`make docs` writes it from results/"  # of the file that is kept


@dataclass(frozen=True)
class Chosen:
    """Each is None, or empty, as long as the part that chooses it has not been run to its end."""

    paper: Changes | None = None  # the pipeline whose FedAvg is closest to the published
    survivors: tuple[str, ...] | None = None  # departures worth confirming
    strengths: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # dataset to method.option to its value
    compositions: Mapping[str, Any] = field(default_factory=dict)  # a composition's name to the value of its key
    variants: Mapping[str, Any] = field(default_factory=dict)  # a variant's name to the value of its strength
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # as strengths, best over all columns
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the same by recipe, which has the value

    def to_toml(self, origin: str = ORIGIN) -> str:
        """The file's content; where it comes from stands in its first line."""
        lines = [f"# What the study chose on its tuning seeds; {origin}. What is not here was not run yet."]
        if self.survivors is not None:
            lines += ["", "[screen]", f"survivors = [{', '.join(map(toml_value, self.survivors))}]"]
        if self.paper is not None:
            lines += ["", "[paper]", *_lines(self.paper)]
        for dataset, found in self.strengths.items():
            lines += ["", f"[strengths.{dataset}]", *_lines(found)]
        for dataset, found in self.defaults.items():
            lines += ["", "# best over all columns"]
            lines += [f"[defaults.{dataset}]", *_lines(found)]
        for recipe, found in self.recipes.items():
            lines += ["", f"# best over all columns with the recipe {recipe}"]
            lines += [f"[recipes.{recipe}]", *_lines(found)]
        if self.variants:
            lines += ["", "# tuned and reported beside the methods; no default follows", "[variants]"]
            lines += _lines(self.variants)
        if self.compositions:
            lines += [
                "",
                "# the best with FedSSD, the same without it, and the best without; the better first",
                "[compositions]",
                *_lines(self.compositions),
            ]
        return "\n".join(lines) + "\n"

    def within(self, design: Design, candidates: Sequence[Changes]) -> Chosen:
        """What of it a design still has; what names more than that, or lacks something, is not chosen."""
        labels = {label(changes) for choice in design.choices for changes in choice.changes}
        strengths = {one.key: one.values for one in design.grids}
        variants = {one.name: one.values for one in design.variants}
        defaults, recipes = ({one.key: one.values} for one in (design.on_columns[part] for part in ON_COLUMNS))
        compositions = {one.name: one.values for one in design.compositions}
        return Chosen(
            self.paper if self.paper in candidates else None,
            self.survivors if labels.issuperset(self.survivors or ()) else None,
            {data: found for data, found in self.strengths.items() if _all_of(found, strengths)},
            self.compositions if _some_of(self.compositions, compositions) and self._has_controls(design) else {},
            self.variants if _all_of(self.variants, variants) else {},
            {data: found for data, found in self.defaults.items() if _all_of(found, defaults)},
            {name: found for name, found in self.recipes.items() if _all_of(found, recipes)},
        )

    def _has_controls(self, design: Design) -> bool:
        with_it = [name for name in self.compositions if not design.composition(name).is_control]
        return bool(with_it) and all(design.without_fedssd(name).name in self.compositions for name in with_it)


def _some_of(found: Mapping[str, Any], grids: Mapping[str, Sequence[Any]]) -> bool:
    return all(value in grids.get(name, ()) for name, value in found.items())


def _all_of(found: Mapping[str, Any], grids: Mapping[str, Sequence[Any]]) -> bool:
    return found.keys() == grids.keys() and _some_of(found, grids)


def _lines(values: Mapping[str, Any]) -> list[str]:
    return [
        f"{toml_value(key) if not key.isidentifier() else key} = {toml_value(value)}" for key, value in values.items()
    ]


def load_chosen() -> Chosen:
    """What is written down."""
    return understood(FILE.read_text(encoding="utf-8"))


def understood(text: str) -> Chosen:
    """A file's content."""
    content = tomllib.loads(text)
    survivors = content.get("screen", {}).get("survivors")
    return Chosen(
        content.get("paper"),
        None if survivors is None else tuple(survivors),
        content.get("strengths", {}),
        content.get("compositions", {}),
        content.get("variants", {}),
        content.get("defaults", {}),
        content.get("recipes", {}),
    )
