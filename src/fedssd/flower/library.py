"""The one place that imports Flower, and only its public modules: they move between releases."""

from __future__ import annotations

from fedssd.errors import UserError

PINNED = "1.41.0"  # pyproject.toml pins the same

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
    "PINNED",
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
