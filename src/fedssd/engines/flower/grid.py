"""A grid that asks for replies several times a second: Flower's own asks every three seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from fedssd.engines.flower.library import Grid, Message, RecordDict
from fedssd.errors import UserError

PAUSE, LONGEST_PAUSE = 0.25, 3.0  # seconds between two questions, at first and after a minute
Answer = TypeVar("Answer")
TRIES = 20  # failed questions in a row; a busy SuperLink may refuse a few


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
        return self._insist(lambda: list(self._grid.get_node_ids()))

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
        waiting = {message_id for message_id in self.push_messages(list(messages)) if message_id}
        replies: list[Message] = []
        begun = time.monotonic()
        end = None if timeout is None else begun + timeout
        while waiting:
            found = list(self.pull_messages(waiting))
            replies += found
            waiting -= {reply.metadata.reply_to_message_id for reply in found}
            if end is not None and time.monotonic() >= end:
                break
            if waiting:  # who has waited long can wait a little longer, and large messages keep the SuperLink busy
                time.sleep(min(LONGEST_PAUSE, self._pause + (time.monotonic() - begun) / 20))
        return replies
