"""What travels between a node and a SuperLink, where we read it; Flower keeps the form of it between releases."""

from __future__ import annotations

from fedssd.errors import UserError

try:
    from flwr.proto.fab_pb2 import GetFabResponse
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.node_pb2 import NodeInfo
    from google.protobuf.message import DecodeError
except ImportError as error:
    raise UserError(
        f"federations run on Flower, which cannot be imported ({error}): install it with `pip install 'fedssd[flower]'`"
    ) from error

__all__ = ["DecodeError", "GetFabResponse", "NodeInfo", "PushMessagesRequest"]
