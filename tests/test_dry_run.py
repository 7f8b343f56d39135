"""A user's method is tried on samples, classes and numbers like the run's before anything trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from user_methods import DIGITS, HEADER, method, tried

from fedssd.errors import UserError
from fedssd.methods.dry_run import SampleForm
from fedssd.methods.registry import LOCALS


@pytest.mark.quick
@pytest.mark.parametrize(
    "body",
    [
        "return batch.x.mean(dim=(1, 2, 3)) * out.logits.sum(-1)",
        "return (out.logits @ torch.eye(out.logits.shape[-1])).square().sum(-1)",
        "return (out.logits * torch.ones(10)).sum(-1)",
        "return torch.full((), 1e-4) * out.logits.softmax(-1).log().sum(-1)",
    ],
    ids=["images", "their precision", "their classes", "a logarithm"],
)
def test_it_is_tried_on_what_the_run_has(write_method: Callable[[str], Path], body: str) -> None:
    assert tried(write_method(method(body))).name == "mine"


@pytest.mark.quick
def test_what_fits_one_dataset_is_refused_on_another(write_method: Callable[[str], Path]) -> None:
    path = write_method(method("return (out.logits * torch.ones(10)).sum(-1)"))
    with pytest.raises(UserError, match=r"my_method.py:10: Mine fails in one plain local round: .* \(100\)"):
        tried(path, setting=DIGITS._replace(classes=100))


@pytest.mark.parametrize("name", sorted({*LOCALS} - {"fd"}))  # whose memory grows in its second round
@pytest.mark.parametrize(
    "setting",
    [DIGITS, SampleForm((3, 32, 32), 100, torch.float32), SampleForm((7,), 2, torch.float64)],
    ids=["digits", "cifar100", "rows"],
)
def test_every_method_of_ours_would_pass_as_a_users(
    write_method: Callable[[str], Path], name: str, setting: SampleForm
) -> None:
    """They train, so a check that refuses one of them is too strict."""
    base = LOCALS[name]
    text = f"{HEADER}from {base.__module__} import {base.__name__} as Base\n\n@dataclass(frozen=True)\n"
    assert tried(write_method(f"{text}class Mine(Base):\n    pass\n"), setting=setting).name == "mine"
