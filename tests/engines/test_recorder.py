"""A step recorded once and replayed: only where that gives what the step gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedssd.engines.vectorised.recorder import Replayed, record


def test_a_recording_lets_go_of_what_nobody_reads_and_repeats_the_rest() -> None:
    def step(state: Tensor, x: Tensor) -> None:
        torch.exp(x)  # nobody reads it
        upper, lower = (2 * x).split([1, 2])
        state.add_(torch.cat([lower, upper])).mul_(torch.tensor(3.0))

    state, x = torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])
    recorded = record(step, (state, x))
    assert state.tolist() == [0, 0, 0]  # recording is done on copies
    for _ in range(2):
        recorded(state, x)
    assert state.tolist() == [(0 + 4) * 3 * 3 + 12, (0 + 6) * 3 * 3 + 18, (0 + 2) * 3 * 3 + 6]


def test_a_step_that_looks_at_numbers_is_not_recorded() -> None:
    def step(state: Tensor, x: Tensor) -> None:
        state.add_(x if float(x.sum()) > 0 else 100)

    state = torch.zeros(1)
    recorded = record(step, (state, torch.ones(1)))
    for value in (1.0, 1.0, -1.0):
        recorded(state, torch.tensor([value]))
    assert state.tolist() == [102]


@pytest.mark.parametrize("start", [0.0, 2**40])  # among integers one is not close to the next
def test_a_recording_that_goes_wrong_in_the_next_round_is_given_up(start: float) -> None:
    outside = [torch.ones(1)]

    def step(state: Tensor, x: Tensor) -> None:
        state.add_((x * outside[0]).to(state.dtype))  # taken for a constant

    state = torch.tensor([start])
    recorded = record(step, (state, torch.ones(1)))
    assert isinstance(recorded, Replayed)
    for round_ in (1.0, 10.0, 100.0):
        outside[0] = torch.tensor([round_])
        recorded.new_round()
        for _ in range(2):
            recorded(state, torch.ones(1))
    assert state.tolist() == [start + 222]


@pytest.mark.parametrize(
    "write",
    [
        lambda kept, x: kept.add_(x),
        lambda kept, x: torch.add(kept, x, out=kept),
        lambda kept, x: torch._foreach_add_([kept], [x]),
        lambda kept, x: kept[:1].copy_(kept + x),
    ],
    ids=["in place", "out", "a list", "a view"],
)
def test_a_step_that_writes_into_a_constant_is_not_recorded(write: Any) -> None:
    kept = torch.zeros(1)

    def step(state: Tensor, x: Tensor) -> None:
        write(kept, x)
        state.copy_(kept)

    state = torch.zeros(1)
    assert record(step, (state, torch.zeros(1))) is step


def test_a_step_that_turns_a_tensor_round_in_place_is_not_recorded() -> None:
    def step(state: Tensor, x: Tensor) -> None:
        state.add_(x + x.detach().t_().t())  # of the same memory, but x itself stays as it was

    assert record(step, (torch.zeros(2, 3), torch.ones(2, 3))) is step


def test_a_step_that_works_behind_the_recorder_s_back_is_not_recorded() -> None:
    def step(state: Tensor, x: Tensor) -> None:
        state.add_(torch.from_numpy(x.numpy() * 2))  # numpy's product is no tensor operation

    state = torch.zeros(2)
    recorded = record(step, (state, torch.tensor([1.0, 2.0])))
    for _ in range(2):
        recorded(state, torch.tensor([10.0, 20.0]))
    assert state.tolist() == [40, 80]
