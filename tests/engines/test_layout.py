"""How a batch of models narrows as they finish."""

from __future__ import annotations

from itertools import pairwise

from fedssd.engines.vectorised.layout import idle, ladder, rungs


def test_the_ladder_covers_every_step_and_has_six_rungs_at_most() -> None:
    steps = sorted([7, 90, 3, 40, 40, 12, 1, 66, 8, 25, 5], reverse=True)
    found = rungs(steps)
    assert len(found) <= 6
    assert found[0].first == 0
    assert found[-1].last == max(steps)
    assert all(a.last == b.first for a, b in pairwise(found))
    for rung in found:  # whoever still has steps to take is on the rung
        assert sum(count > rung.first for count in steps) <= rung.width
    assert ladder(10) == [10, 9, 7, 5, 4, 2]
    assert rungs([5, 5, 5]) == [(3, 0, 5)]


def test_with_a_rung_for_every_width_nobody_who_is_done_goes_along() -> None:
    steps = [9, 7, 7, 4, 1]
    assert ladder(5, 16) == [5, 4, 3, 2, 1]
    assert rungs(steps, 16) == [(5, 0, 1), (4, 1, 4), (3, 4, 7), (1, 7, 9)]
    assert not idle(steps, 16)
    assert idle(steps, 2)
    assert not idle([3, 3], 1)
