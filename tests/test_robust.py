"""Median, trimmed mean, Krum and clipping: against their witnesses, and what they promise about clients that lie."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import witness_robust
from conftest import just, make_scene
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedssd.core.contract import Local, Server
from fedssd.core.tree import Tree
from fedssd.methods.registry import SERVERS, build_server
from fedssd.methods.servers.clipping import Clipping
from fedssd.methods.servers.krum import Krum
from fedssd.methods.servers.median import Median
from fedssd.methods.servers.trimmed_mean import TrimmedMean

TOLERANCE = 1e-10
CASES: list[tuple[Server, witness_robust.Combine]] = [
    (Median(), witness_robust.median),
    (TrimmedMean(0), witness_robust.trimmed_mean(0)),
    (TrimmedMean(1), witness_robust.trimmed_mean(1)),
    (TrimmedMean(7), witness_robust.trimmed_mean(7)),
    (Krum(0), witness_robust.krum(0, 1)),
    (Krum(1), witness_robust.krum(1, 1)),
    (Krum(0, keep=2), witness_robust.krum(0, 2)),
    (Clipping(), witness_robust.clipping(1.0, True)),
    (Clipping(0.5), witness_robust.clipping(0.5, True)),
    (Clipping(0.3, relative=False), witness_robust.clipping(0.3, False)),
]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "batch-norm"])
def scene(request: pytest.FixtureRequest) -> Any:
    """Three cohorts, one of them of four clients, so that medians of odd and even numbers occur."""
    made = make_scene(batch_norm=request.param)
    return made.but(cohorts=[[0, 1, 3], [1, 2, 3, 4], [0, 2, 4]])


@pytest.mark.parametrize("engine", ["reference", "vectorised"])
@pytest.mark.parametrize(("server", "combine"), CASES, ids=[repr(server) for server, _ in CASES])
def test_a_robust_half_equals_its_witness(
    scene: Any, fedavg: list[Any], server: Server, combine: witness_robust.Combine, engine: str
) -> None:
    last, plain = scene.ours(Local(), server, engine)[-1], fedavg[-1]
    found, mean = ({**one.state.weights["params"], **one.state.weights["buffers"]} for one in (last, plain))
    expected = witness_robust.train(scene.model, scene.task, combine)
    assert found.keys() == {key for key in expected if not key.endswith("num_batches_tracked")}
    assert max(float((found[key] - expected[key]).abs().max()) for key in found) <= TOLERANCE
    assert max(float((found[key] - mean[key]).abs().max()) for key in found) > 1e-4  # and it is not FedAvg


# ------------------------------------------------------------------------------------------- laws


def combined(server: Server, clients: Tensor, before: Tensor | None = None, share: Tensor | None = None) -> Tensor:
    """One tensor of parameters through a server half; clients stacked [C, P]."""
    before = torch.zeros_like(clients[0]) if before is None else before
    share = torch.full((len(clients),), 1 / len(clients), dtype=clients.dtype) if share is None else share
    weights: Tree = {"params": {"w": before}, "buffers": {}}
    got = {"params": {"w": clients}, "buffers": {}}
    found, memory = server.combine(None, weights, {}, got, just(share))  # type: ignore[arg-type]
    assert memory == {}
    value: Tensor = found["params"]["w"]
    return value


def cohort(seed: int, clients: int, size: int = 6) -> Tensor:
    return torch.randn(clients, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


seeds, sizes = st.integers(0, 2**31), st.integers(1, 9)
unhurried = settings(max_examples=60, deadline=None)
ROBUST = [Median(), TrimmedMean(), Krum(), Krum(keep=3), Clipping()]


@unhurried
@given(seed=seeds, clients=sizes, server=st.sampled_from(ROBUST))
def test_of_identical_updates_comes_that_update(seed: int, clients: int, server: Server) -> None:
    one = cohort(seed, 1)
    torch.testing.assert_close(combined(server, one.expand(clients, -1)), one[0], rtol=0, atol=1e-14)


@unhurried
@given(seed=seeds, clients=sizes)
def test_cutting_nothing_is_the_unweighted_mean(seed: int, clients: int) -> None:
    got, share = cohort(seed, clients), torch.arange(1, clients + 1, dtype=torch.float64)
    found = combined(TrimmedMean(0), got, share=share / share.sum())
    torch.testing.assert_close(found, got.sum(0) / clients, rtol=0, atol=1e-14)


@unhurried
@given(seed=seeds, clients=sizes)
def test_an_infinite_bound_is_fedavg(seed: int, clients: int) -> None:
    got, before = cohort(seed, clients), cohort(seed + 1, 1)[0]
    share = torch.arange(1, clients + 1, dtype=torch.float64)
    share = share / share.sum()
    for relative in (True, False):
        found = combined(Clipping(math.inf, relative), got, before, share)
        torch.testing.assert_close(found, combined(Server(), got, before, share), rtol=0, atol=1e-13)


@unhurried
@given(
    seed=seeds, honest=st.integers(2, 7), liars=st.integers(1, 4), size=st.sampled_from([1.0, 1e6, -1e300, math.nan])
)
def test_a_minority_cannot_pull_a_coordinate_out_of_the_honest_range(
    seed: int, honest: int, liars: int, size: float
) -> None:
    """Median with fewer than half lying; trimmed mean that cuts as many as lie. NaN counts as the largest value."""
    liars = min(liars, honest - 1)
    good = cohort(seed, honest)
    got = torch.cat([good, size * (1 + cohort(seed + 1, liars).abs())])
    for server in (Median(), TrimmedMean(liars)):
        found = combined(server, got[torch.randperm(len(got), generator=torch.Generator().manual_seed(seed))])
        assert bool((good.min(0).values - 1e-12 <= found).all())
        assert bool((found <= good.max(0).values + 1e-12).all())


@unhurried
@given(seed=seeds, bad=st.integers(0, 3), apart=st.sampled_from([1e2, 1e5, 1e150, math.nan]))
def test_krum_picks_from_the_cluster(seed: int, bad: int, apart: float) -> None:
    """2f + 3 clients, f of them far from the rest and from each other: the chosen one is of the cluster."""
    honest = bad + 3
    got = cohort(seed, honest + bad)
    got[honest:] *= apart
    order = torch.randperm(len(got), generator=torch.Generator().manual_seed(seed))
    cluster = {int((order == place).nonzero()) for place in range(honest)}
    one = combined(Krum(bad), got[order])
    assert any(torch.equal(one, got[order][place]) for place in cluster)
    several = combined(Krum(bad, keep=honest), got[order])
    torch.testing.assert_close(several, got[:honest].mean(0), rtol=0, atol=1e-12)


@unhurried
@given(seed=seeds, clients=st.integers(1, 9), liar=st.sampled_from([1.0, 1e3, -1e12]))
def test_a_clipped_client_moves_the_model_by_no_more_than_its_share_of_the_bound(
    seed: int, clients: int, liar: float
) -> None:
    got, before = cohort(seed, clients), cohort(seed + 1, 1)[0]
    got[0] = before + liar * (got[0] - before)
    norms = (got - before).norm(dim=1)
    share = torch.rand(clients, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    share = share / share.sum()
    for server, bound in ((Clipping(0.7), 0.7 * norms.quantile(0.5)), (Clipping(2.0, False), torch.tensor(2.0))):
        difference = combined(server, got, before, share) - combined_without_first(server, got, before, share)
        assert float(difference.norm()) <= float(share[0] * bound) * (1 + 1e-9)
        moved = combined(server, got, before, share) - before
        assert float(moved.norm()) <= float(bound) * (1 + 1e-9)


def combined_without_first(server: Clipping, got: Tensor, before: Tensor, share: Tensor) -> Tensor:
    """The same bound, the first client staying where it was: it adds nothing to the sum."""
    norms = (got - before).norm(dim=1)
    bound = server.bound * float(norms.quantile(0.5)) if server.relative else server.bound
    still = got.clone()
    still[0] = before
    return combined(Clipping(bound, relative=False), still, before, share)


@pytest.mark.quick
def test_by_hand() -> None:
    got = torch.tensor([[1.0], [2.0], [4.0], [100.0]], dtype=torch.float64)
    assert combined(Median(), got).item() == 3.0  # (2 + 4) / 2
    assert combined(Median(), got[:3]).item() == 2.0
    assert combined(TrimmedMean(1), got).item() == 3.0
    assert combined(TrimmedMean(9), got[:3]).item() == 2.0  # all but the middle
    # Scores with f = 1, one nearest other: 1², 1², 2², 96².
    assert combined(Krum(1), got).item() == 1.0
    # Two others: 1 + 9, 1 + 4, 4 + 9, 96² + 98².
    assert combined(Krum(0), got).item() == 2.0
    assert combined(Krum(0, keep=2), got).item() == 1.5
    # Norms 1, 2, 4, 100, median 3: (1 + 2 + 3 + 3) / 4.
    assert combined(Clipping(), got).item() == pytest.approx(2.25)
    assert combined(Clipping(2.0, relative=False), got).item() == pytest.approx((1 + 2 + 2 + 2) / 4)


@pytest.mark.quick
@pytest.mark.parametrize("name", witness_robust.SERVERS)
def test_tables_of_integers_stay(name: str) -> None:
    table = torch.tensor([[3, 1, 2]] * 4)
    weights = {"params": {"w": torch.zeros(1)}, "buffers": {"order": table[0]}}
    got = {"params": {"w": torch.ones(4, 1)}, "buffers": {"order": table}}
    found, _ = SERVERS[name]().combine(None, weights, {}, got, just(torch.ones(4) / 4))  # type: ignore[arg-type]
    assert torch.equal(found["buffers"]["order"], table[0])


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("trimmed-mean", {"cut": -1}, "trimmed-mean.cut"),
        ("krum", {"bad": -1}, "krum expects bad"),
        ("krum", {"keep": 0}, "krum expects bad"),
        ("clipping", {"bound": -1.0}, "not negative"),
        ("clipping", {"bound": 0}, "above 0"),
        ("clipping", {"bound": "far"}, "a number"),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build_server(name, {name: options})
