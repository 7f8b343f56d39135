"""What a step does besides layers and loss: batches and random words to the bit, SGD against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_values import (
    DEVICE,
    FP32,
    drawn,
    error,
    few,
    models,
    no_context,
    poison,  # noqa: F401  # a fixture that all use
)

pytest.importorskip("triton", reason="the kernels are written in Triton")

from fedssd.core.randomness import bits
from fedssd.data.augment import Augmentation
from fedssd.engines.kernels import augment, draws, solver

pytestmark = no_context


@few
@given(models, st.integers(1, 3000), st.booleans())
def test_sgd(count: int, size: int, some: bool) -> None:
    torch.manual_seed(size)
    params, velocity, gradient = drawn(count, size), drawn(count, size), drawn(count, size)
    lr, momentum, decay = torch.rand(3, count, device=DEVICE)
    live = torch.randint(0, 2, (count, 2), device=DEVICE).float()[:, 0] if some else None
    on = torch.ones(count, 1, dtype=torch.bool, device=DEVICE) if live is None else live[:, None] > 0
    p, v, g, a, m, d = (
        t.double() for t in (params, velocity, gradient, lr[:, None], momentum[:, None], decay[:, None])
    )
    moved = m * v + (g + d * p)
    solver.sgd_(params, velocity, gradient, lr, momentum, decay, live)
    assert error(velocity, torch.where(on, moved, v)) <= FP32
    assert error(params, torch.where(on, p - a * moved, p)) <= FP32


@few
@given(st.integers(0, 4), st.sampled_from(("zero", "reflect")), st.booleans(), st.booleans(), st.integers(5, 12))
def test_batches_are_the_pipelines_to_the_bit(pad: int, padding: str, flip: bool, normalise: bool, side: int) -> None:
    torch.manual_seed(side)
    images = torch.randint(0, 256, (20, 3, side, side + 1), dtype=torch.uint8, device=DEVICE)
    index, key = torch.randint(0, 20, (3, 2), device=DEVICE), torch.randint(0, 2**32, (3, 2), device=DEVICE)
    statistics = ((0.4, 0.5, 0.6), (0.2, 0.3, 0.25)) if normalise else ((), ())
    pipeline = Augmentation(pad, padding, flip, mean=statistics[0], std=statistics[1])
    assert augment.covers(pipeline, images, torch.float32)
    assert not augment.covers(pipeline, images.contiguous(memory_format=torch.channels_last), torch.float32)
    assert torch.equal(augment.train(pipeline, images, index, key), pipeline.train(images, index, key, torch.float32))


@few
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 9), st.data())
def test_the_batches_of_one_step(steps: int, count: int, batch: int, data: st.DataObject) -> None:
    torch.manual_seed(batch)
    pipeline = Augmentation(pad=2, flip=True, mean=(0.4, 0.5), std=(0.2, 0.3))
    images = torch.randint(0, 256, (20, 2, 5, 7), dtype=torch.uint8, device=DEVICE)
    index = torch.randint(0, 20, (steps, count, batch), device=DEVICE)
    key = torch.randint(0, 2**32, index.shape, device=DEVICE)
    y, mask = torch.randint(0, 9, index.shape, device=DEVICE), torch.rand(index.shape, device=DEVICE)
    step, width = data.draw(st.integers(0, steps - 1)), data.draw(st.integers(1, count))
    number = torch.tensor([step], device=DEVICE)
    found = augment.at_step(pipeline, images, augment.visits(pipeline, index, key), y, mask, number, width)
    expected = pipeline.train(images, index, key, torch.float32), y, mask
    assert all(torch.equal(a, b[step, :width]) for a, b in zip(found, expected, strict=True))


@few
@given(st.lists(st.integers(-(2**62), 2**62), min_size=0, max_size=3), st.integers(1, 5), st.integers(1, 40))
def test_random_words(numbers: list[int], rows: int, columns: int) -> None:
    torch.manual_seed(columns)
    many = torch.randint(-(2**62), 2**62, (rows, 1, columns), device=DEVICE)
    few_words = torch.randint(0, 2**32, (2, 1), device=DEVICE)
    for words in ((*numbers, many), (many, *numbers), (few_words, *numbers, many, 7), (*numbers, many.transpose(0, 2))):
        assert draws.covers(words)
        assert torch.equal(draws.bits(*words), bits(*words))
