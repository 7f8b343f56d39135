"""Every local half with every server half, with and without batch norm: both engines agree over some rounds.

Three of them are enough for clients that return with a memory, some after a round that they sat out; every local half
plays five in ``test_vectorised``. A server half that moves units plays five here too, as FedMA then begins again.
Pairs that mean nothing together, and models that a server half cannot combine, are refused with the reason instead.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from cohorts import ROUNDS, Setting, assert_agree, several

from fedssd.core.contract import Method, Server, meaningless
from fedssd.errors import UserError
from fedssd.methods.registry import LOCALS, SERVERS, check_pair
from fedssd.methods.servers.feddf import FedDF


def short(server: Server) -> Server:
    """A few steps of server training say as much as a hundred."""
    return replace(server, steps=4) if isinstance(server, FedDF) else server


REFUSED = [pair for pair in product(LOCALS, SERVERS) if meaningless(LOCALS[pair[0]](), SERVERS[pair[1]]())]
PAIRS = [pair for pair in product(LOCALS, SERVERS) if pair not in REFUSED]


def seldom(local: str, server: str) -> bool:
    """Whether a pair is left to the longer checks: each of its halves is met in another pair here."""
    return server != "fedavg" and local != "fedssd"


@pytest.mark.parametrize(
    ("local", "server", "batch_norm"),
    [
        pytest.param(*pair, batch_norm, id="-".join([*pair, name]), marks=[pytest.mark.slow] * seldom(*pair))
        for batch_norm, name in ((False, "plain"), (True, "batch-norm"))
        for pair in PAIRS
    ],
)
def test_pair_agrees_with_the_reference(local: str, server: str, batch_norm: bool) -> None:
    setting = Setting(batch_norm)
    if batch_norm and SERVERS[server].moves_units:
        with pytest.raises(ValueError, match="batch norm"):
            SERVERS[server]().check(setting.net, setting.weights, setting.auxiliary.x)
        return
    methods = [Method(m.local, short(m.server), m.solver) for m in several(local, 2, SERVERS[server])]
    assert_agree(setting, methods, rounds=ROUNDS if SERVERS[server].moves_units else 3)


@pytest.mark.parametrize(("local", "server"), REFUSED)
def test_pair_is_refused_with_the_reason(local: str, server: str) -> None:
    with pytest.raises(UserError, match=f"method '{local}' .* server half '{server}'.*:"):
        check_pair(LOCALS[local](), SERVERS[server]())
    with pytest.raises(ValueError, match=f"method '{local}'"):
        Method(LOCALS[local](), SERVERS[server]())


def test_servers_that_move_units_refuse_what_belongs_to_a_unit_s_place() -> None:
    found = {(local, server) for local, server in REFUSED if SERVERS[server].moves_units}
    assert found >= set(product(("scaffold", "moon", "fedcurv", "fedgkd"), ("pfnm", "fedma")))
    assert not found & set(product(("fedavg", "fedprox", "fedssd", "fedntd"), ("pfnm", "fedma")))
    with pytest.raises(UserError, match="'scaffold' does not go with server half 'pfnm'"):
        check_pair(LOCALS["fedssd"]() + LOCALS["scaffold"](), SERVERS["pfnm"]())
