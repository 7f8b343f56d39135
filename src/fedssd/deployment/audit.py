"""What a method moves between machines and what stays, with sizes: read off one rehearsed round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from fedssd.core import tree
from fedssd.core.tree import Tree
from fedssd.deployment.rehearsal import Rehearsal, rehearse
from fedssd.engines.flower.messages import METRICS, answer
from fedssd.experiment.federation import Federation

SHOWN = 6  # tensors of one part that are listed by name


class Item(NamedTuple):
    """One thing that travels or stays."""

    direction: str  # down, up or stays
    name: str
    what: str  # dtype and shape, or a count of tensors
    bytes: int


def audit(federation: Federation) -> list[Item]:
    """Everything a client receives, sends and keeps in one round."""
    rehearsal = rehearse(federation)
    return [*_down(rehearsal), *_up(rehearsal), *_tensors("stays", "client memory", rehearsal.memory)]


def _down(rehearsal: Rehearsal) -> Iterator[Item]:
    for name, branch in rehearsal.sent.items():
        yield from _tensors("down", name, branch)
    if rehearsal.public is not None:
        yield from _tensors("down", "public samples", rehearsal.public)


def _up(rehearsal: Rehearsal) -> Iterator[Item]:
    reply = rehearsal.reply
    yield from _tensors("up", "update", reply.update)
    yield from _tensors("up", "report", reply.report)
    for name in answer(reply).metric_records[METRICS]:
        yield Item("up", name, "a number", 8)


def _tensors(direction: str, part: str, content: Tree) -> Iterator[Item]:
    """One line a tensor, or one for all of them where there are many."""
    flat = tree.flatten(content) if isinstance(content, dict) else {"": content}
    if len(flat) > SHOWN:
        yield Item(direction, part, f"{len(flat)} tensors", tree.size_in_bytes(content))
        return
    for path, leaf in flat.items():
        form = f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)}"
        yield Item(direction, f"{part}/{path}" if path else part, form, leaf.numel() * leaf.element_size())


def as_rows(items: list[Item]) -> list[dict[str, Any]]:
    """The list for JSON."""
    return [item._asdict() for item in items]
