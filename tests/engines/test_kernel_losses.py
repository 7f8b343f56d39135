"""Our kernels reach the losses where they cover the call, and leave torch's own where they do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_checks import MODELS, close, needs_interpreter, note_calls
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from fedssd.core.step import mean_loss
from fedssd.engines.kernels.net import Losses
from fedssd.methods.fedssd import distillation_weights, selective_distillation, shares, weighted_square


@needs_interpreter
def test_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = note_calls(monkeypatch)
    logits, teacher = torch.randn(MODELS, 4, 3, requires_grad=True), torch.randn(MODELS, 4, 3)
    y, mask, matrix = torch.randint(0, 3, (MODELS, 4)), torch.tensor([1.0, 1, 0, 1]), torch.rand(3, 3)
    m_max, floor, exponent = torch.rand(3, MODELS)

    def total(z: Tensor, labels: Tensor, t: Tensor, *numbers: Tensor) -> tuple[Tensor, Tensor]:
        entropy = F.cross_entropy(z, labels, reduction="none")
        weight = distillation_weights(t, labels, matrix, numbers[1], numbers[2])
        penalty = weighted_square(z, t, weight, numbers[0], "inside", "sum") + F.cosine_similarity(z, t, dim=-1)
        return mean_loss(mask, entropy, penalty, *shares(weight))

    def values(of: Any) -> list[Tensor]:
        loss, sums = of(total)
        return [loss, sums.detach(), torch.autograd.grad(loss.square().sum(), logits)[0]]

    def single(function: Any) -> Any:  # one model, without vmap
        rows = [part[0] for part in (logits, y, teacher, m_max, floor, exponent)]
        return function(*rows)

    for of in (lambda f: vmap(f)(logits, y, teacher, m_max, floor, exponent), single):
        expected = values(of)
        assert not calls
        with Losses():
            found = values(of)
        for ours, theirs in zip(found, expected, strict=True):
            close(ours, theirs)
        assert [call[0] for call in calls] == [
            "entropy", "distillation_weights", "weighted_square", "cosine", "shares", "mean_loss",
        ]  # fmt: skip
        calls.clear()


def test_what_the_losses_kernels_do_not_cover_stays_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = note_calls(monkeypatch)
    logits, y = torch.randn(4, 3, dtype=torch.float64), torch.randint(0, 3, (4,))
    with Losses():
        found = F.cross_entropy(logits, y, reduction="none"), F.cosine_similarity(logits.T, logits.T, dim=0)
        F.cosine_similarity(logits.float(), logits.float().requires_grad_(True), dim=-1)
        selective_distillation(logits.float(), logits.float(), y, torch.eye(3))
        mean_loss(torch.ones(4), *torch.rand(6, 4))
    close(found[0], -logits.log_softmax(1).gather(1, y[:, None])[:, 0])
    a, b = torch.randn(MODELS, 4, 3), torch.randn(MODELS, 4, 3, requires_grad=True)
    expected = torch.autograd.grad(vmap(lambda p, q: F.cosine_similarity(p, q, dim=-1))(a, b).sum(), b)
    with Losses():  # inside vmap a tensor does not say by itself that it learns
        cosines = vmap(lambda p, q: F.cosine_similarity(p, q, dim=-1))(a, b)
    close(torch.autograd.grad(cosines.sum(), b), expected)
    close(found[1], torch.ones(4, dtype=torch.float64))
    assert not calls


@needs_interpreter
@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "alone"])
@pytest.mark.parametrize(
    "call",
    [
        lambda z, y: F.cross_entropy(input=z, target=y, reduction="none"),
        lambda z, y: F.cross_entropy(z, target=torch.where(y == 0, -100, y), reduction="none"),
        lambda z, y: F.cross_entropy(z, torch.where(y == 0, -1, y), ignore_index=-1, reduction="none"),
        lambda z, y: F.cosine_similarity(x1=z, x2=z.detach() + y[:, None], dim=-1),
    ],
    ids=["by name", "some ignored", "some ignored by another number", "cosine by name"],
)
def test_losses_called_in_other_ways(call: Any, stacked: bool) -> None:
    torch.manual_seed(0)
    logits, y = torch.randn(MODELS, 6, 3, requires_grad=True), torch.arange(6).expand(MODELS, 6) % 3

    def values() -> tuple[Tensor, ...]:
        found = vmap(call)(logits, y) if stacked else call(logits[0], y[0])
        return found.detach(), *torch.autograd.grad(found.square().sum() + found.sum(), logits)

    expected = values()
    with Losses():
        close(values(), expected)
