"""Which sample at which step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedssd.core.plan import Schedule, batches, orders, plan_client


@given(samples=st.integers(1, 50), batch=st.integers(1, 12), epochs=st.integers(1, 3), seed=st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_each_epoch_visits_every_sample_once(samples: int, batch: int, epochs: int, seed: int) -> None:
    steps = plan_client(Schedule(epochs, batch), seed, 2, 7, samples)
    per_epoch = -(-samples // batch)
    assert len(steps) == epochs * per_epoch == Schedule(epochs, batch).steps(samples)
    for epoch in range(epochs):
        part = steps[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert all(len(position) == len(key) == batch for position, key in part[:-1])
        assert sorted(torch.cat([position for position, _ in part]).tolist()) == list(range(samples))


@given(samples=st.integers(1, 50), batch=st.integers(1, 12), epochs=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_drop_partial_leaves_out_the_rest_but_never_a_whole_client(samples: int, batch: int, epochs: int) -> None:
    steps = plan_client(Schedule(epochs, batch, drop_partial=True), 0, 0, 0, samples)
    assert len(steps) == epochs * max(samples // batch, 1)
    assert all(len(position) == min(batch, samples) for position, _ in steps)
    assert all(len(set(position.tolist())) == len(position) for position, _ in steps)


@pytest.mark.quick
def test_orders_differ_between_epochs_rounds_clients_and_seeds() -> None:
    def order(seed: int, round_: int, client: int) -> list[tuple[int, ...]]:
        return [tuple(position.tolist()) for position, _ in plan_client(Schedule(2, 40), seed, round_, client, 40)]

    found = [order(*words) for words in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len({epoch for plan in found for epoch in plan}) == 8
    assert order(0, 0, 0) == found[0]


@pytest.mark.quick
def test_augmentation_words_belong_to_the_visit_of_a_sample() -> None:
    """Another epoch, another word; another batch size, the same word for the same visit."""

    def words(batch: int) -> dict[tuple[int, int], int]:
        schedule, found = Schedule(2, batch), {}
        for step, (position, key) in enumerate(plan_client(schedule, 4, 1, 2, 12)):
            for p, k in zip(position.tolist(), key.tolist(), strict=True):
                found[step // schedule.steps_per_epoch(12), p] = k
        return found

    assert words(5) == words(12)
    assert len(set(words(5).values())) == 24


SIZES = torch.tensor([13, 3, 17, 8])


@pytest.mark.quick
@pytest.mark.parametrize("drop_partial", [False, True])
def test_batched_over_clients_and_in_chunks_equals_client_by_client(drop_partial: bool) -> None:
    """Padding included: masked entries say nothing, live ones are those of plan_client."""
    schedule = Schedule(epochs=3, batch=4, drop_partial=drop_partial)
    seeds, clients = torch.tensor([5, 5, 9, 5]), torch.tensor([2, 7, 1, 30])
    per_epoch = torch.tensor([schedule.steps_per_epoch(int(size)) for size in SIZES])
    order = orders(schedule, seeds, 6, clients, SIZES, longest=20)
    total = int(per_epoch.max()) * schedule.epochs

    def cut(steps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return batches(schedule, order, seeds, 6, clients, SIZES, per_epoch, steps, width=4)

    whole = cut(torch.arange(total))
    for chunk in (1, 2, 5):
        parts = [cut(steps) for steps in torch.arange(total).split(chunk)]
        for place in range(3):
            assert torch.equal(torch.cat([part[place] for part in parts], dim=1), whole[place])
    for row, (seed, client, size) in enumerate(zip(seeds, clients, SIZES, strict=True)):
        steps = plan_client(schedule, int(seed), 6, int(client), int(size))
        for step in range(total):
            mask = whole[2][row, step]
            if step >= len(steps):
                assert not bool(mask.any())
                continue
            assert torch.equal(whole[0][row, step][mask], steps[step][0])
            assert torch.equal(whole[1][row, step][mask], steps[step][1])
