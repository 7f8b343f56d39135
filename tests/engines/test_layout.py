"""How a batch of models narrows as they finish."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedssd.engines.vectorised import layout
from fedssd.engines.vectorised.layout import alike, fitted, idle, ladder, rungs


def test_the_ladder_covers_every_step_and_has_six_rungs_at_most() -> None:
    steps = sorted([7, 90, 3, 40, 40, 12, 1, 66, 8, 25, 5], reverse=True)
    for widths in (ladder(len(steps)), fitted(tuple(steps))):
        assert_covered(steps, widths)
    assert ladder(10) == [10, 9, 7, 5, 4, 2]
    assert rungs([5, 5, 5], ladder(3)) == rungs([5, 5, 5], fitted((5, 5, 5))) == [(3, 0, 5)]


def assert_covered(steps: list[int], widths: list[int]) -> None:
    found = rungs(steps, widths)
    assert len(found) <= 6
    assert found[0].first == 0
    assert found[-1].last == max(steps)
    assert all(a.last == b.first for a, b in pairwise(found))
    for rung in found:  # whoever still has steps to take is on the rung
        assert sum(count > rung.first for count in steps) <= rung.width


def models_steps(steps: list[int], widths: list[int]) -> int:
    return sum(width * (last - first) for width, first, last in rungs(steps, widths))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(1, 4))
def test_fitted_widths_waste_least(steps: list[int], most: int) -> None:
    steps.sort(reverse=True)
    others = range(1, len(steps))
    tried = [
        models_steps(steps, [len(steps), *reversed(some)]) for k in range(most) for some in combinations(others, k)
    ]
    assert models_steps(steps, fitted(tuple(steps), most)) == min(tried)


def test_of_very_many_lengths_some_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MOST_ENDS", 3)
    steps = list(range(40, 0, -1))
    fitted.cache_clear()
    assert_covered(steps, fitted(tuple(steps)))
    fitted.cache_clear()


def test_with_a_rung_for_every_width_nobody_who_is_done_goes_along() -> None:
    steps = [9, 7, 7, 4, 1]
    assert ladder(5, 16) == [5, 4, 3, 2, 1]
    assert (
        rungs(steps, ladder(5, 16))
        == rungs(steps, fitted(tuple(steps)))
        == [(5, 0, 1), (4, 1, 4), (3, 4, 7), (1, 7, 9)]
    )
    assert not idle(steps, ladder(5, 16))
    assert idle(steps, ladder(5, 2))
    assert not idle([3, 3], [2])


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.integers(1, 70))
def test_who_reads_together_has_about_as_much(counts: list[int], most: int) -> None:
    samples = sorted(counts, reverse=True)
    parts = [samples[part] for part in alike(samples, most)]
    assert [count for part in parts for count in part] == samples
    for part, after in zip(parts, [*parts[1:], []], strict=True):
        assert len(part) <= most
        assert min(part) >= 0.75 * max(part)
        assert not after or len(part) == most or after[0] < 0.75 * part[0]  # no part ends before it must
