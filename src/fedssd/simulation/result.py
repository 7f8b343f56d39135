"""What a run leaves: its rounds, a summary and the weights it came to."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssd.core.tree import Tree
from fedssd.errors import UserError
from fedssd.privacy.terms import Spent
from fedssd.recipe import Recipe
from fedssd.simulation.fields import Fields, Json, Matrix, Vector, as_matrix, as_number, as_text

if TYPE_CHECKING:
    import pandas
    from torch import nn

POINTS = 60  # of the curve that a notebook shows


@dataclass(frozen=True)
class Round:
    """One round as it is recorded, a line of ``rounds.jsonl``.

    What was not measured is None or empty; a figure that was no finite number is NaN.
    """

    number: int
    bytes_up: int
    bytes_down: int
    accuracy: float | None = None  # of the global model on the test set, 0 to 1; None in a round without evaluation
    loss: float | None = None
    class_accuracy: Vector = ()
    local_accuracy: float | None = None  # the mean over the accepted clients' models after their training
    client_accuracy: Mapping[int, float] = field(default_factory=dict)
    local_class_accuracy: Vector = ()
    client_0_class_accuracy: Vector = ()
    forgetting: float | None = None  # accuracy less local_accuracy
    confusion: Matrix = ()  # of the global model, a row a true class; the last two rounds have it
    client_confusion: Mapping[int, Matrix] = field(default_factory=dict)
    credibility: Matrix | Vector = ()  # as sent; of many classes the diagonal
    distillation: Mapping[str, float] = field(default_factory=dict)
    drift: float | None = None  # the mean of ‖w_i − w_g‖ over the accepted clients
    clients: tuple[int, ...] = ()
    dropped: Mapping[int, str] = field(default_factory=dict)  # by client why its update did not go in
    unchanged: str = ""  # "refused", "rolled back" or "lost" where no update went in
    seconds: Mapping[str, float] = field(default_factory=dict)
    worst_class: float | None = None  # the global model's accuracy on the class it is worst at
    local_worst_class: float | None = None
    privacy: Spent | None = None  # all that was promised up to this round, of a run under differential privacy
    more: dict[str, Any] = field(default_factory=dict)  # keys that a later release recorded

    @property
    def diverged(self) -> bool:
        """Whether training broke down: the loss is no finite number, or the round was refused or rolled back whole."""
        return (self.loss is not None and math.isnan(self.loss)) or self.unchanged in ("refused", "rolled back")

    @staticmethod
    def from_json(content: object) -> Round:
        """Read a line of ``rounds.jsonl``; ValueError in one line where it is no round.

        Args:
            content: what ``json.loads`` made of the line

        Returns:
            The round; ``to_json`` gives the line again.
        """
        line = Fields(content)
        world, local, confusion = line.inner("global"), line.inner("local"), line.inner("confusion")
        evaluated = bool(world.rest)
        class_accuracy, local_class = world.vector("class_acc"), local.vector("class_acc")
        return Round(
            number=line.whole("round"),
            bytes_up=line.whole("bytes_up"),
            bytes_down=line.whole("bytes_down"),
            accuracy=world.number("acc") if evaluated else None,
            loss=world.maybe("loss"),
            class_accuracy=class_accuracy,
            local_accuracy=local.number("acc_mean") if local.rest or local_class else None,
            client_accuracy=local.by_client("acc", as_number),
            local_class_accuracy=local_class,
            client_0_class_accuracy=line.inner("client_0").vector("class_acc"),
            forgetting=line.maybe("forgetting"),
            confusion=confusion.matrix("global"),
            client_confusion=confusion.by_client("local", as_matrix),
            credibility=line.vector_or_matrix("credibility"),
            distillation=line.by_name("distillation"),
            drift=line.maybe("drift"),
            clients=tuple(map(int, line.vector("clients"))),
            dropped=line.by_client("dropped", as_text),
            unchanged=line.text("unchanged", ""),
            seconds=line.numbers("seconds"),
            worst_class=_worst(world.maybe("worst"), class_accuracy),
            local_worst_class=_worst(local.maybe("worst"), local_class),
            privacy=_spent(line.inner("privacy")),
            more=line.rest,
        )

    def to_json(self) -> dict[str, Any]:
        """Write the round as a line of ``rounds.jsonl``, without the keys of what was not measured."""
        line: dict[str, Any] = {"round": self.number}
        if self.accuracy is not None:
            measured: dict[str, Any] = {"acc": self.accuracy}
            measured |= {} if self.loss is None else {"loss": _finite(self.loss)}
            line["global"] = measured | _by_class(self.class_accuracy, self.worst_class)
        if self.local_accuracy is not None:
            each = {"acc": {str(client): value for client, value in self.client_accuracy.items()}}
            line["local"] = {"acc_mean": self.local_accuracy} | (each if self.client_accuracy else {})
            line["local"] |= _by_class(self.local_class_accuracy, self.local_worst_class)
        if self.forgetting is not None:
            line["forgetting"] = _finite(self.forgetting)
        if self.client_0_class_accuracy:
            line["client_0"] = {"class_acc": list(self.client_0_class_accuracy)}
        if self.confusion:
            line["confusion"] = {"global": _lists(self.confusion)}
        if self.client_confusion:
            matrices = {str(client): _lists(matrix) for client, matrix in self.client_confusion.items()}
            line.setdefault("confusion", {})["local"] = matrices
        if self.credibility:
            line["credibility"] = _lists(self.credibility)
        if self.distillation:
            line["distillation"] = {name: _finite(value) for name, value in self.distillation.items()}
        if self.drift is not None:
            line["drift"] = _finite(self.drift)
        line |= {"clients": list(self.clients), "dropped": {str(one): why for one, why in self.dropped.items()}}
        line |= {"unchanged": self.unchanged} if self.unchanged else {}
        line |= {"bytes_up": self.bytes_up, "bytes_down": self.bytes_down}
        line |= {"seconds": dict(self.seconds)} if self.seconds else {}
        line |= {"privacy": asdict(self.privacy)} if self.privacy else {}
        return line | self.more


@dataclass(frozen=True)
class Summary:
    """What a run came to, ``summary.json``; accuracies are None where nothing was evaluated."""

    method: str
    seed: int
    rounds: int  # done
    of_rounds: int  # asked for
    bytes_up: int
    bytes_down: int
    server: str = "fedavg"
    data: str = ""
    partition: str = ""
    accuracy: float | None = None  # after the last evaluated round
    loss: float | None = None
    local_accuracy: float | None = None
    forgetting: float | None = None
    best_accuracy: float | None = None
    best_round: int | None = None
    dropped: int = 0  # updates that did not go in
    unchanged_rounds: int = 0  # rounds in which none did
    diverged: int | None = None  # the first round in which training broke down
    failed: str = ""  # why the run was ended, where it was
    ended: str = ""  # why it stopped before its last round, where its recipe said so
    privacy: Spent | None = None  # what all rounds promise together
    seconds: float = 0.0
    recipe_hash: str = ""
    split_hash: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether the run has all its rounds."""
        return self.rounds == self.of_rounds

    @property
    def status(self) -> str:
        """How the run stands: completed, failed, or stopped before its end."""
        return "failed" if self.failed else "completed" if self.finished else "stopped"

    @staticmethod
    def from_json(content: object) -> Summary:
        """Read ``summary.json``; ValueError in one line where it is no summary."""
        whole = Fields(content)
        final, best = whole.inner("final"), whole.inner("best")
        if final.rest and not best.rest:
            raise ValueError("has no 'best'")
        return Summary(
            method=whole.text("method"),
            seed=whole.whole("seed"),
            rounds=whole.whole("rounds"),
            of_rounds=whole.whole("of_rounds"),
            bytes_up=whole.whole("bytes_up"),
            bytes_down=whole.whole("bytes_down"),
            server=whole.text("server", "fedavg"),
            data=whole.text("data", ""),
            partition=whole.text("partition", ""),
            accuracy=final.number("acc") if final.rest else None,
            loss=final.maybe("loss"),
            local_accuracy=final.maybe("local_acc"),
            forgetting=final.maybe("forgetting"),
            best_accuracy=best.number("acc") if best.rest else None,
            best_round=best.whole("round") if "round" in best else None,
            dropped=whole.whole("dropped", 0),
            unchanged_rounds=whole.whole("unchanged_rounds", 0),
            diverged=whole.whole("diverged") if "diverged" in whole else None,
            failed=whole.text("failed", "") if whole.text("status", "") else "",
            ended=whole.text("ended", ""),
            privacy=_spent(whole.inner("privacy")),
            seconds=whole.maybe("seconds") or 0.0,
            recipe_hash=whole.text("recipe_hash", ""),
            split_hash=whole.text("split_hash", ""),
            more=whole.rest,
        )

    def to_json(self) -> dict[str, Any]:
        """Write the summary as ``summary.json`` has it."""
        names = ("method", "server", "data", "partition", "seed", "rounds", "of_rounds", "bytes_up", "bytes_down")
        content = {name: getattr(self, name) for name in (*names, "seconds", "recipe_hash", "split_hash")}
        if self.dropped:
            content |= {"dropped": self.dropped, "unchanged_rounds": self.unchanged_rounds}
        if self.diverged is not None:
            content["diverged"] = self.diverged
        if self.failed:
            content |= {"status": self.status, "failed": self.failed}
        if self.ended:
            content |= {"status": self.status, "ended": self.ended}
        if self.privacy:
            content["privacy"] = asdict(self.privacy)
        if self.accuracy is not None:
            final = {"acc": self.accuracy, "loss": self.loss, "local_acc": self.local_accuracy}
            final["forgetting"] = self.forgetting
            content["final"] = {name: _finite(value) for name, value in final.items() if value is not None}
            content["best"] = {"acc": self.best_accuracy, "round": self.best_round}
        return content | self.more


