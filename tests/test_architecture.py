"""The shape of the program: what is in it, and which part may know which."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "fedssd"


def test_git_has_every_file_of_the_program() -> None:
    """A pattern in .gitignore without a leading slash can hide a package from git, and from ruff with it."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.check_output(["git", "ls-files", "--cached", "--others", "--exclude-standard", "src"], cwd=ROOT)
    here = {str(file.relative_to(ROOT)) for file in SOURCE.rglob("*.py")}
    assert here == {name for name in listed.decode().split() if name.endswith(".py") and (ROOT / name).exists()}
