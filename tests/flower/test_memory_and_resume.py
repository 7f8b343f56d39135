"""Nodes that sit out or forget, and a server that ends: memories stay true and nothing trained is lost."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Message
from inprocess import InProcessGrid
from lab import Lab, same, sits_out

from fedssd.errors import UserError
from fedssd.runs.loop import run_recipe


@pytest.mark.parametrize("method", ["moon", "scaffold", "fedcurv"])
def test_a_refused_client_does_not_remember_the_round(method: str, tmp_path: Path) -> None:
    """A client whose reply was lost goes on as if it had sat the round out: no trace of it, in node or server."""
    lab = Lab(tmp_path, method=method, rounds=3)
    lab.spoil(1, 2, lambda reply: None)
    ours = lab.run()
    absent = Lab(tmp_path / "absent", method=method, rounds=3)
    node = next(node for node in absent.grid.nodes if absent.client(node) == 1)
    sits_out(absent, node, 2)
    theirs = absent.run(min_nodes=2)
    assert [list(line.dropped) for line in ours.rounds] == [list(line.dropped) for line in theirs.rounds]
    assert list(ours.rounds[1].dropped) == [1]
    assert same(ours, theirs)


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
    assert [line.number for line in resumed.rounds] == [1, 2, 3, 4]
    assert same(resumed, run_recipe(lab.recipe))


def test_nodes_may_share_a_state_path(tmp_path: Path) -> None:
    lab = Lab(tmp_path, method="moon")
    for node in lab.grid.nodes.values():
        node.context.node_config["state-path"] = str(tmp_path / "shared")
    assert same(lab.run(), run_recipe(lab.recipe))
