"""Randomness as data: the same words everywhere, uniform, and different wherever anything differs."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedssd.core.randomness import Purpose, below, bits, normal, permutation, sample_cohort, shuffle_keys, uniform

WORDS = st.lists(st.integers(0, 2**62), min_size=1, max_size=5)


def plain_bits(words: list[int]) -> int:
    """The hash in Python integers alone, from its description: mix, multiply, add, mix."""

    def mix(word: int) -> int:  # lowbias32
        word ^= word >> 16
        word = word * 0x7FEB352D % 2**32
        word ^= word >> 15
        word = word * 0x846CA68B % 2**32
        return word ^ (word >> 16)

    state = 0x9E3779B9
    for position, word in enumerate(words):
        state = mix((state * 0x01000193 + word % 2**32 + position * 0x85EBCA6B) % 2**32)
        state = mix(state ^ (word // 2**32))
    return mix(state)


@given(WORDS)
@settings(max_examples=100, deadline=None)
def test_bits_are_the_same_for_integers_and_tensors_and_in_plain_python(words: list[int]) -> None:
    expected = plain_bits(words)
    assert int(bits(*words)) == expected
    assert int(bits(*(torch.tensor(word) for word in words))) == expected
    assert int(bits(words[0], *(torch.tensor([word]) for word in words[1:]))) == expected


@pytest.mark.quick
def test_seeds_beyond_32_bits_are_seeds_of_their_own() -> None:
    """A plan takes its seed as a tensor, a cohort as an integer: neither may drop the upper half."""
    for make in (int, torch.tensor):
        assert int(bits(make(7), 1)) != int(bits(make(7 + 2**32), 1))


@pytest.mark.quick
def test_bits_of_broadcast_words_are_the_bits_of_each_combination() -> None:
    rows, columns = torch.arange(4)[:, None], torch.arange(5)
    found = bits(3, Purpose.AUGMENT, rows, 8, columns)
    assert found.shape == (4, 5)
    assert all(int(found[i, j]) == int(bits(3, Purpose.AUGMENT, i, 8, j)) for i in range(4) for j in range(5))
    assert int(found.min()) >= 0
    assert int(found.max()) < 2**32


@pytest.mark.quick
def test_seed_purpose_round_client_and_place_all_matter() -> None:
    base = (1, 2, 3, 4)
    counter = torch.arange(1000)
    reference = bits(*base, counter)
    for place in range(4):
        words = list(base)
        words[place] += 1
        assert int((bits(*words, counter) == reference).sum()) <= 1
    assert int((bits(2, 1, 3, 4, counter) == reference).sum()) <= 1  # the same words in another order
    assert len({int(bits(0, purpose, 0)) for purpose in Purpose}) == len(Purpose)


def chi_square(observed: Tensor) -> float:
    expected = float(observed.sum()) / observed.numel()
    return float(((observed.double() - expected) ** 2 / expected).sum())


@pytest.mark.quick
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_draws_are_uniform(seed: int) -> None:
    """64 bins, 63 degrees of freedom: mean 63, deviation √126 ≈ 11.2; five deviations are allowed either way."""
    values = uniform(seed, Purpose.WEIGHTS, torch.arange(64_000))
    assert float(values.min()) > 0
    assert float(values.max()) < 1
    assert 63 - 56 < chi_square(torch.bincount((values * 64).long(), minlength=64)) < 63 + 56
    whole = below(64, bits(seed, Purpose.AUGMENT, torch.arange(64_000)))
    assert 63 - 56 < chi_square(torch.bincount(whole, minlength=64)) < 63 + 56
    pairs = (values[:-1] * 8).long() * 8 + (values[1:] * 8).long()  # neighbours are independent
    assert 63 - 56 < chi_square(torch.bincount(pairs, minlength=64)) < 63 + 56


@pytest.mark.quick
def test_every_bit_is_fair() -> None:
    words = bits(5, torch.arange(40_000))
    for place in range(32):
        ones = float(((words >> place) & 1).sum())
        assert abs(ones - 20_000) < 5 * 100  # a fair coin's deviation is √(40,000/4) = 100


@pytest.mark.quick
def test_normal_draws_have_the_normal_moments() -> None:
    values = normal(3, torch.arange(100_000))
    assert abs(float(values.mean())) < 5 / 100_000**0.5
    assert float(values.var()) == pytest.approx(1, abs=5 * (2 / 100_000) ** 0.5)
    assert float((values.abs() < 1).double().mean()) == pytest.approx(0.6827, abs=0.01)


@given(count=st.integers(0, 300), seed=st.integers(0, 2**40))
@settings(max_examples=50, deadline=None)
def test_a_permutation_is_one(count: int, seed: int) -> None:
    assert sorted(permutation(count, seed, Purpose.SPLIT).tolist()) == list(range(count))


@pytest.mark.quick
def test_permutations_are_uniform() -> None:
    """6,000 orders of three things: six orders, 5 degrees of freedom, chi-square below 5 + 5·√10 ≈ 21."""
    keys = shuffle_keys(9, torch.arange(6000)[:, None], torch.arange(3))
    order = torch.argsort(keys, dim=-1)
    codes = (order[:, 0] * 9 + order[:, 1] * 3 + order[:, 2]).tolist()
    counts = torch.tensor([codes.count(code) for code in sorted(set(codes))])
    assert len(counts) == 6
    assert chi_square(counts) < 21


@given(population=st.integers(1, 60), size=st.integers(1, 70), seed=st.integers(0, 2**40), round_=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_cohorts_are_ascending_distinct_and_of_the_asked_size(
    population: int, size: int, seed: int, round_: int
) -> None:
    cohort = sample_cohort(seed, round_, population, size)
    assert len(cohort) == min(size, population)
    assert all(a < b for a, b in pairwise(cohort))
    assert cohort[0] >= 0
    assert cohort[-1] < population
    assert cohort == sample_cohort(seed, round_, population, size)


@pytest.mark.quick
def test_cohorts_differ_between_rounds_and_treat_clients_alike() -> None:
    cohorts = [sample_cohort(0, round_, 10, 3) for round_ in range(1000)]
    assert len({tuple(cohort) for cohort in cohorts}) > 100  # of 120 there are
    taken = torch.bincount(torch.tensor(cohorts).flatten(), minlength=10)
    assert all(abs(int(times) - 300) < 5 * (1000 * 0.3 * 0.7) ** 0.5 for times in taken)
