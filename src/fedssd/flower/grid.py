"""A grid that asks for replies several times a second and sends what got lost again; Flower's own does neither."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from fedssd.errors import UserError
from fedssd.flower.library import Grid, Message, RecordDict
from fedssd.flower.wire import NodeInfo

PAUSE, LONGEST_PAUSE = 0.25, 3.0  # seconds between two questions, at first and after a minute
SILENCE = 120.0  # seconds without a reply, after which a node is asked whether it still works on it
TRIES = 20  # failed questions in a row; a busy SuperLink may refuse a few
Answer = TypeVar("Answer")
Probe = Callable[[int], Message]  # a message to a node that costs it nothing and has an answer


class PromptGrid(Grid):
    """Another grid, asked more often; with a ``probe``, messages that got lost are found out and sent again."""

    def __init__(
        self,
        grid: Grid,
        probe: Probe | None = None,
        tell: Callable[[str], None] = lambda text: None,
        pause: float = PAUSE,
    ) -> None:
        self._grid, self._probe, self.tell, self._pause = grid, probe, tell, pause

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return self._insist(lambda: list(self._grid.get_node_ids()))

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return who is connected, with their keys; Flower's default for a grid would leave the keys out."""
        return self._insist(lambda: list(self._grid.get_nodes()))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = set(message_ids)
        return self._insist(lambda: list(self._grid.pull_messages(wanted)))

    def _insist(self, question: Callable[[], Answer]) -> Answer:
        """Ask again where the SuperLink fails, as with a locked database, until it has failed too often in a row."""
        failed = 0
        while True:
            try:
                return question()
            except Exception as error:  # Flower passes on whatever its HTTP client raises
                failed += 1
                if failed == TRIES:
                    raise UserError(f"the SuperLink does not answer: {' '.join(str(error).split())}") from error
                time.sleep(max(self._pause, min(failed, LONGEST_PAUSE)))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send, then collect replies until all are there or the time is up; who is late is simply absent."""
        post = _Post(self, list(messages), self._probe)
        begun = time.monotonic()
        end = None if timeout is None else begun + timeout
        while post.waiting:
            post.collect()
            if end is not None and time.monotonic() >= end:
                break
            if post.waiting:  # who has waited long can wait a little longer, and large messages keep the SuperLink busy
                post.look_after_the_silent()
                time.sleep(min(LONGEST_PAUSE, self._pause + (time.monotonic() - begun) / 20))
        return post.replies


class _Post:
    """Messages on their way, by the number of each; a message that got lost is sent again.

    A SuperLink takes a message for delivered before the node has it, so one that is under way when the connection
    breaks or the SuperLink is killed never arrives. A node works on one message at a time: when it answers a probe
    that was sent later and still owes a reply, it has nothing to reply to.
    """

    def __init__(self, grid: PromptGrid, messages: list[Message], probe: Probe | None) -> None:
        self._grid, self._probe = grid, probe
        self.replies: list[Message] = []
        numbers = grid.push_messages(messages)
        self.waiting = {number: message for number, message in zip(numbers, messages, strict=False) if number}
        self._copies: dict[str, str] = {}  # the number of a copy -> that of its message
        self._probes: dict[str, str] = {}  # the number of a probe -> that of the message it asks after
        self._quiet_since = dict.fromkeys(self.waiting, time.monotonic())

    def collect(self) -> None:
        """Take what has come."""
        answered: list[str] = []
        for reply in self._grid.pull_messages({*self.waiting, *self._copies, *self._probes}):
            number = reply.metadata.reply_to_message_id
            if number in self._probes:
                asked_after = self._probes.pop(number)
                answered += [] if reply.has_error() else [asked_after]
                continue
            number = self._copies.get(number, number)
            if self.waiting.pop(number, None) is not None:
                reply.metadata.__dict__["_reply_to_message_id"] = number  # as Flower itself sets a message's number
                self.replies.append(reply)
        for number in answered:
            if number in self.waiting:
                self._send_again(number)

    def look_after_the_silent(self) -> None:
        """Send a probe to nodes that have been silent for long, one at a time to each."""
        if self._probe is None:
            return
        now = time.monotonic()
        for number, message in self.waiting.items():
            if now - self._quiet_since[number] >= SILENCE and number not in self._probes.values():
                self._quiet_since[number] = now
                for sent in self._grid.push_messages([self._probe(message.metadata.dst_node_id)]):
                    self._probes[sent] = number

    def _send_again(self, number: str) -> None:
        lost = self.waiting[number].metadata
        self._grid.tell(f"the message to node {lost.dst_node_id} got lost and is sent again")
        message = Message(
            self.waiting[number].content, lost.dst_node_id, lost.message_type, ttl=lost.ttl, group_id=lost.group_id
        )
        self._quiet_since[number] = time.monotonic()
        for sent in self._grid.push_messages([message]):
            self._copies[sent] = number