def nothing() -> None:
    """Give no weights."""


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What a run leaves: its recipe, its rounds, a summary, what it was made with and the weights."""

    recipe: Recipe
    rounds: tuple[Round, ...]
    summary: Summary
    provenance: Json = field(default_factory=dict)  # versions, card, commit, hashes: line 0 of rounds.jsonl
    folder: Path | None = None  # where it is written, if it is: a run folder, or a run's place in a pack
    load: Callable[[], Tree | None] = nothing  # gives the weights, when they are first asked for
    module: nn.Module | None = None  # of the run's form, where it ran in this process

    @cached_property
    def weights(self) -> Tree | None:
        """The global model's weights, ``{"params": …, "buffers": …}``; None for a packed run, which has none."""
        return self.load()

    def rounds_to(self, accuracy: float) -> int | None:
        """Return the first round whose global model has at least this accuracy.

        Args:
            accuracy: from 0 to 1

        Returns:
            The round's number, counted from 1; None where no evaluated round has it.
        """
        return next((one.number for one in self.rounds if one.accuracy is not None and one.accuracy >= accuracy), None)

    def to_frame(self) -> pandas.DataFrame:
        """Return a data frame with a row a round and a column a figure; needs pandas."""
        try:
            import pandas
        except ImportError:
            raise UserError("to_frame needs pandas, which is not installed: pip install pandas") from None
        names = [one.name for one in fields(Round) if one.type in ("int", "float | None", "str")]
        rows = [{name: getattr(one, name) for name in names} for one in self.rounds]
        return pandas.DataFrame(rows, columns=names).set_index("number")

    def model(self) -> nn.Module:
        """Return the model as a torch module with the weights, in evaluation mode.

        Returns:
            A module of its own; of different models in one federation, a ``ModuleDict`` by their names.
        """
        from fedssd.simulation.setup import module_with

        return module_with(self.recipe, self.weights, self.module)

    def __repr__(self) -> str:
        summary, data = self.summary, self.summary.data or self.recipe.data
        text = f"{summary.method} on {data}, seed {summary.seed}, {summary.rounds} of {summary.of_rounds} rounds"
        if summary.accuracy is not None and summary.best_accuracy is not None:
            best = f"best {100 * summary.best_accuracy:.2f} % in round {summary.best_round}"
            text += f": {100 * summary.accuracy:.2f} % ({best})"
        return f"<{text}{f', {self.folder}' if self.folder else ''}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: a line, a table and the accuracy over the rounds."""
        rows = {"accuracy": self.summary.accuracy, "local accuracy": self.summary.local_accuracy}
        rows |= {"forgetting": self.summary.forgetting, "best accuracy": self.summary.best_accuracy}
        cells = (f"<tr><td>{name}</td><td>{100 * value:.2f} %</td></tr>" for name, value in rows.items() if value)
        measured = [one.accuracy for one in self.rounds if one.accuracy is not None]
        kept = measured[:: -(-len(measured) // POINTS)] if measured else []
        across = 300 / max(1, len(kept) - 1)
        points = " ".join(f"{place * across:.1f},{100 - 100 * value:.1f}" for place, value in enumerate(kept))
        line = f'<polyline points="{points}" fill="none" stroke="currentColor"/>'
        curve = f'<svg width="300" height="100" role="img" aria-label="accuracy over rounds">{line}</svg>'
        return f"<p>{html.escape(repr(self)[1:-1])}</p><table>{''.join(cells)}</table>{curve}"


def _spent(given: Fields) -> Spent | None:
    if not given.rest:
        return None
    return Spent(
        given.text("mode"),
        given.text("unit"),
        given.number("epsilon"),
        given.number("delta"),
        given.number("mu"),
        given.whole("rounds"),
        given.number("clip"),
        given.number("noise"),
        given.flag("private"),
    )


def _worst(recorded: float | None, by_class: Vector) -> float | None:
    return min(by_class) if by_class else recorded


def _by_class(accuracy: Vector, worst: float | None) -> dict[str, Any]:
    """Class by class; where only the worst is known, as in a packed run, that."""
    return {"class_acc": list(accuracy)} if accuracy else {} if worst is None else {"worst": worst}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _lists(values: Any) -> Any:
    return [_lists(one) for one in values] if isinstance(values, tuple) else values
