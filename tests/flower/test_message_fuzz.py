"""Damaged messages, 500 of them: each is dropped with a reason, and the round closes as if it had not come."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from inprocess import become_a_server, travelled
from safetensors.torch import save

from fedssd.core.contract import Work
from fedssd.core.guard import Seen
from fedssd.core.tree import Tree
from fedssd.flower.messages import Kind, Reply, answer
from fedssd.flower.rehearsal import rehearse
from fedssd.flower.strategy import Ends, FederatedStrategy, Opened, Outcome, Rules
from fedssd.recipe import load_recipe
from fedssd.simulation.setup import assemble

CASES = 500
RECIPE = load_recipe(None, {"method": "fedssd+scaffold", "model": "mlp", "auxiliary": 8, "clients": 2, "device": "cpu"})
Damage = Callable[[random.Random, RecordDict], RecordDict]


def drop_record(draw: random.Random, content: RecordDict) -> RecordDict:
    gone = draw.choice(list(content))
    return RecordDict({name: record for name, record in content.items() if name != gone})


def rename_record(draw: random.Random, content: RecordDict) -> RecordDict:
    odd = draw.choice(list(content))
    return RecordDict({(name[::-1] if name == odd else name): record for name, record in content.items()})


def swap_records(draw: random.Random, content: RecordDict) -> RecordDict:
    one, other = draw.sample(list(content), 2)
    swapped = {one: content[other], other: content[one]}
    return RecordDict({name: swapped.get(name, record) for name, record in content.items()})


def empty_record(draw: random.Random, content: RecordDict) -> RecordDict:
    name = draw.choice(list(content))
    return RecordDict({**content, name: type(content[name])()})


def array_names(draw: random.Random, content: RecordDict) -> RecordDict:
    record = content.array_records["weights"]
    name = draw.choice(list(record))
    kept = dict(record.items())
    array = kept.pop(name)
    if draw.random() < 0.5:
        kept[draw.choice([name + "x", "", "params", "../" + name, "\x00"])] = array
    return RecordDict({**content, "weights": ArrayRecord(kept)})


def array_bytes(draw: random.Random, content: RecordDict) -> RecordDict:
    record = content.array_records["weights"]
    name = draw.choice(list(record))
    array = record[name]
    data = array.data
    damaged = draw.choice(
        [
            data[: draw.randrange(len(data))],
            data + b"\0" * draw.randrange(1, 9),
            b"",
            draw.randbytes(len(data)),
            draw.randbytes(draw.randrange(200)),
            b"\x80\x04cos\nsystem\n(S'true'\ntR.",  # a pickle
            data.replace(b"<f4", b"|O8"),  # numpy's way to say pickled objects
            data.replace(b"(", b"(9", 1),
            data.replace(b"'shape'", b"'shame'"),
            data.replace(b"<f4", b">f4"),
            data.replace(b"<f4", b"<i4"),
        ]
    )
    return RecordDict(
        {**content, "weights": ArrayRecord({**record, name: Array(array.dtype, array.shape, array.stype, damaged)})}
    )


def array_numbers(draw: random.Random, content: RecordDict) -> RecordDict:
    record = content.array_records["weights"]
    name = draw.choice(list(record))
    values = record[name].numpy()
    bad = draw.choice([float("nan"), float("inf"), float("-inf")])
    values.flat[draw.randrange(values.size)] = bad
    shapes = [values, values[None], values.reshape(-1)[: values.size - 1], values.astype("float64"), values[..., :0]]
    return RecordDict({**content, "weights": ArrayRecord({**record, name: Array(draw.choice(shapes))})})


def metrics(draw: random.Random, content: RecordDict) -> RecordDict:
    record = dict(content.metric_records["metrics"].items())
    name = draw.choice([name for name in record if name != "fresh"])
    value = record.pop(name)
    what = draw.choice(["gone", "renamed", "list", "wrong"])
    if what == "renamed":
        record[name + " "] = value
    elif what == "list":
        record[name] = [value, value] if draw.random() < 0.5 else []
    elif what == "wrong" and name in ("client", "round", "num-examples"):
        record[name] = draw.choice([-1, 0, 2**62, float("nan"), float("inf"), -0.5, 1e300])
    elif what == "wrong" and name == "figure/count":
        record[name] = draw.choice([-1.0, 0.0, float("nan"), float("inf"), 1e300])
    return RecordDict({**content, "metrics": MetricRecord(record)})


def report(draw: random.Random, content: RecordDict) -> RecordDict:
    packed = bytes(content.config_records["config"]["report"])
    head, _, body = packed.partition(b"\n")
    value = draw.choice(
        [
            packed[: draw.randrange(len(packed))],
            packed + b"\0",
            b"",
            b"\n",
            body,
            head,
            draw.randbytes(64),
            head + b"\n" + draw.randbytes(len(body)),
            head.replace(b"null", b"{}") + b"\n" + body,
            head.replace(b"change", b"chance") + b"\n" + body,
            b"[" * 100_000 + b"\n" + body,
            b'{"a":' * 700 + b"null" + b"}" * 700 + b"\n" + body,
            b"[]\n" + body,
            b'"words"\n' + body,
            head.replace(b"null", b"1") + b"\n" + body,
            (2**63).to_bytes(8, "little") * 4,
            "text",
            7,
            [1.0, 2.0],
            True,
        ]
    )
    return RecordDict({**content, "config": ConfigRecord({"report": value})})


DAMAGES: list[Damage] = [
    drop_record,
    rename_record,
    swap_records,
    empty_record,
    array_names,
    array_bytes,
    array_numbers,
    metrics,
    report,
]


def scene() -> tuple[FederatedStrategy, Reply, list[Outcome]]:
    """A strategy that keeps what its rounds come to, and a sound reply."""
    federation = assemble(RECIPE)
    like = rehearse(federation).reply
    outcomes: list[Outcome] = []

    def close(outcome: Outcome) -> tuple[Tree, Outcome]:
        outcomes.append(outcome)
        return federation.weights, outcome

    def work(samples: int) -> Work:
        return Work(*(torch.tensor(float(samples)) for _ in Work._fields))

    strategy = FederatedStrategy(
        kind=Kind((1, 8, 8), "uint8", ("0", "1")),
        run="run",
        population=2,
        server=Ends(lambda weights: Opened({"weights": weights}, [0, 1]), lambda: None, work, Seen, close),
        like=like,
        weights=federation.weights,
        rules=Rules(most_samples=10_000),
        tell=lambda text: None,
    )
    strategy._sent_weights = federation.weights
    return strategy, like, outcomes


def test_every_damaged_message_is_dropped_with_a_reason() -> None:
    become_a_server()
    strategy, like, outcomes = scene()
    letters = []
    for client in (0, 1):
        letter = Message(RecordDict(), 7 + client, MessageType.TRAIN)
        letter.metadata.__dict__["_message_id"] = f"letter-{client}"
        letters.append(letter)
    sound = {client: answer(replace(like, client=client)) for client in (0, 1)}
    for case in range(CASES):
        draw = random.Random(case)
        damage = DAMAGES[case % len(DAMAGES)]
        damaged = damage(draw, travelled(Message(sound[1], reply_to=letters[1])).content)
        replies = [Message(sound[0], reply_to=letters[0]), travelled(Message(damaged, reply_to=letters[1]))]
        strategy.round, strategy._asked, strategy._absent = 0, list(enumerate(letters)), {}
        draw.shuffle(replies)
        strategy.aggregate_train(1, replies)
        outcome = outcomes.pop()
        told: Any = outcome.dropped.get(1, "")
        assert outcome.clients == [0], f"case {case} ({damage.__name__}) was accepted"
        assert told, f"case {case} ({damage.__name__}) has no reason"
        assert "\n" not in told
        assert len(outcome.trained.work.samples) == 1


def test_a_sound_reply_is_taken() -> None:
    """The check above could not fail if nothing were ever accepted."""
    become_a_server()
    strategy, like, outcomes = scene()
    letter = Message(RecordDict(), 7, MessageType.TRAIN)
    letter.metadata.__dict__["_message_id"] = "letter"
    strategy._asked = [(1, letter)]
    strategy.aggregate_train(1, [travelled(Message(answer(replace(like, client=1)), reply_to=letter))])
    assert outcomes[0].clients == [1]


DEEP = b'{"a":' * 700 + b"null" + b"}" * 700 + b"\n"  # too deep for a function that calls itself, not for JSON


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\n\n", b"{}\n", b'{"a": null}\n', b"{" * 99, bytes(range(256)), DEEP + save({})]
)
def test_bytes_that_are_no_tree_are_refused(content: bytes) -> None:
    from fedssd.flower.packing import UnreadableError, unpack

    with pytest.raises(UnreadableError, match="no packed tree"):
        unpack(content)
