"""What a method moves between machines and what stays, with sizes: read off the messages of one rehearsed round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fedssd.core import tree
from fedssd.core.tree import Tree
from fedssd.flower.messages import CONFIG, METRICS, NEVER, Kind, Order, answer, instruct
from fedssd.flower.rehearsal import Rehearsal, rehearse
from fedssd.simulation.setup import Federation

RUN = "0" * 32  # runs' names are so long


class Item(NamedTuple):
    """One thing that travels or stays."""

    direction: str  # down, up or stays
    name: str
    what: str  # dtype and shape, or numbers and texts in words
    bytes: int


def audit(federation: Federation) -> list[Item]:
    """Everything a client receives, sends and keeps in one round."""
    data = federation.dataset
    kind = Kind(data.shape, str(data.x_train.dtype).removeprefix("torch."), data.classes)
    rehearsal = rehearse(federation)
    return [*_down(rehearsal, kind), *_up(rehearsal), *_tensors("stays", "client memory", rehearsal.memory)]


def _down(rehearsal: Rehearsal, kind: Kind) -> Iterator[Item]:
    for name, branch in rehearsal.sent.items():
        yield from _tensors("down", name, branch)
    if rehearsal.public is not None:
        yield from _tensors("down", "public samples", rehearsal.public)
    message = instruct(kind, Order(RUN, 1, NEVER, rehearsal.sent, rehearsal.public))
    yield from _values("down", message.config_records[CONFIG])


def _up(rehearsal: Rehearsal) -> Iterator[Item]:
    reply = rehearsal.reply
    yield from _tensors("up", "update", reply.update)
    yield from _tensors("up", "report", reply.report)
    yield from _values("up", answer(reply).metric_records[METRICS])


def _tensors(direction: str, part: str, content: Tree) -> Iterator[Item]:
    """One line a tensor."""
    flat = tree.flatten(content) if isinstance(content, dict) else {"": content}
    for path, leaf in flat.items():
        form = f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)}"
        yield Item(direction, f"{part}/{path}" if path else part, form, leaf.numel() * leaf.element_size())


def _values(direction: str, record: Any) -> Iterator[Item]:
    """One line for each value of a record that is no packed tensor."""
    for name, value in record.items():
        if not isinstance(value, bytes):
            several = value if isinstance(value, list) else [value]
            kind = "text" if isinstance(several[0], str) else "number"
            what = f"{len(several)} {kind}s" if isinstance(value, list) else f"a {kind}"
            yield Item(direction, name, what, sum(map(_size, several)))


def _size(value: str | float) -> int:
    return len(value.encode()) if isinstance(value, str) else 8


def as_rows(items: Sequence[Item]) -> list[dict[str, Any]]:
    """The list for JSON."""
    return [item._asdict() for item in items]
