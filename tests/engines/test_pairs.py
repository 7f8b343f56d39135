"""Every local half with every server half, with and without batch norm: both engines agree over five rounds.

Pairs that mean nothing together, and models that a server half cannot combine, are refused with the reason instead.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_vectorised import Setting, assert_agree, several

from fedssd.core.contract import Method, Server
from fedssd.errors import UserError
from fedssd.methods.registry import LOCALS, SERVERS, refuse_pair
from fedssd.methods.servers.feddf import FedDF

PAIRS = [(local, server) for local in LOCALS for server in SERVERS]
REFUSED = [(local, server) for local, server in PAIRS if LOCALS[local].tied_to_places and SERVERS[server].moves_units]


def short(server: Server) -> Server:
    """A few steps of server training say as much as a hundred."""
    return replace(server, steps=4) if isinstance(server, FedDF) else server


@pytest.mark.parametrize("batch_norm", [False, True], ids=["plain", "batch-norm"])
@pytest.mark.parametrize(("local", "server"), [pair for pair in PAIRS if pair not in REFUSED])
def test_pair_agrees_with_the_reference(local: str, server: str, batch_norm: bool) -> None:
    methods = [Method(m.local, short(m.server), m.solver) for m in several(local, 2, SERVERS[server])]
    setting = Setting(batch_norm)
    if batch_norm and SERVERS[server].moves_units:
        with pytest.raises(ValueError, match="batch norm"):
            methods[0].server.check(setting.net, setting.weights, setting.auxiliary.x)
        return
    refuse_pair(methods[0].local, methods[0].server)
    assert_agree(setting, methods)


@pytest.mark.parametrize(("local", "server"), REFUSED)
def test_pair_is_refused_with_the_reason(local: str, server: str) -> None:
    with pytest.raises(UserError, match=f"'{local}' does not go with server half '{server}': .* by their place"):
        refuse_pair(LOCALS[local](), SERVERS[server]())
    with pytest.raises(UserError, match=f"'{local}' does not go"):
        refuse_pair(LOCALS["fedavg"]() + LOCALS[local](), SERVERS[server]())


def test_the_refused_pairs_are_those_whose_memory_permutation_would_spoil() -> None:
    assert set(REFUSED) == {
        (local, server) for local in ("scaffold", "moon", "fedcurv", "fedgkd") for server in ("pfnm", "fedma")
    }
