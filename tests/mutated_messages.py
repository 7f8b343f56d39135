"""Recipes, messages and what a federation keeps, to be changed at random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict
from mutated import Kind, change_bytes

from fedssd.core import tree
from fedssd.flower import enrolment, journal
from fedssd.flower.certificates import write_node_key
from fedssd.flower.enrolment import enrol, read_enrolment, read_public, revoke
from fedssd.flower.journal import Journal, verify
from fedssd.flower.memory import InFolder, NodeMemory
from fedssd.flower.messages import Kind as Form
from fedssd.flower.messages import Order, Reply, answer, instruct, read_kind, read_order, read_reply
from fedssd.flower.packing import pack, unpack
from fedssd.recipe import load_recipe


def a_recipe(folder: Path) -> None:
    keys = {"method": "fedssd+scaffold", "data": "digits", "options": {"fedssd": {"m_max": 0.3}}, "rounds": 3}
    (folder / "recipe.toml").write_text(load_recipe(None, keys).to_toml())


def read_a_recipe(folder: Path) -> Any:
    """What can be read can be written and read again."""
    found = load_recipe(folder / "recipe.toml", {})
    (folder / "again.toml").write_text(found.to_toml(), encoding="utf-8")
    assert load_recipe(folder / "again.toml", {}) == found
    return found.hash


def a_reply(folder: Path) -> None:
    (folder / "reply").write_bytes(recorddict_to_proto(answer(like())).SerializeToString())


def like() -> Any:
    update = {"params": {"w": torch.arange(12.0).reshape(3, 4)}, "buffers": {"n": torch.ones(2, dtype=torch.float64)}}
    report = {"change": {"w": torch.ones(3)}, "empty": {}}
    return Reply(1, 2, True, update, report, 40, {"count": torch.tensor(40.0), "acc": {"a": torch.tensor(0.5)}}, 1.5)


def parsed(file: Path) -> Any:
    """As Flower reads the bytes; None for what it refuses, which never comes to us."""
    try:
        return recorddict_from_proto(RecordDict.FromString(file.read_bytes()))
    except Exception:  # Flower's own, of many kinds
        return None


def read_a_message(folder: Path) -> Any:
    content = parsed(folder / "reply")
    if content is None:
        return None
    found = read_reply(content, like())
    shapes = {name: (leaf.shape, leaf.dtype) for name, leaf in tree.flatten(found.update).items()}
    assert shapes == {name: (leaf.shape, leaf.dtype) for name, leaf in tree.flatten(like().update).items()}
    answer(found)
    return None


def an_order(folder: Path) -> None:
    sent = {"weights": like().update, "variate": {"w": torch.ones(3)}}
    order = Order("run7", 3, 2, sent, torch.ones(2, 4))
    form = Form((4,), "float32", ("a", "b"), (0.0, 1.0), (1.0, 2.0))
    (folder / "order").write_bytes(recorddict_to_proto(instruct(form, order)).SerializeToString())


def read_an_order(folder: Path) -> Any:
    content = parsed(folder / "order")
    if content is not None:
        instruct(read_kind(content), read_order(content, like().update))
    return None


def a_packed_tree(folder: Path) -> None:
    (folder / "tree").write_bytes(pack({"a": {"b": torch.arange(40.0), "c": {}}, "d": torch.ones(3, 4).double()}))


def read_a_packed_tree(folder: Path) -> Any:
    found = unpack((folder / "tree").read_bytes())
    assert pack(unpack(pack(found))) == pack(found)
    return None


def a_journal(folder: Path) -> None:
    book = Journal(folder, "door")
    for number in range(5):
        book.add("came in", client=number, address="192.0.2.1")
    HEADS.append(verify(folder / journal.FILE).head)


HEADS: list[str] = []


def read_a_journal(folder: Path) -> Any:
    verify(folder / journal.FILE, HEADS[-1])
    return (folder / journal.FILE).read_bytes().splitlines()[:5]  # lines may have been added since


def an_enrolment(folder: Path) -> None:
    for node in range(3):
        public = write_node_key(folder / f"node-{node}.key")
        enrol(folder / enrolment.FILE, read_public(public), node, 40)
    revoke(folder / enrolment.FILE, 1)
    for path in folder.glob("*.key"):
        path.unlink()


def read_an_enrolment(folder: Path) -> Any:
    read_enrolment(folder / enrolment.FILE)
    for node in range(3):
        read_public(folder / f"node-{node}.key.pub")
    return None


def a_memory(folder: Path) -> None:
    began, ended = {"w": torch.ones(4)}, {"w": torch.zeros(4)}
    NodeMemory(InFolder(folder), "run7").keep(1, began, 2, ended)


def read_a_memory(folder: Path) -> Any:
    NodeMemory(InFolder(folder), "run7").at(2, {"w": torch.full((4,), 7.0)})
    return None


KINDS = {
    "recipe": Kind(a_recipe, read_a_recipe, False),
    "reply": Kind(a_reply, read_a_message, False, change_bytes),
    "order": Kind(an_order, read_an_order, False, change_bytes),
    "packed tree": Kind(a_packed_tree, read_a_packed_tree, False, change_bytes),
    "journal": Kind(a_journal, read_a_journal, True),
    "enrolment": Kind(an_enrolment, read_an_enrolment, False),
    "memory": Kind(a_memory, read_a_memory, False),
}
