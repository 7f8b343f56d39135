"""Nodes that fail, lie or forget: what is sound counts, the rest is named, and nothing trained is lost."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, Error, Message
from inprocess import InProcessGrid, Node, nodes_for, travelled

from fedssd.cli import main
from fedssd.core import tree
from fedssd.deployment.samples import ServerSamples, deal, read_server
from fedssd.deployment.server import serve
from fedssd.deployment.settings import Settings
from fedssd.engines.flower import grid as grid_module
from fedssd.engines.flower.messages import LONGEST_REASON
from fedssd.errors import UserError
from fedssd.experiment.recipe import Recipe, load_recipe
from fedssd.experiment.result import Result
from fedssd.experiment.run import run_recipe

SMALL = {"rounds": 3, "epochs": 1, "clients": 3, "auxiliary": 8, "model": "mlp", "engine": "reference", "device": "cpu"}


class Lab:
    """A federation in this process: its samples, its nodes and a way to run it."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.recipe: Recipe = load_recipe(None, {**SMALL, **changes})
        self.file = folder / "recipe.toml"
        self.file.write_text(self.recipe.to_toml(), encoding="utf-8")
        self.files = deal(self.recipe, folder / "samples")
        self.samples: ServerSamples = read_server(folder / "samples" / "server" / "samples.npz", self.recipe)
        self.grid = InProcessGrid(self.nodes())

    def nodes(self) -> dict[int, Node]:
        return nodes_for(self.file, self.files, self.folder / "state")

    def client(self, node: int) -> int:
        return int(self.grid.nodes[node].context.node_config["partition-id"])

    def run(self, **settings: Any) -> Result:
        chosen = Settings(**{"wait": 0.5, "round_timeout": 1.0, **settings})
        return serve(self.grid, self.recipe, self.samples, chosen, self.folder / "run").result()

    def spoil(self, client: int, round_: int, change: Callable[[Message], Message | None]) -> None:
        """Let one reply of one client arrive otherwise than it was sent."""
        self.grid.tamper = lambda now, node, reply: (
            change(reply) if (now, self.client(node)) == (round_, client) else reply
        )


def same(left: Result, right: Result) -> bool:
    ours, theirs = tree.flatten(left.weights), tree.flatten(right.weights)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def replace_arrays(reply: Message, change: Callable[[Any], Any]) -> Message:
    record = reply.content.array_records["weights"]
    name = next(iter(record))
    record[name] = Array(change(record[name].numpy()))
    return reply


def with_metric(reply: Message, name: str, value: float) -> Message:
    reply.content.metric_records["metrics"][name] = value
    return reply


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
    assert all(line["clients"] == [0, 1, 2] for line in lines)
    assert list(lines[1]["local"]["acc"]) == ["0", "2"]
    assert list(lines[1]["dropped"]) == ["1"]
    assert reason in lines[1]["dropped"]["1"]
    assert lines[0]["dropped"] == lines[2]["dropped"] == {}


def test_a_bad_reply_can_stop_the_run(tmp_path: Path) -> None:
    lab = Lab(tmp_path, method="fedavg", on_bad_update="stop")
    lab.spoil(1, 2, FAULTS["nan"][0])
    with pytest.raises(UserError, match="stopped in round 2: client 1 is refused"):
        lab.run()


def test_an_update_far_out_is_left_out(tmp_path: Path) -> None:
    lab = Lab(tmp_path, method="fedavg", norm_limit=5.0)
    lab.spoil(1, 2, lambda reply: replace_arrays(reply, lambda values: values + 1))
    lines = lab.run().rounds
    assert list(lines[1]["dropped"]) == ["1"]
    assert "times the cohort's median" in lines[1]["dropped"]["1"]


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
    assert list(line["local"]["acc"]) == ["0", "1"]
    assert "out of memory" in line["dropped"]["2"]


def test_what_a_node_says_can_neither_forge_nor_flood_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Escapes that a terminal would obey, a made-up line of ours, the end of the page's data, and a megabyte of it."""
    said = "\x1b[2J\x1b]0;title\x07\r\nfedssd: round 1 of 1: global accuracy 100 %\r\x00\x9b31m\u202e</script><b>"
    lab = Lab(tmp_path, method="fedavg", rounds=1)
    failing_in_training(lab, 2, said + "x" * 1_000_000)
    (line,) = lab.run().rounds
    why = line["dropped"]["2"]
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


