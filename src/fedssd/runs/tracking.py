"""Rounds to a tracker as they end: TensorBoard, MLflow or Weights & Biases, each an optional extra imported here only.

A tracker is told the figures of every round and the recipe. It is asked how far it was told before, so that a run that
goes on is one run there, too; rounds that it has not heard of come from the record.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedssd.errors import UserError, perhaps
from fedssd.runs.folder import UNDER_WAY
from fedssd.runs.read import header_of
from fedssd.simulation.events import Event, Listener
from fedssd.simulation.result import Round

PROJECT = "fedssd"
Figures = dict[str, float]


class Followed(NamedTuple):
    """A run as a tracker knows it."""

    name: str
    group: str  # the folder it was asked for in, as of a comparison
    out: Path
    identity: str  # the same when it goes on, another when it is made anew
    recipe: dict[str, str | int | float | bool]


class Sink(Protocol):
    """One run at a tracker."""

    last: int  # the last round it has been told of before

    def tell(self, number: int, figures: Figures) -> None: ...

    def close(self, whole: bool) -> None: ...


class TensorBoard:
    """Event files below ``tensorboard/`` beside the results; what a resumed run tells again replaces what was there."""

    last = 0

    def __init__(self, run: Followed) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.out / "tensorboard"
        folder = folder if run.name == run.group else folder / run.name
        self.writer: Any = SummaryWriter(str(folder), purge_step=1)
        self.writer.add_text("recipe", "\n".join(f"    {key} = {value}" for key, value in run.recipe.items()))

    def tell(self, number: int, figures: Figures) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, number)

    def close(self, whole: bool) -> None:
        self.writer.close()


class MLflow:
    """A run of the experiment fedssd, wherever MLFLOW_TRACKING_URI points."""

    def __init__(self, run: Followed) -> None:
        from mlflow import MlflowClient

        self.client: Any = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        there = self.client.get_experiment_by_name(name)
        experiment = there.experiment_id if there else self.client.create_experiment(name)
        known = self.client.search_runs([experiment], f"tags.`{PROJECT}.run` = '{run.identity}'")
        if known:
            self.id = known[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            told = self.client.get_metric_history(self.id, "bytes_up")  # which every round has
        else:
            tags = {f"{PROJECT}.run": run.identity, f"{PROJECT}.folder": run.group}
            self.id = self.client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
            for key, value in run.recipe.items():
                self.client.log_param(self.id, key, value)
            told = []
        self.last = max((metric.step for metric in told), default=0)

    def tell(self, number: int, figures: Figures) -> None:
        for name, value in figures.items():
            self.client.log_metric(self.id, name, value, step=number)

    def close(self, whole: bool) -> None:
        self.client.set_terminated(self.id, "FINISHED" if whole else "KILLED")


class WeightsAndBiases:
    """A run of the project fedssd, unless WANDB_PROJECT names another."""

    def __init__(self, run: Followed) -> None:
        import wandb

        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            group=run.group,
            id=run.identity,
            resume="allow",
            reinit="create_new",
            config=dict(run.recipe),
            dir=str(run.out),
        )
        self.last = max(0, self.run.step - 1) if self.run.resumed else 0  # its step is the one that comes next

    def tell(self, number: int, figures: Figures) -> None:
        self.run.log(figures, step=number)

    def close(self, whole: bool) -> None:
        self.run.finish(exit_code=0 if whole else 1)


TRACKERS: dict[str, Callable[[Followed], Sink]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


def tracker(name: str | None) -> Callable[[Followed], Sink] | None:
    """The tracker of that name, if it is installed; none where none is asked for."""
    if name is None:
        return None
    if name not in TRACKERS:
        known = list(TRACKERS)
        raise UserError(f"--track expects one of {', '.join(known)}, got {name!r}{perhaps(name, known)}")
    if find_spec(name) is None:
        raise UserError(f"--track {name} needs {name}: pip install 'fedssd[{name}]'")
    return TRACKERS[name]


@contextmanager
def tracked(open_sink: Callable[[Followed], Sink] | None, out: Path, listen: Listener) -> Iterator[Listener]:
    """A listener that tells a tracker what it hears and passes it on.

    A tracker that fails, as when its server is away, is named once and left alone: no run ends for it.
    """
    if open_sink is None:
        yield listen
        return
    sinks: dict[Path, Sink] = {}  # of runs under way
    rounds: dict[Path, object] = {}
    failed: list[Exception] = []

    def tell(folder: Path, new: Round) -> None:
        if folder not in sinks:
            run = followed(folder, out)
            sinks[folder], rounds[folder] = open_sink(run), run.recipe.get("rounds")
            for earlier in _recorded(folder, new.number):
                _tell(sinks[folder], earlier)
        _tell(sinks[folder], new)
        if new.number == rounds[folder]:
            _close(sinks.pop(folder), whole=True)

    def heard(event: Event) -> None:
        listen(event)
        if event.folder is None or event.round is None or failed:
            return
        try:
            tell(event.folder, event.round)
        except Exception as error:
            failed.append(error)
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            listen(Event(event.run, event.done, event.total, note=f"nothing more is tracked: {why}"))

    whole = False
    try:
        yield heard
        whole = True
    finally:
        for sink in sinks.values():
            _close(sink, whole)


def _tell(sink: Sink, one: Round) -> None:
    if one.number > sink.last:
        sink.tell(one.number, figures_of(one))


def _close(sink: Sink, whole: bool) -> None:
    with suppress(Exception):
        sink.close(whole)


def _recorded(folder: Path, before: int) -> list[Round]:
    """The rounds before this one, from a run that goes on."""
    _, *lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    return [one for one in map(Round.from_json, map(json.loads, lines)) if one.number < before]


def figures_of(one: Round) -> Figures:
    """The numbers of a round by name, such as ``global/acc``; not those of single classes and clients."""
    line = one.to_json()
    nested = {k: v if isinstance(v, Mapping) else {"": v} for k, v in line.items() if k not in ("round", "confusion")}
    flat = {f"{key}/{name}" if name else key: value for key, found in nested.items() for name, value in found.items()}
    numbers = {name: value for name, value in flat.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def followed(folder: Path, out: Path) -> Followed:
    """A run's name and recipe, by its folder; one that is under way is called as in the folder where it will be."""
    header = header_of(folder)
    identity = sha256(f"{header.get('recipe_hash')} {header.get('started')} {folder.name}".encode()).hexdigest()[:16]
    recipe = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))
    group = out.resolve().name
    parts = folder.relative_to(out).parts
    if UNDER_WAY in parts:
        place = parts.index(UNDER_WAY)
        parts = parts[:place] + parts[place + 2 :]
    name = "/".join(parts) or group
    return Followed(name, group, out, identity, dict(_flat(recipe)))


def _flat(recipe: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str | int | float | bool]]:
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
