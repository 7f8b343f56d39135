"""Real federations, over Flower: the apps of server and nodes, what travels, what a node remembers, a local trial.

Only ``library``, ``wire`` and ``superlink`` import flwr, and nothing outside this package imports them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["client_app", "server_app"]

if TYPE_CHECKING:
    from fedssd.flower.client import client_app
    from fedssd.flower.server import server_app

_HOMES = {"client_app": "fedssd.flower.client", "server_app": "fedssd.flower.server"}


def __getattr__(name: str) -> object:
    """Import on first use: certificates and settings need neither torch nor flwr."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedssd.flower' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
