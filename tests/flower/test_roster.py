"""The key decides which client a node is: what nodes claim, and keys that are unknown, shared or revoked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.proto.node_pb2 import NodeInfo
from lab import Lab, same, with_metric
from signing import Key

from fedssd.errors import UserError
from fedssd.flower.enrolment import FILE, Enrolled, Enrolment, revoke, rotate, write_enrolment
from fedssd.flower.server import serve
from fedssd.flower.settings import Settings
from fedssd.simulation.result import Result


class KeyedLab(Lab):
    """A federation in this process whose nodes have keys, client 0's the first."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        super().__init__(folder, **changes)
        self.keys = {node: Key() for node in self.grid.nodes}
        self.enrolment = folder / FILE
        write_enrolment(self.enrolment, [Enrolled(self.client(node), key.line) for node, key in self.keys.items()])
        self.grid.get_nodes = self._keyed  # type: ignore[method-assign]

    def _keyed(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=self.keys[node].pem) for node in self.grid.get_node_ids()]

    def node(self, client: int) -> int:
        return next(node for node in self.keys if self.client(node) == client)

    def run(self, enrolled: bool = True, **settings: Any) -> Result:
        chosen = Settings(**{"wait": 0.5, "round_timeout": 1.0, **settings})
        enrolment = Enrolment(self.enrolment) if enrolled else None
        return serve(self.grid, self.recipe, self.samples, chosen, self.folder / "run", None, enrolment).result()


def test_enrolled_nodes_take_part_as_ever(tmp_path: Path) -> None:
    ours = KeyedLab(tmp_path / "keyed", method="fedssd").run()
    assert same(ours, Lab(tmp_path / "plain", method="fedssd").run())


def test_without_keys_who_says_a_number_first_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in Flower alone, which binds no key to a number: the liar is client 1, and client 1 is locked out."""
    lab = Lab(tmp_path, method="fedavg", rounds=1)
    liar, owner = (next(node for node in lab.grid.nodes if lab.client(node) == client) for client in (0, 1))
    assert liar < owner, "it is asked first"
    lab.grid.nodes[liar].context.node_config["partition-id"] = 1
    lab.run(min_nodes=2)
    said = capsys.readouterr().out
    assert f"node {liar} is client 1" in said
    assert f"node {owner} cannot take part: it calls itself client 1, which node {liar} is" in said


def test_who_takes_another_s_number_locks_nobody_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab = KeyedLab(tmp_path, method="fedavg", rounds=1)
    liar = lab.node(0)
    lab.grid.nodes[liar].context.node_config["partition-id"] = 1
    (line,) = lab.run(min_nodes=2).rounds
    assert list(line.client_accuracy) == [1, 2]
    assert line.dropped == {0: "not connected"}
    assert (
        f"node {liar} cannot take part: it calls itself client 1, and its key is client 0's" in capsys.readouterr().out
    )


def test_a_key_that_is_not_enrolled_takes_no_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab = KeyedLab(tmp_path, method="fedavg", rounds=1)
    lab.keys[lab.node(2)] = Key()
    (line,) = lab.run(min_nodes=2).rounds
    assert list(line.client_accuracy) == [0, 1]
    assert capsys.readouterr().out.count("its key is not enrolled") == 1


def test_a_server_without_an_enrolment_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no enrolment to tell whose: start it with `fedssd federation serve`"):
        KeyedLab(tmp_path, method="fedavg", rounds=1).run(enrolled=False)


def revoked_in(lab: KeyedLab, round_: int, client: int) -> None:
    """The key is revoked while the clients train in a round, before its reply has come."""

    def tamper(now: int, node: int, reply: Any) -> Any:
        if (now, lab.client(node)) == (round_, client):
            revoke(lab.enrolment, client)
        return reply

    lab.grid.tamper = tamper


def test_a_revoked_client_is_out_at_once_and_the_run_goes_on(tmp_path: Path) -> None:
    """Without --min-nodes, which counts those that could take part."""
    lab = KeyedLab(tmp_path, method="fedavg", rounds=3)
    revoked_in(lab, 2, 1)
    first, second, third = lab.run().rounds
    assert first.dropped == {}
    assert second.dropped == {1: "its key is revoked"}
    assert third.dropped == {1: "its key is revoked"}
    asked = [lab.client(one.metadata.dst_node_id) for one in lab.grid.sent if one.metadata.group_id == "3"]
    assert asked == [0, 2]


def test_a_rotated_key_goes_on_as_the_same_client(tmp_path: Path) -> None:
    lab = KeyedLab(tmp_path, method="fedavg", rounds=3)
    node = lab.node(1)

    def tamper(now: int, sender: int, reply: Any) -> Any:
        if (now, sender) == (1, node):
            lab.keys[node + 1], lab.grid.nodes[node + 1] = Key(), lab.grid.nodes[node]  # Flower makes it a new node
            rotate(lab.enrolment, 1, lab.keys[node + 1].line)
        return reply

    lab.grid.tamper = tamper
    lines = lab.run().rounds
    assert [list(line.client_accuracy) for line in lines] == [[0, 1, 2]] * 3


@pytest.mark.parametrize(
    ("agreed", "claimed", "why"),
    [
        (500, 551, "it has 551 samples, and 500 were agreed on"),
        (500, 449, "it has 449 samples, and 500 were agreed on"),
        (None, 10**15, "it claims 1e+15 samples, expected 1 to 1000000000"),
        (None, 0, "it claims 0 samples"),
    ],
)
def test_samples_are_those_agreed_on(
    agreed: int | None, claimed: int, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = KeyedLab(tmp_path, method="fedavg", rounds=1)
    entries = [Enrolled(lab.client(node), key.line, agreed) for node, key in lab.keys.items() if lab.client(node) == 1]
    others = [Enrolled(lab.client(node), key.line) for node, key in lab.keys.items() if lab.client(node) != 1]
    write_enrolment(lab.enrolment, entries + others)
    lab.spoil(1, 0, lambda greeting: with_metric(greeting, "num-examples", claimed))
    (line,) = lab.run(min_nodes=2).rounds
    assert list(line.client_accuracy) == [0, 2]
    assert why in capsys.readouterr().out


def test_samples_do_not_change_in_a_run(tmp_path: Path) -> None:
    lab = KeyedLab(tmp_path, method="fedavg", rounds=2)
    lab.spoil(1, 2, lambda reply: with_metric(reply, "num-examples", 700))
    assert "it claims 700 samples, and" in lab.run().rounds[1].dropped[1]


def test_nor_by_going_and_coming_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab = KeyedLab(tmp_path, method="fedavg", rounds=2)
    node = lab.node(1)

    def tamper(now: int, sender: int, reply: Any) -> Any:
        if (now, sender) == (1, node):
            lab.keys[node + 1], lab.grid.nodes[node + 1] = Key(), lab.grid.nodes[node]
            rotate(lab.enrolment, 1, lab.keys[node + 1].line)
        return with_metric(reply, "num-examples", 700) if (now, sender) == (0, node + 1) else reply

    lab.grid.tamper = tamper
    first, second = lab.run(min_nodes=2).rounds
    assert (first.dropped, second.dropped) == ({}, {1: "not connected"})
    assert "it has 700 samples, and had " in capsys.readouterr().out
