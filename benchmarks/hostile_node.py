"""A node that speaks Flower's protocol by itself, so that it can do what no SuperNode would.

It has a registered key and trains as it should, then answers every order three times: soundly, with other numbers, and
as if for another run. It uses Flower's internals as a SuperNode does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, Context, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_object_contents_from_iterable,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response
from httpx import HTTPError

from fedssd.flower import certificates
from fedssd.flower.app import recipe_in
from fedssd.flower.client import client_app
from fedssd.flower.local import LocalFederation, node_name
from fedssd.flower.samples import SAMPLES

ANOTHER_RUN = 7


@dataclass
class HostileNode:
    """One client of a trial, in a thread of this process; its SuperNode must have been ended."""

    trial: LocalFederation
    client: int
    sent: list[str] = field(default_factory=list)  # what it pushed, and whether the SuperLink wanted it
    _end: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> HostileNode:
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(60)

    def _work(self) -> None:
        key = load_ssh_private_key(certificates.node_key(self.trial.keys, self.client).read_bytes(), None)
        authority = str(self.trial.keys / certificates.AUTHORITY)
        app: Callable[[Message, Context], Message] = client_app(recipe_in(self.trial.app))
        with http_request_response(self.trial.address, False, authority, (key, key.public_key())) as connection:
            node, receive, send, _, _, pull_object, push_object, confirm = connection
            context = Context(1, node, self._config(), RecordDict(), {})
            while not self._end.wait(1.0):
                found = receive()
                if found is None:
                    continue
                bare, objects = found
                number, run = bare.metadata.message_id, bare.metadata.run_id
                TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, node
                names = [one.object_id for one in iterate_object_tree(objects)]
                order: Any = inflate_object_from_contents(number, pull_objects(names, partial(pull_object, run)))
                confirm(run, number)
                order.metadata.__dict__["_message_id"] = number
                for what, reply in _several(app(order, context)):
                    reply.metadata.__dict__["_message_id"] = reply.object_id
                    try:
                        wanted, session = send(remove_content_from_message(reply), get_object_tree(reply), 0.1)
                    except HTTPError as error:
                        self.sent.append(f"{what}: {str(error).splitlines()[0]}")
                        continue
                    parts = get_all_nested_objects(reply).items()
                    contents = ((one, part.deflate()) for one, part in parts if one in wanted)
                    push_object_contents_from_iterable(contents, push_object_fn=partial(push_object, run, session))
                    self.sent.append(f"{what}: {'taken' if wanted else 'not wanted'}")

    def _config(self) -> dict[str, Any]:
        name = node_name(self.client)
        samples, state = self.trial.place / "samples" / name / SAMPLES, self.trial.place / name / "state"
        return {"partition-id": self.client, "data-path": str(samples), "state-path": str(state)}


def _several(reply: Message) -> Iterator[tuple[str, Message]]:
    """A greeting as it is; a round's reply three times."""
    yield "a sound reply", reply
    if "weights" in reply.content:
        other = _copy(reply)
        weights = other.content.array_records["weights"]
        for name in list(weights):
            weights[name] = Array(weights[name].numpy() * 1000)
        yield "a second one to the same message", other
        stray = _copy(reply)
        stray.metadata.__dict__["_run_id"] = ANOTHER_RUN
        yield "one of another run", stray


def _copy(message: Message) -> Message:
    proto = message_to_proto(message)
    return message_from_proto(type(proto).FromString(proto.SerializeToString()))
