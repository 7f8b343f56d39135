"""What a federated method is: a local half, a server half and a solver, each a frozen value of pure functions.

A method never sees a loop, a device, a file or a socket. Every hook has a default, so a method overrides two or three.
Fields annotated ``float`` are numbers: an engine may run several values of them side by side, so a hook receives a
Python float or a 0-d tensor and must treat both alike. All other fields are static.

Read :mod:`~fedssd.core.contract.local` first, then :mod:`~fedssd.core.contract.server`; what their hooks are given is
in :mod:`~fedssd.core.contract.exchanged`.
"""

from fedssd.core.contract.exchanged import (
    Auxiliary,
    Batch,
    ClientData,
    Closing,
    Reports,
    ServerState,
    Work,
    mean_over,
)
from fedssd.core.contract.local import Local, Sum, overrides, parts_of, uploads_weights
from fedssd.core.contract.method import Method, meaningless
from fedssd.core.contract.numbers import numbers_of, with_numbers
from fedssd.core.contract.server import Server, unmixable

__all__ = [
    "Auxiliary",
    "Batch",
    "ClientData",
    "Closing",
    "Local",
    "Method",
    "Reports",
    "Server",
    "ServerState",
    "Sum",
    "Work",
    "mean_over",
    "meaningless",
    "numbers_of",
    "overrides",
    "parts_of",
    "unmixable",
    "uploads_weights",
    "with_numbers",
]
