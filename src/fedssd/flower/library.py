"""What the apps use of Flower, from its public modules only: others move between releases.

Beside this module ``wire`` imports the messages that travel, and ``superlink`` the class that decides who gives orders.
"""

from __future__ import annotations

from fedssd.errors import UserError
from fedssd.flower.command import PINNED

try:
    from flwr.app import (
        Array,
        ArrayRecord,
        ConfigRecord,
        Context,
        Message,
        MessageType,
        MetricRecord,
        RecordDict,
    )
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import Strategy
except ImportError as error:
    raise UserError(
        f"federations run on Flower {PINNED}, which cannot be imported ({error}): install it with "
        "`pip install 'fedssd[flower]'`"
    ) from error

__all__ = [
    "Array",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "Grid",
    "Message",
    "MessageType",
    "MetricRecord",
    "RecordDict",
    "ServerApp",
    "Strategy",
]
