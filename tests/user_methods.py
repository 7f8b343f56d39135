"""Files with a user's method, as the tests of such methods write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedssd.core.contract import Local
from fedssd.methods.custom import load_local
from fedssd.methods.dry_run import SampleForm, try_local

DIGITS = SampleForm((1, 8, 8), 10, torch.float32)

HEADER = """\
from dataclasses import dataclass
import torch
from fedssd.core.contract import Local

"""

GOOD = (
    HEADER
    + '''\
@dataclass(frozen=True)
class Near(Local):
    """CE + (mu/2) |w - w_g|^2, a proximal term by a user."""

    strength = "mu"
    mu: float = 0.1

    def penalty(self, out, batch, target, params, sent, memory):
        total = 0.0
        for name, value in params.items():
            total = total + ((value - sent["weights"]["params"][name]) ** 2).sum()
        return self.mu / 2 * total
'''
)


def method(body: str, decorator: str = "@dataclass(frozen=True)", fields: str = "mu: float = 0.1") -> str:
    """A file with one method whose penalty has this body; the body's first line is line 10."""
    return (
        f"{HEADER}{decorator}\nclass Mine(Local):\n    {fields}\n\n"
        f"    def penalty(self, out, batch, target, params, sent, memory):\n        {body}\n"
    )


def tried(path: Path, name: str = "Mine", setting: SampleForm = DIGITS) -> type[Local]:
    """The class, after it has been loaded and tried as a run on digits does it."""
    kind = load_local(f"{path}:{name}")
    try_local(kind(), setting)
    return kind


SUM = "return 0.1 * out.logits.sum()"


def with_hook(signature: str, body: str, before: str | None = None) -> str:
    """A fine method and one more hook: ``def`` is on line 12, its body on line 13."""
    return f"{method(SUM) if before is None else before}\n    def {signature}:\n        {body}\n"


@pytest.fixture
def write_method(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a file with a user's method: ``write_method(text)`` gives its path."""

    def put(text: str) -> Path:
        path = tmp_path / "my_method.py"
        path.write_text(text)
        return path

    return put
