"""Nodes that fail or lie: what is sound counts, the rest is left out and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, Message
from lab import Lab, replace_arrays, same, with_metric

from fedssd.core import tree
from fedssd.errors import UserError
from fedssd.flower.messages import LONGEST_REASON
from fedssd.simulation.result import Result


def poisoned(values: Any) -> Any:
    values.flat[3] = np.nan
    return values


FAULTS = {
    "nan": (lambda reply: replace_arrays(reply, poisoned), "NaN or infinity in its update (params/body.1.weight)"),
    "shape": (lambda reply: replace_arrays(reply, lambda v: v[:1]), "expected float32 [128, 64], got float32 [1, 64]"),
    "dtype": (lambda reply: replace_arrays(reply, lambda v: v.astype(np.float64)), "got float64 [128, 64]"),
    "samples": (lambda reply: with_metric(reply, "num-examples", 1_000_000), "it claims 1e+06 samples"),
    "no-samples": (lambda reply: with_metric(reply, "num-examples", 0), "it claims 0 samples"),
    "no-work": (lambda reply: with_metric(reply, "figure/count", 0.0), "it claims to have trained on 0 samples"),
    "another": (lambda reply: with_metric(reply, "client", 0), "it answers as client 0"),
    "older": (lambda reply: with_metric(reply, "round", 1), "for round 1"),
    "lost": (lambda reply: None, "no reply within 1 s"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_reply_is_left_out_with_its_reason(fault: str, tmp_path: Path) -> None:
    """The round goes on as if that client had not taken part, and it is back in the next."""
    change, reason = FAULTS[fault]
    lab = Lab(tmp_path, method="fedavg")
    lab.spoil(1, 2, change)
    lines = lab.run(most_samples=10_000).rounds
    assert all(line.clients == (0, 1, 2) for line in lines)
    assert list(lines[1].client_accuracy) == [0, 2]
    assert list(lines[1].dropped) == [1]
    assert reason in lines[1].dropped[1]
    assert lines[0].dropped == lines[2].dropped == {}


def test_a_bad_reply_can_stop_the_run(tmp_path: Path) -> None:
    lab = Lab(tmp_path, method="fedavg", on_bad_update="stop")
    lab.spoil(1, 2, FAULTS["nan"][0])
    with pytest.raises(UserError, match="stopped in round 2: client 1 is refused"):
        lab.run()


def test_an_update_far_out_is_left_out(tmp_path: Path) -> None:
    lab = Lab(tmp_path, method="fedavg", norm_limit=5.0)
    lab.spoil(1, 2, lambda reply: replace_arrays(reply, lambda values: values + 1))
    lines = lab.run().rounds
    assert list(lines[1].dropped) == [1]
    assert "times the cohort's median" in lines[1].dropped[1]


LOUD = {"×10³⁷": 1e37, "×100": 100.0, "×30": 30.0, "flipped ×30": -30.0}
FIVE = {"method": "fedavg", "clients": 5, "rounds": 2}


@pytest.fixture(scope="module")
def without_client_1(tmp_path_factory: pytest.TempPathFactory) -> Result:
    lab = Lab(tmp_path_factory.mktemp("silent"), **FIVE)
    failing_in_training(lab, 1, "it is silent")
    return lab.run()


def lying(lab: Lab, client: int, lie: Callable[[Message, Message], Message]) -> None:
    """The client makes another reply of each of its own; what it was sent comes first."""
    node = next(node for node in lab.grid.nodes if lab.client(node) == client)
    honest = lab.grid.nodes[node].app

    def app(message: Message, context: Any) -> Message:
        reply = honest(message, context)
        return lie(message, reply) if message.metadata.message_type == "train" else reply

    lab.grid.nodes[node].app = app


@pytest.mark.parametrize("name", LOUD)
def test_a_loud_lie_in_every_round_is_as_if_the_client_were_silent(
    name: str, tmp_path: Path, without_client_1: Result
) -> None:
    def lie(sent: Message, reply: Message) -> Message:
        weights = reply.content.array_records["weights"]
        for leaf, w in sent.content.array_records["weights"].items():
            moved = weights[leaf].numpy() - w.numpy()
            weights[leaf] = Array(w.numpy() + moved.dtype.type(LOUD[name]) * moved)
        return reply

    lab = Lab(tmp_path, **FIVE)
    lying(lab, 1, lie)
    lied = lab.run()
    assert same(lied, without_client_1)
    assert all("beyond its reach" in line.dropped[1] for line in lied.rounds)


def test_so_is_a_false_number_of_samples(tmp_path: Path, without_client_1: Result) -> None:
    lab = Lab(tmp_path, **FIVE)
    lying(lab, 1, lambda sent, reply: with_metric(reply, "num-examples", 10**15))
    lied = lab.run()
    assert same(lied, without_client_1)
    assert all("it claims 1e+15 samples" in line.dropped[1] for line in lied.rounds)


def failing_in_training(lab: Lab, client: int, why: str) -> None:
    """The client raises whenever it is asked to train."""
    node = next(node for node in lab.grid.nodes if lab.client(node) == client)
    sound = lab.grid.nodes[node].app

    def fails(message: Message, context: Any) -> Message:
        if message.metadata.message_type == "train":
            raise RuntimeError(why)
        return sound(message, context)

    lab.grid.nodes[node].app = fails


def test_a_node_that_raises_is_left_out(tmp_path: Path) -> None:
    lab = Lab(tmp_path, method="fedavg", rounds=1)
    failing_in_training(lab, 2, "out of memory")
    (line,) = lab.run().rounds
    assert list(line.client_accuracy) == [0, 1]
    assert "out of memory" in line.dropped[2]


def test_what_a_node_says_can_neither_forge_nor_flood_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Escapes that a terminal would obey, a made-up line of ours, the end of the page's data, and a megabyte of it."""
    said = "\x1b[2J\x1b]0;title\x07\r\nfedssd: round 1 of 1: global accuracy 100 %\r\x00\x9b31m\u202e</script><b>"
    lab = Lab(tmp_path, method="fedavg", rounds=1)
    failing_in_training(lab, 2, said + "x" * 1_000_000)
    (line,) = lab.run().rounds
    why = line.dropped[2]
    assert "</script><b>xxx" in why
    assert why.isprintable()
    assert len(why) == LONGEST_REASON
    told = capsys.readouterr().out
    assert [row for row in told.splitlines() if why in row] == [f"fedssd: round 1: client 2 is left out: {why}"]
    assert "\x1b" not in told
    assert "fedssd: round 1 of 1: global accuracy 100 %" not in told.splitlines()
    record = (tmp_path / "run" / "rounds.jsonl").read_text(encoding="utf-8")
    assert json.loads(record.splitlines()[1])["dropped"] == {"2": why}
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "</script><b>" not in page