@pytest.mark.parametrize(
    ("deadline", "why"), [(60.0, "error 3: Message Unavailable"), (0.001, "no reply within 0.001 s")]
)
def test_a_message_that_expired_was_not_answered_in_time(deadline: float, why: str, tmp_path: Path) -> None:
    """Flower has the same words for a message that it never had; before the deadline they are passed on."""
    lab = Lab(tmp_path, method="fedavg", rounds=1)  # whose three clients train for longer than a millisecond
    lab.spoil(1, 1, lambda reply: Message(Error(3, "Message Unavailable"), reply_to=lab.grid.sent[-1]))
    (line,) = lab.run(round_timeout=deadline).rounds
    assert line["dropped"] == {"1": why}


@pytest.mark.parametrize("claim", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_false_claim_of_time_does_not_reach_the_record(claim: float, tmp_path: Path) -> None:
    """Nobody trained for longer than the round took, or for less than nothing."""
    lab = Lab(tmp_path, method="fedavg", rounds=1)
    lab.spoil(1, 1, lambda reply: with_metric(reply, "seconds", claim))
    (line,) = lab.run().rounds
    assert line["dropped"] == {}
    assert 0 <= line["seconds"]["local"] <= line["seconds"]["train"]


def test_a_round_without_a_sound_reply_changes_nothing(tmp_path: Path) -> None:
    lab = Lab(tmp_path, method="scaffold", rounds=2)
    lab.grid.tamper = lambda round_, node, reply: None if round_ == 2 else reply
    both = lab.run()
    alone = Lab(_folder(tmp_path / "alone"), method="scaffold", rounds=1).run()
    assert both.rounds[1]["unchanged"] == "lost"
    assert same(both, alone)


@pytest.mark.parametrize("method", ["moon", "scaffold", "fedcurv"])
def test_a_refused_client_does_not_remember_the_round(method: str, tmp_path: Path) -> None:
    """A client whose reply was lost goes on as if it had sat the round out: no trace of it, in node or server."""
    lab = Lab(tmp_path, method=method, rounds=3)
    lab.spoil(1, 2, lambda reply: None)
    ours = lab.run()
    absent = Lab(_folder(tmp_path / "absent"), method=method, rounds=3)
    node = next(node for node in absent.grid.nodes if absent.client(node) == 1)
    sits_out(absent, node, 2)
    theirs = absent.run(min_nodes=2)
    assert [list(line["dropped"]) for line in ours.rounds] == [list(line["dropped"]) for line in theirs.rounds]
    assert list(ours.rounds[1]["dropped"]) == ["1"]
    assert same(ours, theirs)


def sits_out(lab: Lab, node: int, round_: int) -> None:
    """The node is not connected while this round begins."""
    everybody = lab.grid.get_node_ids

    def connected() -> list[int]:
        done = max((int(message.metadata.group_id or 0) for message in lab.grid.sent), default=0)
        return [one for one in everybody() if not (one == node and done == round_ - 1)]

    lab.grid.get_node_ids = connected  # type: ignore[method-assign]


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("lose", [Path.unlink, lambda file: file.write_bytes(b""), lambda file: os.truncate(file, 99)])
def test_a_node_that_lost_its_memory_says_so(
    lose: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = Lab(tmp_path, method="moon", rounds=2)

    def forget(round_: int, node: int, reply: Message) -> Message:
        if lab.client(node) == 0 and round_ == 1:
            for file in (tmp_path / "state" / "0").rglob("*.memory"):
                lose(file)
        return reply

    lab.grid.tamper = forget
    lab.run()
    assert "round 2: client 0 had lost its memory and began anew" in capsys.readouterr().out


def test_too_few_nodes_end_the_run_and_keep_its_rounds(tmp_path: Path) -> None:
    lab = Lab(tmp_path, method="fedavg")
    node = next(iter(lab.grid.nodes))
    sits_out(lab, node, 3)
    with pytest.raises(UserError, match="round 3 needs 3 clients, and 2 were connected"):
        lab.run()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["rounds"], summary["of_rounds"]) == (2, 3)


@pytest.mark.parametrize("method", ["fedavg", "moon", "scaffold", "fedcurv", "fedssd", "fedgkd"])
def test_a_run_that_ended_is_resumed_to_the_same_weights(method: str, tmp_path: Path) -> None:
    """The server is gone after round 2; a new Flower run with restarted nodes goes on as if nothing had been."""
    lab = Lab(tmp_path, method=method, rounds=4)
    node = next(iter(lab.grid.nodes))
    sits_out(lab, node, 3)
    with pytest.raises(UserError):
        lab.run()
    lab.grid = InProcessGrid(lab.nodes(), random.Random(3))  # nodes without anything in memory
    resumed = lab.run(resume=str(tmp_path / "run"))
    assert [line["round"] for line in resumed.rounds] == [1, 2, 3, 4]
    assert same(resumed, run_recipe(lab.recipe))


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
    assert all(line["dropped"] == {} for line in ours.rounds)
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
    assert all(line["dropped"] == {} for line in ours.rounds)
    assert same(ours, run_recipe(lab.recipe))


def test_nodes_may_share_a_state_path(tmp_path: Path) -> None:
    lab = Lab(tmp_path, method="moon")
    for node in lab.grid.nodes.values():
        node.context.node_config["state-path"] = str(tmp_path / "shared")
    assert same(lab.run(), run_recipe(lab.recipe))


def test_a_run_leaves_what_a_simulation_leaves(tmp_path: Path) -> None:
    Lab(tmp_path, method="fedssd").run()
    simulated = tmp_path / "simulated"
    recipe = str(tmp_path / "recipe.toml")
    assert main(["run", "--recipe", recipe, "--out", str(simulated), "--json"]) == 0
    left, theirs = ({file.name for file in folder.iterdir()} for folder in (tmp_path / "run", simulated))
    assert left == theirs
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "fedssd, a federation of 3" in page


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
    assert line["dropped"] == {}


def test_two_nodes_cannot_be_one_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab = Lab(tmp_path, method="fedavg", rounds=1)
    first, second = list(lab.grid.nodes)[:2]
    lab.grid.nodes[second].context.node_config["partition-id"] = lab.client(first)
    (line,) = lab.run(min_nodes=2).rounds
    assert len(line["local"]["acc"]) == 2
    assert f"it calls itself client {lab.client(first)}, which node" in capsys.readouterr().out


def test_an_unfit_node_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab = Lab(tmp_path, method="fedavg", rounds=1)
    node = next(iter(lab.grid.nodes))
    lab.grid.nodes[node].context.node_config["data-path"] = str(tmp_path / "nowhere.npz")
    (line,) = lab.run(min_nodes=2).rounds
    assert line["dropped"] == {str(lab.client(node)): "not connected"}
    assert f"node {node} cannot take part" in capsys.readouterr().out


@pytest.mark.parametrize("weighting", ["samples", "capped", "equal"])
def test_weighting(weighting: str, tmp_path: Path) -> None:
    lab = Lab(tmp_path, method="fedavg", rounds=1, clients=3)
    claims = {0: 100, 1: 300, 2: 1_000_000}
    uploads: dict[int, Any] = {}

    def claim(round_: int, node: int, reply: Message) -> Message:
        if round_:
            uploads[lab.client(node)] = reply.content.array_records["weights"]
            return with_metric(reply, "num-examples", claims[lab.client(node)])
        return reply

    lab.grid.tamper = claim
    found = tree.flatten(lab.run(weighting=weighting).weights)
    counted = {"samples": [100, 300, 1_000_000], "capped": [100, 300, 600], "equal": [1, 1, 1]}[weighting]
    for name, ours in found.items():
        parts = [torch.from_numpy(uploads[client][name].numpy()).double() for client in range(3)]
        expected = sum(n / sum(counted) * part for n, part in zip(counted, parts, strict=True))
        assert torch.allclose(ours.double(), expected, atol=1e-6)
