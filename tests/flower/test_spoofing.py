"""One node's key and another node's name: Flower's SuperLink takes such a reply, and the door does not.

The SuperLink's app runs in this process, with node authentication on; what it is asked is signed here as a node would.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.main import create_app
from signing import Key

from fedssd.flower.door import Door
from fedssd.flower.enrolment import FILE, Enrolled, Enrolment, write_enrolment
from fedssd.flower.journal import Sparing
from fedssd.flower.relay import Relay

PUSH = "/v1/fleet/push-messages"
OURS, THEIRS = Key(), Key()


class SuperLink:
    """Flower's app, with two nodes and a run that has asked the second for something."""

    def __init__(self) -> None:
        self.app = create_app(None)
        self.app.state.enable_supernode_auth = True
        state = self.app.state.linkstate_factory.state()
        self.nodes = [state.create_node("<id:none>", "none", key.pem, 30.0) for key in (OURS, THEIRS)]
        assert all(state.activate_node(node, 30.0) for node in self.nodes)
        run = state.create_run("a/b", "1", "hash", {}, "@none/default", None, "<id:none>", "flwr-serverapp")
        for task in state.get_tasks(run_ids=[run]):
            state.claim_task(task.task_id)
            state.activate_task(task.task_id)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, 1
        order = Message(RecordDict({"c": ConfigRecord({"x": 1})}), self.nodes[1], MessageType.TRAIN, ttl=600.0)
        order.metadata.__dict__.update(_run_id=run, _src_node_id=1, _message_id=order.object_id)
        assert state.store_message_and_object_tree(order, get_object_tree(order), state.start_session(run))[0]
        self.reply = Message(RecordDict({"c": ConfigRecord({"evil": 1})}), reply_to=order)
        self.reply.metadata.__dict__["_message_id"] = self.reply.object_id

    def push(self, node: int) -> bytes:
        """The second node's reply, in a request of one of the nodes."""
        messages, trees = [message_to_proto(self.reply)], [get_object_tree(self.reply)]
        said = PushMessagesRequest(node=Node(node_id=node), messages_list=messages, message_object_trees=trees)
        return said.SerializeToString()


def post(app: Any, key: Key, body: bytes) -> int:
    async def go() -> int:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="https://superlink") as client:
            headers = [*key.headers(), ("accept", "application/protobuf")]
            return (await client.post(PUSH, headers=headers, content=body)).status_code

    return asyncio.run(go())


@pytest.fixture
def superlink() -> SuperLink:
    return SuperLink()


def behind(superlink: SuperLink, folder: Path) -> Door:
    """The door, with that app behind it."""
    write_enrolment(folder / FILE, [Enrolled(0, OURS.line), Enrolled(1, THEIRS.line)])
    relay = Relay.__new__(Relay)
    relay._client = httpx.AsyncClient(transport=httpx.ASGITransport(superlink.app), base_url="https://superlink")
    return Door(Enrolment(folder / FILE), relay, Sparing(lambda what, **facts: None))


def test_flower_takes_a_reply_in_another_s_name(superlink: SuperLink) -> None:
    """The day this fails Flower has mended it, and the door's check is one of two."""
    assert superlink.reply.metadata.src_node_id == superlink.nodes[1]
    assert post(superlink.app, OURS, superlink.push(superlink.nodes[0])) == 200


def test_the_door_does_not(superlink: SuperLink, tmp_path: Path) -> None:
    assert post(behind(superlink, tmp_path), OURS, superlink.push(superlink.nodes[0])) == 403
    assert post(behind(superlink, tmp_path), OURS, superlink.push(superlink.nodes[1])) == 401, "Flower's own check"
    assert post(behind(superlink, tmp_path), THEIRS, superlink.push(superlink.nodes[1])) == 200
