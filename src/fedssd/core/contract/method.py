"""A whole method, and which halves do not go together."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedssd.core.contract.local import Local, overrides, parts_of
from fedssd.core.contract.server import Server
from fedssd.core.solver import SGD


@dataclass(frozen=True)
class Method:
    """A whole method: local half × server half × solver."""

    local: Local = field(default_factory=Local)
    server: Server = field(default_factory=Server)
    solver: SGD = field(default_factory=SGD)

    def __post_init__(self) -> None:
        reason = meaningless(self.local, self.server)
        if reason:
            raise ValueError(reason)

    @property
    def needs_auxiliary(self) -> bool:
        return self.server.needs_auxiliary or any(part.needs_auxiliary for part in parts_of(self.local))

    @property
    def needs_head(self) -> bool:
        return any(part.needs_head for part in parts_of(self.local))

    @property
    def reads_data(self) -> bool:
        return any(part.reads_data for part in parts_of(self.local))


def meaningless(local: Local, server: Server) -> str:
    """Why these two halves cannot go together, or nothing."""
    if not local.shares_weights and type(server) is not Server:
        return (
            f"method {local.name!r} shares no weights, and server half {server.name!r} combines weights: "
            f"leave the server half out"
        )
    for part in parts_of(local):
        if server.moves_units and part.tied_to_places:
            return (
                f"method {part.name!r} does not go with server half {server.name!r}: {part.tied_to_places} belong to "
                f"hidden units by their place, and {server.name!r} moves units to other places between rounds"
            )
    lengths = [f"server half {server.name!r}"] * server.needs_length
    lengths += [f"method {part.name!r}" for part in parts_of(local) if part.needs_length]
    settles = [part.name for part in parts_of(local) if overrides(part, "settle")]
    if lengths and settles:
        return (
            f"{lengths[0]} divides by the length that the solver walked, and {settles[0]!r} moves the weights after "
            "each step, too: take one of them"
        )
    return ""
