"""A user's own method from a file: it loads and runs, and every way to get it wrong is one line that names the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedssd.errors import UserError
from fedssd.methods.custom import load_local
from fedssd.methods.registry import build_local

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


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def put(text: str) -> Path:
        path = tmp_path / "my_method.py"
        path.write_text(text)
        return path

    return put


@pytest.mark.quick
def test_fifteen_lines_are_a_method(
    write: Callable[[str], Path], scenes: Callable[..., Any], distance: Callable[[Any, Any], float]
) -> None:
    """The user's proximal term, given our FedProx's strength, ends where FedProx ends."""
    path = write(GOOD)
    assert len(GOOD.strip().splitlines()) <= 18  # fifteen beside the imports
    local = build_local(f"{path}:Near", {"near": {"mu": 0.7}})
    assert local.name == "near"
    scene = scenes()
    ours, theirs = scene.ours(local), scene.ours(build_local("fedprox", {"fedprox": {"mu": 0.7}}))
    assert distance(ours[-1].state.weights, theirs[-1].state.weights) <= 1e-12


@pytest.mark.quick
def test_a_users_method_adds_up_with_built_in_ones(write: Callable[[str], Path], scenes: Callable[..., Any]) -> None:
    local = build_local(f"fedssd+{write(GOOD)}:Near", {"near": {"mu": 0.2}, "fedssd": {"m_max": 1.0}})
    assert scenes().ours(local)[-1].state.round == 3


@pytest.mark.quick
def test_a_users_method_has_the_checks_of_a_built_in_one(write: Callable[[str], Path]) -> None:
    path = write(GOOD)
    with pytest.raises(UserError, match="no option 'nu'"):
        build_local(f"{path}:Near", {"near": {"nu": 0.2}})
    with pytest.raises(UserError, match="expects a number"):
        build_local(f"{path}:Near", {"near": {"mu": "big"}})


# what is wrong -> the file, the line it must name (None: the file alone), what the message must say
BAD: dict[str, tuple[str, int | None, str]] = {
    "draws its own numbers": (method("return torch.rand(()) + 0 * out.logits.sum()"), None, "pure"),
    "counts its calls": (
        method(
            "Mine.calls = getattr(Mine, 'calls', 0) + 1; return out.logits.sum() * Mine.calls",
        ),
        None,
        "pure",
    ),
    "one value per class": (method("return out.logits.square()"), None, r"got shape \[5, 3\]"),
    "one value too many": (method("return torch.zeros(len(batch.y) + 1)"), None, r"got shape \[6\]"),
    "turns a tensor into a number": (method("return out.logits.sum() * out.logits.sum().item()"), 10, "vmap"),
    "branches on data": (method("return out.logits.sum() if out.logits.sum() > 0 else -out.logits.sum()"), 10, "vmap"),
    "raises": (method("return params['no such layer'].sum()"), 10, "KeyError"),
    "raises on the server": (
        method("return out.logits.sum()")
        + "\n    def broadcast(self, net, weights, memory, auxiliary):\n        return {'a': 1 / 0}\n",
        13,
        "ZeroDivisionError",
    ),
    "returns no tensor": (method("return None"), None, "AttributeError|penalty"),
    "not decorated": (method("return self.mu * out.logits.sum()", decorator="#"), None, "frozen dataclass"),
    "not frozen": (method("return self.mu * out.logits.sum()", decorator="@dataclass"), 5, "frozen"),
    "an option without a default": (method("return self.mu * out.logits.sum()", fields="mu: float"), None, "mu"),
    "does not parse": (method("return ("), 10, "does not load"),
    "raises when imported": (HEADER + "import no_such_package_anywhere\n", 5, "no_such_package_anywhere"),
    "another class": (GOOD, None, "called 'Mine', found Near"),
    "not a method": (HEADER + "class Mine:\n    pass\n", None, "subclass of fedssd.Local"),
    "empty": ("", None, "found none"),
}


@pytest.mark.quick
@pytest.mark.parametrize("wrong", BAD)
def test_a_wrong_method_is_one_line_that_names_the_file(write: Callable[[str], Path], wrong: str) -> None:
    text, line, says = BAD[wrong]
    path = write(text)
    with pytest.raises(UserError) as caught:
        load_local(f"{path}:Mine")
    message = str(caught.value)
    assert "\n" not in message
    where = f"{path}:{line}:" if line else f"{path}"
    assert message.startswith(where), message
    assert re.search(says, message.removeprefix(str(path))), message


@pytest.mark.quick
def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "nowhere.py"))):
        build_local(f"{tmp_path / 'nowhere.py'}:Mine")
