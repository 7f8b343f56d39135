"""Every local half with every server half that is not refused: both engines agree over five rounds."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from test_vectorised import Setting, assert_agree, several

from fedssd.core.contract import Method, Server, meaningless
from fedssd.methods.registry import LOCALS, SERVERS
from fedssd.methods.servers.feddf import FedDF


def short(server: Server) -> Server:
    """A few steps of server training say as much as a hundred."""
    return replace(server, steps=4) if isinstance(server, FedDF) else server


PAIRS = [pair for pair in product(LOCALS, SERVERS) if not meaningless(LOCALS[pair[0]](), SERVERS[pair[1]]())]


@pytest.mark.parametrize("batch_norm", [False, True], ids=["plain", "batch-norm"])
@pytest.mark.parametrize(("local", "server"), PAIRS)
def test_pair_agrees_with_the_reference(local: str, server: str, batch_norm: bool) -> None:
    methods = [Method(m.local, short(m.server), m.solver) for m in several(local, 2, SERVERS[server])]
    assert_agree(Setting(batch_norm), methods)
