"""Privacy over Flower's messages: the simulation's weights to the bit, and who asks a node for less."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, Message

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "flower"))

from lab import Lab, same, sits_out

from fedssd.errors import UserError
from fedssd.privacy.accounting import gaussian_epsilon
from fedssd.runs.loop import run_recipe


def private(mode: str, **more: Any) -> dict[str, Any]:
    return {"method": "fedssd", "privacy": {"mode": mode, "clip": 0.05, "noise": 0.8, "test_seed": 5, **more}}


def to_nan(message: Message) -> Message:
    """The reply with NaN in every weight."""
    for name, array in message.content.array_records["weights"].items():
        message.content.array_records["weights"][name] = Array(array.numpy() * math.nan)
    return message


@pytest.mark.parametrize("mode", ["central", "local"])
def test_a_federation_has_the_simulation_s_weights_and_figures(tmp_path: Path, mode: str) -> None:
    lab = Lab(tmp_path, **private(mode))
    ours, theirs = lab.run(), run_recipe(lab.recipe)
    assert same(ours, theirs)
    assert [one.to_json() for one in ours.rounds] == [one.to_json() for one in theirs.rounds]


def test_who_is_not_there_counts_as_zero_and_what_is_no_number_too(tmp_path: Path) -> None:
    """Both are as if the client had not moved: the weights are those of the other, and one of them is named."""
    absent, broken = Lab(tmp_path / "a", **private("central")), Lab(tmp_path / "b", **private("central"))
    (node,) = (node for node in absent.grid.nodes if absent.client(node) == 1)
    sits_out(absent, node, 1)
    sits_out(absent, node, 2)
    sits_out(absent, node, 3)
    broken.grid.tamper = lambda round_, node, reply: to_nan(reply) if round_ and broken.client(node) == 1 else reply
    one, other = absent.run(min_nodes=2), broken.run()
    assert same(one, other)
    assert [list(line.dropped) for line in one.rounds] == [[1]] * 3
    assert [list(line.dropped) for line in other.rounds] == [[]] * 3


def test_local_privacy_leaves_figures_and_seconds_at_the_node(tmp_path: Path) -> None:
    lab, heard = Lab(tmp_path, **private("local")), []

    def listen(round_: int, _: int, reply: Message) -> Message:
        heard.extend([reply.content.metric_records["metrics"]] if round_ else [])
        return reply

    lab.grid.tamper = listen
    lab.run()
    assert len(heard) == 9
    for metrics in heard:
        figures = {name: value for name, value in metrics.items() if name.startswith("figure/")}
        assert figures.pop("figure/count") == 1.0
        assert set(figures.values()) == {0.0}
        assert metrics["seconds"] == 0.0


def test_noise_is_another_each_time_a_node_answers(tmp_path: Path) -> None:
    first, second = (Lab(tmp_path / name, **private("local", test_seed=-1)).run() for name in "ab")
    assert not same(first, second)
    assert first.summary.privacy.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(3) * 2 / 0.8, 1e-5))


@pytest.mark.parametrize(
    "change", ["privacy.noise=0.1", "privacy.mode=central", "privacy.test_seed=-1", "privacy.clip=9"]
)
def test_a_node_keeps_the_privacy_that_its_app_promises(tmp_path: Path, change: str) -> None:
    """A server that sets less at a run gets no reply: the node has approved the app's recipe."""
    lab = Lab(tmp_path, **private("local", test_seed=3))
    (node, *_) = lab.grid.nodes.values()
    node.context.run_config["set"] = change
    with pytest.raises(UserError, match="round 1 needs 3 clients"):
        lab.run()


def test_a_federation_stops_before_its_budget_is_passed_and_counts_what_is_made_again(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **private("central", noise=5.0, budget=1.2))
    with pytest.raises(UserError, match=r"^stopped after round 2 of 3: the next round would pass the privacy budget"):
        lab.run()
    for ending in ("json", "safetensors"):
        (tmp_path / "run" / "checkpoint" / f"round-2.{ending}").unlink()
    with pytest.raises(UserError, match="stopped after round 1 of 3"):
        lab.run(resume=str(tmp_path / "run"))
