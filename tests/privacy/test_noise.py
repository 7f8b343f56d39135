"""Bounded updates and noise: against arithmetic, the variance by chi², and a client that lies."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, kstest

from fedssd.core import tree
from fedssd.core.tree import Tree
from fedssd.privacy.noise import bounded, fresh_seed, noised, released, standard_normal

pytestmark = pytest.mark.quick
SHAPES = {"a": (40, 25), "b": (7,)}


def weights(seed: int, scale: float = 1.0) -> Tree:
    draw = torch.Generator().manual_seed(seed)
    return {name: scale * torch.randn(shape, generator=draw) for name, shape in SHAPES.items()}


def norm(one: Tree) -> float:
    return math.sqrt(sum(float(leaf.double().square().sum()) for leaf in tree.leaves(one)))


@given(st.floats(1e-6, 1e30), st.floats(1e-3, 10))
def test_no_update_is_longer_than_the_clip_and_a_short_one_stays(scale: float, clip: float) -> None:
    sent, got = weights(0), weights(1, scale)
    change = tree.map_tree(lambda new, old: new.double() - old.double(), got, sent)
    found = bounded(sent, got, clip)
    assert norm(found) == pytest.approx(min(clip, norm(change)), rel=1e-9)
    assert float(found["b"][0]) / norm(found) == pytest.approx(float(change["b"][0]) / norm(change), rel=1e-9)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_counts_as_zero(wrong: float) -> None:
    got = weights(1)
    got["b"][3] = wrong
    assert norm(bounded(weights(0), got, 1.0)) == 0


@given(st.integers(0, 5), st.sampled_from([1e-3, 1.0, 100.0, 1e38, math.nan]))
def test_one_client_moves_the_mean_by_no_more_than_the_clip_over_the_cohort(place: int, scale: float) -> None:
    """Absent or present: C/m; whatever it sends in place of what it sent: 2C/m."""
    sent, clip = tree.cast(weights(0), torch.float64), 0.7
    others = [tree.cast(weights(seed), torch.float64) for seed in range(1, 7)]
    lie = [*others]
    lie[place] = tree.cast(weights(9, scale), torch.float64)
    without = [one for at, one in enumerate(others) if at != place]
    mean, lied, less = (released(sent, tree.stack(one), clip, 0.0, 6, b"") for one in (others, lie, without))
    assert norm(tree.subtract(mean, less)) <= clip / 6 * (1 + 1e-9)
    assert norm(tree.subtract(lied, less)) <= clip / 6 * (1 + 1e-9)
    assert norm(tree.subtract(mean, lied)) <= 2 * clip / 6 * (1 + 1e-9)


def test_who_is_missing_counts_as_zero_over_the_whole_cohort() -> None:
    """Two of eight replied, each a known step within the clip: the sum is divided by eight."""
    sent = {"w": torch.zeros(3, dtype=torch.float64)}
    got = {"w": torch.tensor([[0.8, 0.0, 0.0], [0.0, 0.4, 0.0]], dtype=torch.float64)}
    assert released(sent, got, 1.0, 0.0, 8, b"")["w"].tolist() == pytest.approx([0.1, 0.05, 0.0])
    nobody = released(sent, {"w": got["w"][:0]}, 1.0, 2.0, 8, bytes(32))
    assert torch.equal(nobody["w"], 0.25 * standard_normal(bytes(32), "w", torch.Size([3])))  # 2/8 of the same noise


def test_the_variance_of_a_released_mean_is_that_of_the_noise() -> None:
    """Σ x²/σ² of n numbers with deviation σ = zC/m is chi² of n degrees: within its 1e-6 and 1 − 1e-6 quantiles."""
    clip, multiplier, cohort = 0.5, 3.0, 12
    sent, got = tree.cast(weights(0), torch.float64), tree.stack([tree.cast(weights(0), torch.float64)] * 5)
    expected = multiplier * clip / cohort
    total, count = 0.0, 0
    for round_ in range(20):
        after = released(sent, got, clip, multiplier * clip, cohort, fresh_seed(3, round_))
        noise = torch.cat([leaf.flatten() for leaf in tree.leaves(tree.subtract(after, sent))])
        total, count = total + float((noise / expected).square().sum()), count + len(noise)
    assert count == 20 * 1007
    assert chi2.ppf(1e-6, count) < total < chi2.ppf(1 - 1e-6, count)


def test_noise_is_normal_and_another_for_every_leaf_round_and_client() -> None:
    drawn = [
        standard_normal(fresh_seed(1, *place), name, torch.Size([2000]))
        for place in ((0,), (1,), (0, 1), (1, 0))
        for name in ("a", "b")
    ]
    assert all(kstest(one.numpy(), "norm").pvalue > 1e-6 for one in drawn)
    together = torch.stack(drawn)
    assert float((torch.corrcoef(together) - torch.eye(8)).abs().max()) < 0.12  # 1/√2000 = 0.022
    assert len({float(one[0]) for one in drawn}) == 8


def test_the_system_is_asked_for_32_bytes_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("os.urandom", lambda count: asked.append(count) or bytes([len(asked)]) * count)
    assert fresh_seed(-1, 0) != fresh_seed(-1, 0)
    assert asked == [32, 32]
    assert fresh_seed(0, 0) == fresh_seed(0, 0)
    assert len(asked) == 2


def test_a_client_s_own_noise_is_on_its_bounded_update() -> None:
    sent, got = weights(0), weights(1, 50.0)
    quiet = noised(sent, got, 0.3, 0.0, bytes(32))
    assert norm(tree.subtract(quiet, sent)) == pytest.approx(0.3, rel=1e-5)  # of float32
    loud = noised(sent, got, 0.3, 2.0, bytes(32))
    assert norm(tree.subtract(loud, quiet)) == pytest.approx(2.0 * math.sqrt(1007), rel=0.1)