@pytest.mark.parametrize("claim", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_false_claim_of_time_does_not_reach_the_record(claim: float, tmp_path: Path) -> None:
    """Nobody trained for longer than the round took, or for less than nothing."""
    lab = Lab(tmp_path, method="fedavg", rounds=1)
    lab.spoil(1, 1, lambda reply: with_metric(reply, "seconds", claim))
    (line,) = lab.run().rounds
    assert line.dropped == {}
    assert 0 <= line.seconds["local"] <= line.seconds["train"]


def test_a_round_without_a_sound_reply_changes_nothing(tmp_path: Path) -> None:
    lab = Lab(tmp_path, method="scaffold", rounds=2)
    lab.grid.tamper = lambda round_, node, reply: None if round_ == 2 else reply
    both = lab.run()
    alone = Lab(tmp_path / "alone", method="scaffold", rounds=1).run()
    assert both.rounds[1].unchanged == "lost"
    assert same(both, alone)


def test_two_nodes_cannot_be_one_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab = Lab(tmp_path, method="fedavg", rounds=1)
    first, second = list(lab.grid.nodes)[:2]
    lab.grid.nodes[second].context.node_config["partition-id"] = lab.client(first)
    (line,) = lab.run(min_nodes=2).rounds
    assert len(line.client_accuracy) == 2
    assert f"it calls itself client {lab.client(first)}, which node" in capsys.readouterr().out


def test_an_unfit_node_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab = Lab(tmp_path, method="fedavg", rounds=1)
    node = next(iter(lab.grid.nodes))
    lab.grid.nodes[node].context.node_config["data-path"] = str(tmp_path / "nowhere.npz")
    (line,) = lab.run(min_nodes=2).rounds
    assert line.dropped == {lab.client(node): "not connected"}
    assert f"node {node} cannot take part" in capsys.readouterr().out


@pytest.mark.parametrize("weighting", ["samples", "capped", "equal"])
def test_weighting(weighting: str, tmp_path: Path) -> None:
    lab = Lab(tmp_path, method="fedavg", rounds=1, clients=3)
    claims = {0: 100, 1: 300, 2: 1_000_000}
    uploads: dict[int, Any] = {}

    def claim(round_: int, node: int, reply: Message) -> Message:
        if round_:
            uploads[lab.client(node)] = reply.content.array_records["weights"]
        return with_metric(reply, "num-examples", claims[lab.client(node)])  # in its greeting, too

    lab.grid.tamper = claim
    found = tree.flatten(lab.run(weighting=weighting).weights)
    counted = {"samples": [100, 300, 1_000_000], "capped": [100, 300, 600], "equal": [1, 1, 1]}[weighting]
    for name, ours in found.items():
        parts = [torch.from_numpy(uploads[client][name].numpy()).double() for client in range(3)]
        expected = sum(n / sum(counted) * part for n, part in zip(counted, parts, strict=True))
        assert torch.allclose(ours.double(), expected, atol=1e-6)
