"""A grid whose nodes are ClientApps in this process; every message goes through the bytes that would travel."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Tamper = Callable[[int, int, Message], Message | None]  # round, node, its reply -> what arrives; None: nothing does


def become_a_server() -> None:
    """Messages can only be made by a task of a run: say that this process is one."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


def travelled(message: Message) -> Message:
    """The message as it comes out of its bytes."""
    proto = message_to_proto(message)
    return message_from_proto(type(proto).FromString(proto.SerializeToString()))


@dataclass
class Node:
    """A node: an app, and the context Flower keeps for it between messages."""

    app: Callable[[Message, Context], Message]
    context: Context

    def handle(self, message: Message) -> Message:
        try:
            return self.app(message, self.context)
        except Exception as error:  # as a SuperNode does
            return Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)


@dataclass
class InProcessGrid(Grid):
    """Nodes by id, and what happens to their replies on the way."""

    nodes: dict[int, Node]
    order: random.Random = field(default_factory=lambda: random.Random(0))
    tamper: Tamper = lambda round_, node, reply: reply
    sent: list[Message] = field(default_factory=list)
    _replies: dict[str, Message] = field(default_factory=dict)
    _count: int = 0

    def __post_init__(self) -> None:
        become_a_server()

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *given: Any, **named: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self._count += 1
            message.metadata.__dict__["_message_id"] = f"message-{self._count}"
            ids.append(message.metadata.message_id)
            self.sent.append(message)
            node = message.metadata.dst_node_id
            reply = travelled(self.nodes[node].handle(travelled(message)))
            round_ = int(message.metadata.group_id or 0)
            arrived = self.tamper(round_, node, reply)
            if arrived is not None:
                self._replies[ids[-1]] = arrived
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = [self._replies.pop(one) for one in sorted(message_ids) if one in self._replies]
        self.order.shuffle(found)
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError


def nodes_for(recipe: Path, files: list[Path], state: Path | None = None, mods: Sequence[Any] = ()) -> dict[int, Node]:
    """A node for every file of samples; node ids are large and in no order, as Flower's are."""
    from fedssd.flower.client import client_app  # here: the grid serves apps of other source trees, too

    made = {}
    for client, file in enumerate(files):
        own = {"partition-id": client, "data-path": str(file)}
        if state is not None:
            own["state-path"] = str(state / str(client))
        node_id = 10**15 + (7919 * (client + 3)) % 101
        made[node_id] = Node(client_app(recipe, mods=mods), Context(1, node_id, own, RecordDict(), {}))
    return made
