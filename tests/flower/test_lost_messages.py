"""Messages that get lost, expire or come more than once: each order is answered once, or the client is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message
from inprocess import travelled
from lab import Lab, replace_arrays, same

from fedssd.flower import grid as grid_module
from fedssd.runs.loop import run_recipe


@pytest.mark.parametrize(
    ("deadline", "why"), [(60.0, "error 3: Message Unavailable"), (0.001, "no reply within 0.001 s")]
)
def test_a_message_that_expired_was_not_answered_in_time(deadline: float, why: str, tmp_path: Path) -> None:
    """Flower has the same words for a message that it never had; before the deadline they are passed on."""
    lab = Lab(tmp_path, method="fedavg", rounds=1)  # whose three clients train for longer than a millisecond
    lab.spoil(1, 1, lambda reply: Message(Error(3, "Message Unavailable"), reply_to=lab.grid.sent[-1]))
    (line,) = lab.run(round_timeout=deadline).rounds
    assert line.dropped == {1: why}


@pytest.mark.parametrize("lost", ["train", "query"])
def test_a_message_that_got_lost_is_sent_again(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Client 1 never sees its first message of a kind; once it answers a probe, that is known."""
    monkeypatch.setattr(grid_module, "SILENCE", 0.05)
    lab = Lab(tmp_path, method="moon")
    seen: list[str] = []

    def lose(round_: int, node: int, reply: Message) -> Message | None:
        kind = "train" if round_ else "query"
        if lab.client(node) != 1 or kind != lost:
            return reply
        seen.append(kind)
        return None if len(seen) == 1 else reply

    lab.grid.tamper = lose
    ours = lab.run(round_timeout=30.0, wait=30.0)
    node = next(node for node in lab.grid.nodes if lab.client(node) == 1)
    assert f"fedssd: the message to node {node} got lost and is sent again\n" in capsys.readouterr().out
    assert all(line.dropped == {} for line in ours.rounds)
    assert same(ours, run_recipe(lab.recipe))


def test_a_node_at_work_is_not_sent_its_message_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe is answered after the message before it, so that an answer to both means that nothing was lost."""
    monkeypatch.setattr(grid_module, "SILENCE", 0.0)
    lab = Lab(tmp_path, method="moon")
    sound, asked = lab.grid.pull_messages, 0

    def slow(message_ids: Any) -> Any:
        nonlocal asked
        asked += 1
        return [] if asked % 3 else sound(message_ids)

    lab.grid.pull_messages = slow  # type: ignore[method-assign]
    ours = lab.run(round_timeout=30.0)
    orders = [message for message in lab.grid.sent if message.metadata.message_type == "train"]
    assert len(orders) == 3 * len(ours.rounds)
    assert len(lab.grid.sent) > len(orders) + 3  # there were probes beside the three greetings
    assert same(ours, run_recipe(lab.recipe))


def test_only_the_first_reply_to_a_message_of_ours_counts(tmp_path: Path) -> None:
    """Every reply comes with a second one of other numbers, and with one to a message that was never sent."""
    lab = Lab(tmp_path, method="moon")
    sound = lab.grid.pull_messages

    def several(message_ids: Any) -> Any:
        for reply in sound(message_ids):
            second, stray = travelled(reply), travelled(reply)
            yield reply
            if "weights" in reply.content:
                yield replace_arrays(second, lambda values: values * 1000)
                stray.metadata.__dict__["_reply_to_message_id"] = "of another run"
                yield replace_arrays(stray, lambda values: values * 1000)

    lab.grid.pull_messages = several  # type: ignore[method-assign]
    ours = lab.run()
    assert all(line.dropped == {} for line in ours.rounds)
    assert same(ours, run_recipe(lab.recipe))


def test_a_superlink_that_fails_now_and_then_is_asked_again(tmp_path: Path) -> None:
    lab = Lab(tmp_path, method="fedavg", rounds=1)
    sound, asked = lab.grid.pull_messages, 0

    def locked(message_ids: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked % 2:
            raise OSError("database is locked")
        return sound(message_ids)

    lab.grid.pull_messages = locked  # type: ignore[method-assign]
    (line,) = lab.run().rounds
    assert line.dropped == {}
