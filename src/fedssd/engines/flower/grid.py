"""A grid that asks for replies several times a second: Flower's own asks every three seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from fedssd.engines.flower.library import Grid, Message, RecordDict

PAUSE = 0.25  # seconds between two questions


class PromptGrid(Grid):
    """Another grid, asked more often."""

    def __init__(self, grid: Grid, pause: float = PAUSE) -> None:
        self._grid, self._pause = grid, pause

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
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send, then collect replies until all are there or the time is up; who is late is simply absent."""
        waiting = {message_id for message_id in self.push_messages(list(messages)) if message_id}
        replies: list[Message] = []
        end = None if timeout is None else time.monotonic() + timeout
        while waiting:
            found = list(self.pull_messages(waiting))
            replies += found
            waiting -= {reply.metadata.reply_to_message_id for reply in found}
            if end is not None and time.monotonic() >= end:
                break
            if waiting:
                time.sleep(self._pause)
        return replies
