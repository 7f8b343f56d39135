"""The held-out check on a made-up round, whose model is one number and whose loss is its distance from 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from fedssd.core.contract import Auxiliary, ServerState
from fedssd.core.heldout import (
    IN_A_ROW,
    WORSE,
    Checked,
    Health,
    Safety,
    checked,
    cross_entropy,
    measured,
    too_bad,
    unmeasured,
)
from fedssd.core.net import Net, weights_of

CLASSES = 10
LIMIT = WORSE * math.log(CLASSES)  # 69.08
BEFORE = ServerState(4, 1.5, "local", "server")


class Round:
    """The mean of what the clients sent; it counts how often it is closed."""

    def __init__(self, *sent: float) -> None:
        self.sent, self.closed = sent, 0

    def close(self, places: Sequence[int]) -> ServerState:
        self.closed += 1
        kept = [self.sent[place] for place in places]
        return ServerState(5, sum(kept) / len(kept) if kept else BEFORE.weights, "new", "new")

    def check(self, health: Health = Health(best=2.0)) -> Checked:  # noqa: B008
        return checked(BEFORE, len(self.sent), self.close, loss, health, CLASSES)


def loss(weights: float) -> float:
    return abs(weights - 1.0)


@pytest.mark.quick
def test_a_sound_round_is_closed_once_and_kept_as_it_is() -> None:
    honest = Round(1.0, 2.0, 3.0)
    assert honest.check() == Checked(ServerState(5, 2.0, "new", "new"), [0, 1, 2], Health(1.0, 0, 1.0), 1.0)
    assert honest.closed == 1


@pytest.mark.quick
def test_the_one_who_spoils_it_is_left_out() -> None:
    found = Round(1.0, 2.0, 1000.0, 3.0).check(Health(best=2.0, failures=2))
    assert found == Checked(ServerState(5, 2.0, "new", "new"), [0, 1, 3], Health(1.0, 0, 1.0), 250.5)


@pytest.mark.quick
def test_two_who_spoil_it_are_left_out_one_after_the_other() -> None:
    assert Round(1.0, 2.0, 1000.0, 3.0, 9000.0).check().places == [0, 1, 3]


@pytest.mark.quick
def test_up_to_half_of_a_cohort_may_be_left_out() -> None:
    assert Round(2.0, 900.0).check().places == [0]
    assert Round(2.0, 900.0, 900.0).check().places == []  # two of three are too many
    assert Round(2.0, 3.0, 900.0, 900.0).check().places == [0, 1]
    assert Round(900.0).check().places == []


@pytest.mark.quick
def test_what_nobodys_absence_heals_is_rolled_back() -> None:
    """The state is that before the round, memories and all; only the round counts."""
    found = Round(900.0, 900.0, 900.0).check()
    assert found == Checked(ServerState(5, 1.5, "local", "server"), [], Health(best=2.0, failures=1), 899.0)


@pytest.mark.quick
@pytest.mark.parametrize("weights", [math.inf, math.nan])
def test_a_loss_that_is_no_number_is_too_bad(weights: float) -> None:
    assert Round(1.0, weights, 3.0).check().places == [0, 2]
    assert Round(weights, weights, weights).check().places == []


@pytest.mark.quick
def test_three_rollbacks_in_a_row_are_a_failed_run_and_one_good_round_starts_the_count_anew() -> None:
    health = Health(best=2.0)
    for count in range(1, IN_A_ROW + 1):
        assert not health.failed
        health = Round(900.0).check(health).health
        assert health.failures == count
    assert health.failed
    health = Health(best=2.0)
    for sent in (900.0, 900.0, 1.0, 900.0, 900.0):
        health = Round(sent).check(health).health
        assert not health.failed


@pytest.mark.quick
def test_a_round_without_replies_says_nothing_about_the_run() -> None:
    health = Health(best=2.0, failures=2)
    assert Round().check(health) == Checked(ServerState(5, 1.5, "new", "new"), [], health, math.inf)


@pytest.mark.quick
def test_the_limit_goes_by_guessing_or_by_a_worse_beginning() -> None:
    assert not too_bad(LIMIT - 0.01, Health(best=0.1), CLASSES)
    assert too_bad(LIMIT + 0.01, Health(best=0.1), CLASSES)
    assert not too_bad(LIMIT + 0.01, Health(best=5.0), CLASSES)
    assert too_bad(151.0, Health(best=5.0), CLASSES)
    assert too_bad(LIMIT + 0.01, Health(), CLASSES)
    assert not too_bad(0.0, Health(), 1)
    # A model of one's own that begins at a loss of 500 may come down from there.
    own = checked(BEFORE._replace(weights=501.0), 1, Round(401.0).close, loss, Health(), CLASSES)
    assert (own.places, own.health.best) == ([0], 400.0)


@pytest.mark.quick
def test_where_the_test_set_alone_is_measured_it_ends_a_run_and_does_nothing_else() -> None:
    health = measured(0.5, Health(), CLASSES)
    assert health == Health(best=0.5, now=0.0)
    for bad in (LIMIT + 1, math.inf, math.nan):
        health = measured(bad, health, CLASSES)
    assert health.failed
    assert health.best == 0.5
    assert Safety(health=health).good is None
    health = measured(0.6, health, CLASSES)
    assert Safety(health=health).good == 0.0  # in good order, and no better than another that is
    assert Safety(health=unmeasured(health)).good is None


class Doubled(nn.Module):
    """Logits 2x, and a parameter that has no part in them."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


@pytest.mark.quick
def test_the_loss_is_that_of_all_samples_in_parts() -> None:
    """600 samples of two classes with logits (2a, 0), of class 0: ln(1 + e^(−2a)) each."""
    a = torch.linspace(-3, 3, 600)
    samples = Auxiliary(torch.stack([a, torch.zeros(600)], dim=1), torch.zeros(600, dtype=torch.int64))
    expected = sum(math.log1p(math.exp(-2 * value)) for value in a.tolist()) / 600
    net, weights = Net(Doubled()), weights_of(Doubled())
    assert cross_entropy(net, weights, samples) == pytest.approx(expected, rel=1e-6)
    for factor in (math.nan, math.inf, 3e38):
        assert cross_entropy(net, {**weights, "params": {"factor": torch.tensor(factor)}}, samples) == math.inf
